"""Triton model repositories."""
