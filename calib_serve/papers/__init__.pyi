"""The usual experiments of calibration papers, on your own data."""

from calib_serve.papers.result import Curve as Curve
from calib_serve.papers.result import Study as Study
from calib_serve.papers.result import in_logits as in_logits
from calib_serve.papers.studies import optimal_temperature as optimal_temperature
from calib_serve.papers.studies import validation_size as validation_size
