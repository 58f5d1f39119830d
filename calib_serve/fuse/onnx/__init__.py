"""Fuse an artifact into an ONNX graph: passes that each edit one place, then the proof."""

from calib_serve.fuse.onnx._fuse import FuseReport, fuse_onnx
from calib_serve.fuse.onnx._input_shift import Normalization

__all__ = ["FuseReport", "Normalization", "fuse_onnx"]
