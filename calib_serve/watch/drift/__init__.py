"""Detectors of a change in calibration, and the statistics beside them."""

from calib_serve.watch.drift.confidence_shift import ConfidenceShift
from calib_serve.watch.drift.detector import Alarm, Detector, ShiftedBin
from calib_serve.watch.drift.evidence import Evidence
from calib_serve.watch.drift.statistics import psi

__all__ = ["Alarm", "ConfidenceShift", "Detector", "Evidence", "ShiftedBin", "psi"]
