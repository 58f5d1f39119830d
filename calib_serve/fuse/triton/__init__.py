"""Triton model repositories."""

from calib_serve.fuse.triton.repository import Settings, fuse_triton

__all__ = ["Settings", "fuse_triton"]
