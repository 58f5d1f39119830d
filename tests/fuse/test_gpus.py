"""Whether tests that want a GPU run is decided by the driver, and can be required."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import driver_lists_a_gpu, required


@pytest.mark.parametrize(
    ("says", "there"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", True),
        ("echo 'No devices were found'; exit 6", False),
        ("echo 'NVIDIA-SMI has failed because it could not talk to the driver'; exit 9", False),
    ],
)
def test_a_gpu_is_here_where_its_driver_lists_one(says: str, there: bool, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    assert driver_lists_a_gpu(str(tmp_path)) is there


def test_without_a_driver_there_is_none(tmp_path: Path) -> None:
    assert not driver_lists_a_gpu(str(tmp_path))


def test_a_gpu_can_be_required_and_a_misspelt_wish_is_told() -> None:
    assert required({"CALIB_SERVE_GPU": "require"})
    assert not required({})
    with pytest.raises(ValueError, match="unset or 'require'"):
        required({"CALIB_SERVE_GPU": "yes"})
