"""When did calibration change: detectors and the statistics beside them."""

from calib_serve.watch.drift.detector import Alarm, Detector, Shifted
from calib_serve.watch.drift.shift import ConfidenceShift
from calib_serve.watch.drift.statistics import compare

__all__ = ["Alarm", "ConfidenceShift", "Detector", "Shifted", "compare"]
