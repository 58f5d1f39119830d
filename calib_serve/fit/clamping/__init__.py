"""Neural Clamping: a perturbation of the input and a temperature, fitted together (Tang 2024)."""

from calib_serve.fit.clamping.efficient import checked, fit_neural_clamping_efficient
from calib_serve.fit.clamping.fit import GAMMAS, fit_neural_clamping
from calib_serve.fit.clamping.objective import QuasiNewton
from calib_serve.fit.clamping.schedules import fit_neural_clamping_paper, fit_neural_clamping_toolkit

__all__ = [
    "GAMMAS",
    "QuasiNewton",
    "checked",
    "fit_neural_clamping",
    "fit_neural_clamping_efficient",
    "fit_neural_clamping_paper",
    "fit_neural_clamping_toolkit",
]
