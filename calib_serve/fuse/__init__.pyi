"""Fuse a model and an artifact into a calibrated model. What is here knows steps, not algorithms."""

from calib_serve.fuse._kinds import change_to_fitted as change_to_fitted
from calib_serve.fuse._kinds import check_multilabel as check_multilabel
from calib_serve.fuse.onnx._fuse import FuseReport as FuseReport
from calib_serve.fuse.onnx._fuse import fuse_onnx as fuse_onnx
from calib_serve.fuse.proof import ROWS as ROWS
from calib_serve.fuse.proof import Against as Against
from calib_serve.fuse.proof import proof_in as proof_in
from calib_serve.fuse.proof import required_proof as required_proof
from calib_serve.fuse.torch._file import TorchReport as TorchReport
from calib_serve.fuse.torch._file import fuse_torch as fuse_torch
from calib_serve.fuse.torch._fuse import calibrated as calibrated
from calib_serve.fuse.triton._repository import fuse_triton as fuse_triton
from calib_serve.models.sessions import open_session as open_session
