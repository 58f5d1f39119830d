"""A network as people export it today: torch.export's .pt2, and ONNX made of it."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

__all__ = ["export"]


def export(network: torch.nn.Module, shape: tuple[int, ...], stem: Path, *, any_batch: bool = True) -> None:
    """Write ``stem``.pt2 and ``stem``.onnx of a network whose one input is of ``shape``."""
    free = ({0: torch.export.Dim("n")},) if any_batch else None
    example = (torch.zeros(2 if any_batch else 1, *shape),)
    with warnings.catch_warnings():  # torch deprecates parts of itself
        warnings.simplefilter("ignore")
        program = torch.export.export(network.eval(), example, dynamic_shapes=free)
        torch.export.save(program, f"{stem}.pt2")
        torch.onnx.export(program, external_data=False, verbose=False).save(f"{stem}.onnx")
