"""The usual experiments of calibration papers, on your own data.

Each returns a ``Study``: a table, curves, and what they say in plain words.
"""

from calib_serve.papers.data import shift, validation_size
from calib_serve.papers.methods import ablation, bin_effect, optimal_temperature, stability
from calib_serve.papers.result import Curve, Fit, OutputFit, Study

__all__ = ["Curve", "Fit", "OutputFit", "Study", "ablation", "bin_effect", "optimal_temperature", "shift"]
__all__ += ["stability", "validation_size"]
