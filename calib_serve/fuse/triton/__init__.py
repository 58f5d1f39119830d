"""Triton model repositories."""

from calib_serve.fuse.triton.repository import fuse_triton
from calib_serve.fuse.triton.settings import Settings

__all__ = ["Settings", "fuse_triton"]
