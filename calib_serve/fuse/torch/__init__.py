"""Fusion into a torch module, a TorchScript or a torch.export file."""

from calib_serve.fuse.torch._file import TorchReport, fuse_torch
from calib_serve.fuse.torch._fuse import calibrated
from calib_serve.fuse.torch._modules import layers

__all__ = ["TorchReport", "calibrated", "fuse_torch", "layers"]
