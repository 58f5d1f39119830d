"""The masked classifier head: MaC-Cal, Mask-based Classifier Calibration (Ni 2025)."""

from calib_serve.fit.masked.fit import PAPER, READINGS, UNMASKED, fit_masked_head, held_rows, reading
from calib_serve.fit.masked.training import Masking, Retention

__all__ = ["PAPER", "READINGS", "UNMASKED", "Masking", "Retention", "fit_masked_head", "held_rows", "reading"]
