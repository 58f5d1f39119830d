"""Programs of torch.export, in .pt2 files."""

from __future__ import annotations

import json
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calib_serve.core.errors import ModelError


def load_exported(path: Path, extra: dict[str, Any] | None = None) -> torch.export.ExportedProgram:
    """Load a program; ModelError, with what the file shows of why, if it does not load.

    Args:
        path: The file.
        extra: Names of files beside it, whose contents are put in; None: none.
    """
    try:
        return torch.export.load(path, extra_files=extra)
    except Exception as error:  # its loader raises errors of many types
        told = f"{str(error).strip().partition(chr(10))[0]}{_why(path)}"
        raise ModelError(f"cannot load the exported program {path}: {told}") from error


def _why(path: Path) -> str:
    """Say what a file shows of why it does not load; "" where that is nothing."""
    with (
        suppress(OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile),
        zipfile.ZipFile(path) as file,
    ):
        names = file.namelist()
        if any("/data/aotinductor/" in name for name in names):
            return (
                "; it was compiled by AOTInductor, and has no graph to change: take the .pt2 of torch.export "
                "that it was compiled from, then compile the result"
            )
        for name in (name for name in names if name.endswith("/models/model.json")):
            by = json.loads(file.read(name))["torch_version"]
            if by != torch.__version__:
                return f"; it is of torch {by}, and this is {torch.__version__}: export it by this one"
    return ""


def module_on(program: torch.export.ExportedProgram, device: torch.device | str) -> nn.Module:
    """Make a program's module on a device, with the constants and devices that ``to`` leaves behind.

    Args:
        program: The program.
        device: The device.
    """
    where = torch.device(device)
    if where.type == "cpu":
        return program.module()
    from torch.export.passes import move_to_device_pass  # noqa: PLC0415 - only where it is needed

    return move_to_device_pass(program, where).module()


def input_sizes(program: torch.export.ExportedProgram) -> tuple[int | None, ...]:
    """The sizes that a program of one tensor was exported for, with the batch; None is any size."""
    found = _inputs(program)
    if len(found) != 1:
        return ()
    return tuple(size if isinstance(size, int) else None for size in found[0].shape)


def batch_range(program: torch.export.ExportedProgram) -> tuple[int, int]:
    """How many samples a program takes at once, at least and at most.

    Torch bounds a size that was left free by 2, and then checks nothing: that is no least.
    """
    size = next((tensor.shape[0] for tensor in _inputs(program) if tensor.ndim), None)
    if isinstance(size, int):
        return size, size
    free = program.range_constraints.get(getattr(getattr(size, "node", None), "expr", None))
    if free is None:
        return 1, sys.maxsize
    least = int(free.lower)
    return least if least > 2 else 1, int(min(free.upper, sys.maxsize))


def _inputs(program: torch.export.ExportedProgram) -> list[torch.Tensor]:
    names = program.graph_signature.user_inputs
    found = [node.meta.get("val") for node in program.graph.nodes if node.name in names]
    return [value for value in found if isinstance(value, torch.Tensor)]
