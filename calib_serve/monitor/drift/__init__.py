"""Detectors of a change in calibration, and the statistics beside them."""
