"""The masked classifier head (MaC-Cal, Ni 2025)."""

from calib_serve.fit.masked.fit import PAPER, fit_masked_head, held_rows
from calib_serve.fit.masked.training import Masking

__all__ = ["PAPER", "Masking", "fit_masked_head", "held_rows"]
