"""Fusion into a torch module, a TorchScript or a torch.export file."""

from calib_serve.fuse.torch._modules import layers
from calib_serve.fuse.torch.file import TorchReport, fuse_torch
from calib_serve.fuse.torch.module import calibrated

__all__ = ["TorchReport", "calibrated", "fuse_torch", "layers"]
