"""Fitters: calibration data in, an artifact out."""
