"""Where the class scores pass in a TorchServe handler that somebody else wrote."""

from calib_serve.seam.form import Form, Scores, find_scores
from calib_serve.seam.handler import INFERENCE, Handler, load_handler, put_around
from calib_serve.seam.host import Request, alternatives, ask, of_row
from calib_serve.seam.reply import leaves, same_format, shows
from calib_serve.seam.trial import SECONDS, run_trial

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
