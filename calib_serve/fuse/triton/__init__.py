"""Triton model repositories."""

from calib_serve.fuse.triton.models import Settings
from calib_serve.fuse.triton.repository import fuse_triton

__all__ = ["Settings", "fuse_triton"]
