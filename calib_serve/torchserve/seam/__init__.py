"""Where the class scores pass in a TorchServe handler that somebody else wrote."""

from calib_serve.scores.form import Form, find_scores, leaves, same_format, shows
from calib_serve.torchserve.seam._handler import INFERENCE, load_handler, put_around
from calib_serve.torchserve.seam._host import SECONDS, Request, alternatives, ask, run_trial

__all__ = [
    "INFERENCE",
    "SECONDS",
    "Form",
    "Request",
    "alternatives",
    "ask",
    "find_scores",
    "leaves",
    "load_handler",
    "put_around",
    "run_trial",
    "same_format",
    "shows",
]
