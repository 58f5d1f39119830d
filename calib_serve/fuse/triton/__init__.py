"""Triton model repositories."""

from calib_serve.fuse.triton._repository import fuse_triton

__all__ = ["fuse_triton"]
