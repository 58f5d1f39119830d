"""Fusion into an ONNX graph, one pass per file."""

from calib_serve.fuse.onnx._fuse import FuseReport, fuse_onnx
from calib_serve.fuse.onnx._input_shift import Normalization

__all__ = ["FuseReport", "Normalization", "fuse_onnx"]
