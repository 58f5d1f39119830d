"""Fusers: a model and an artifact in, a calibrated model out. They depend on steps, not on algorithms."""
