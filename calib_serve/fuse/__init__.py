"""Fusers: a model and an artifact in, a calibrated model out. They know steps, never algorithms."""
