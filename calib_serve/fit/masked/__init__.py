"""The masked classifier head: MaC-Cal, Mask-based Classifier Calibration (Ni 2025)."""

from calib_serve.fit.masked.fit import fit_masked_head, held_rows
from calib_serve.fit.masked.readings import PAPER, READINGS, UNMASKED, reading
from calib_serve.fit.masked.retention import Retention
from calib_serve.fit.masked.training import Masking

__all__ = ["PAPER", "READINGS", "UNMASKED", "Masking", "Retention", "fit_masked_head", "held_rows", "reading"]
