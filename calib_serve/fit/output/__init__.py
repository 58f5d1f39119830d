"""Output calibrators, which need only scores, and the selection among them."""

from calib_serve.fit.output.candidates import (
    CANDIDATES,
    KEEPING,
    TWO_CLASSES,
    check_options,
    fit_by_name,
    options_of,
    remarks,
)
from calib_serve.fit.output.ece_grid import fit_temperature_ece
from calib_serve.fit.output.selection import (
    default_candidates,
    facts_of_probabilities,
    held_out_facts,
    select,
)
from calib_serve.fit.output.tables import VennAbers, fit_venn_abers
from calib_serve.fit.output.temperature import fit_temperature

__all__ = [
    "CANDIDATES",
    "KEEPING",
    "TWO_CLASSES",
    "VennAbers",
    "check_options",
    "default_candidates",
    "facts_of_probabilities",
    "fit_by_name",
    "fit_temperature",
    "fit_temperature_ece",
    "fit_venn_abers",
    "held_out_facts",
    "options_of",
    "remarks",
    "select",
]
