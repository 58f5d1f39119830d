"""The usual experiments of calibration papers, on your own data."""

from calib_serve.papers.data import shift as shift
from calib_serve.papers.data import validation_size as validation_size
from calib_serve.papers.methods import ablation as ablation
from calib_serve.papers.methods import bin_effect as bin_effect
from calib_serve.papers.methods import optimal_temperature as optimal_temperature
from calib_serve.papers.methods import stability as stability
from calib_serve.papers.result import Curve as Curve
from calib_serve.papers.result import Fit as Fit
from calib_serve.papers.result import OutputFit as OutputFit
from calib_serve.papers.result import Study as Study
from calib_serve.papers.result import in_logits as in_logits
