"""Neural Clamping: a perturbation of the input and a temperature, fitted together (Tang 2024)."""

from calib_serve.fit.clamping.fit import GAMMAS, checked, fit_neural_clamping, fit_neural_clamping_efficient
from calib_serve.fit.clamping.solve import PaperSchedule, QuasiNewton

__all__ = [
    "GAMMAS",
    "PaperSchedule",
    "QuasiNewton",
    "checked",
    "fit_neural_clamping",
    "fit_neural_clamping_efficient",
]
