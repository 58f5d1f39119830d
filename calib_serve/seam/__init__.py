"""Where the class scores pass in a TorchServe handler that somebody else wrote."""

from calib_serve.seam._form import Form, Scores, find_scores, leaves, same_format, shows
from calib_serve.seam._handler import INFERENCE, Handler, load_handler, put_around
from calib_serve.seam._host import SECONDS, Request, alternatives, ask, of_row, run_trial

__all__ = [
    "INFERENCE",
    "SECONDS",
    "Form",
    "Handler",
    "Request",
    "Scores",
    "alternatives",
    "ask",
    "find_scores",
    "leaves",
    "load_handler",
    "of_row",
    "put_around",
    "run_trial",
    "same_format",
    "shows",
]
