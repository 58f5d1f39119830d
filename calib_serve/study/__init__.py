"""The usual experiments of calibration papers, on your own data.

Each returns a ``Study``: a table, curves, and what they say in plain words.
"""

from calib_serve.study.ablation import ablation
from calib_serve.study.bin_effect import bin_effect
from calib_serve.study.fitting import Fit, OutputFit
from calib_serve.study.optimum import optimal_temperature
from calib_serve.study.result import Curve, Study
from calib_serve.study.shift import shift
from calib_serve.study.size import validation_size
from calib_serve.study.stability import stability

__all__ = ["Curve", "Fit", "OutputFit", "Study", "ablation", "bin_effect", "optimal_temperature", "shift"]
__all__ += ["stability", "validation_size"]
