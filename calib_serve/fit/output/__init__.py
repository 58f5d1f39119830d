"""Output calibrators, which need only scores, and the selection among them."""

from calib_serve.fit.output.candidates import CANDIDATES, check_options, fit_by_name, options_of
from calib_serve.fit.output.ece_grid import fit_temperature_ece
from calib_serve.fit.output.selection import default_candidates, held_out_estimates, held_out_metrics, select
from calib_serve.fit.output.temperature import fit_temperature

__all__ = [
    "CANDIDATES",
    "check_options",
    "default_candidates",
    "fit_by_name",
    "fit_temperature",
    "fit_temperature_ece",
    "held_out_estimates",
    "held_out_metrics",
    "options_of",
    "select",
]
