"""Detectors of a change in calibration, and the statistics beside them."""

from calib_serve.monitor.drift.detector import (
    ARL,
    BLOCK,
    TOLERANCE,
    Alarm,
    Detector,
    ShiftedBin,
    ShiftedClass,
)
from calib_serve.monitor.drift.statistics import ConfidenceShift

__all__ = [
    "ARL",
    "BLOCK",
    "TOLERANCE",
    "Alarm",
    "ConfidenceShift",
    "Detector",
    "ShiftedBin",
    "ShiftedClass",
]
