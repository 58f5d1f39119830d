"""Fuse a model and an artifact into a calibrated model. Fusion knows steps, not fitting methods."""
