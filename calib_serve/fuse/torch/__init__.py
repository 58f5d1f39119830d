"""Fuse an artifact into a torch module, a TorchScript or a torch.export file."""

from calib_serve.fuse.torch._file import TorchReport, fuse_torch
from calib_serve.fuse.torch._fuse import calibrated

__all__ = ["TorchReport", "calibrated", "fuse_torch"]
