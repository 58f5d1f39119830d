"""Triton model repositories."""

from calib_serve.fuse.triton.repository import Settings, write_repository

__all__ = ["Settings", "write_repository"]
