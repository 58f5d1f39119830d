"""Whether a GPU is here, by its driver: asked of the program under test, a broken CUDA would be "no GPU".

``CALIB_SERVE_GPU=require`` is for machines that are known to have one: there, what wants a GPU runs, and
fails where it finds none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec

import onnxruntime
import pytest


def required() -> bool:
    """Whether tests that want a GPU must not be skipped."""
    told = os.environ.get("CALIB_SERVE_GPU", "")
    if told not in ("", "require"):
        raise ValueError(f"CALIB_SERVE_GPU is unset or 'require', got {told!r}")
    return told == "require"


def driver_lists_a_gpu() -> bool:
    """What ``nvidia-smi -L`` says."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    told = subprocess.run([program, "-L"], check=False, capture_output=True, text=True, timeout=60)
    return told.returncode == 0 and told.stdout.startswith("GPU ")


GPU = required() or driver_lists_a_gpu()
_ORT = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
_TORCH = False
if find_spec("torch") is not None:  # which other versions are tested without
    import torch

    _TORCH = torch.version.cuda is not None

# A build without CUDA cannot use a GPU that is there, and that is no defect: unless one is required.
needs_gpu_of_onnxruntime = pytest.mark.skipif(
    not (required() or (GPU and _ORT)), reason="no GPU by nvidia-smi, or an onnxruntime without CUDA"
)
needs_gpu_of_torch = pytest.mark.skipif(
    not (required() or (GPU and _TORCH)), reason="no GPU by nvidia-smi, or a torch without CUDA"
)
without_gpu = pytest.mark.skipif(
    GPU and _ORT, reason="there is a GPU; what happens without one is tested elsewhere"
)
