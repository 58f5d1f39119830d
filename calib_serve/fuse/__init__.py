"""Fuse a model and an artifact into a calibrated model. What is here knows steps, not algorithms."""
