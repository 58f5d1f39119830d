"""InputShift: one Add in front of the graph, or a part of the normalisation that is put there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from calib_serve.artifact import InputShift
from calib_serve.core.arrays import Floats
from calib_serve.core.errors import FuseError
from calib_serve.fuse.onnx._graph import FLOATS, Editor, dtype_of, users


@dataclass(frozen=True, eq=False)
class Normalization:
    """(x - mean) / std, per channel (C,) or a number: the preprocessing that a graph expects."""

    mean: Floats
    std: Floats

    def __post_init__(self) -> None:
        mean, std = np.asarray(self.mean, np.float64), np.asarray(self.std, np.float64)
        sizes = {mean.size, std.size, 1}
        fit = mean.ndim < 2 and std.ndim < 2 and len(sizes) < 3 and 0 not in sizes
        if not (fit and np.isfinite(mean).all() and np.isfinite(std).all()):
            raise FuseError(
                "the mean and std of --normalization MEAN,STD must be one number or one per "
                f"channel, got {mean} and {std}"
            )
        if (std <= 0).any():
            raise FuseError(f"the std of --normalization MEAN,STD must be positive, got {std}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    @classmethod
    def of(cls, given: Normalization | str | None) -> Normalization | None:
        """Read "MEAN,STD", channels separated by "/"; a Normalization or None passes through.

        >>> Normalization.of(".485/.456/.406,.25").std.tolist()
        [0.25]
        """
        if not isinstance(given, str):
            return given
        try:
            mean, std = ([float(n) for n in part.split("/")] for part in given.split(","))
        except ValueError:
            raise FuseError(
                f"--normalization MEAN,STD is MEAN,STD, channels separated by /: got {given!r}"
            ) from None
        return cls(np.array(mean), np.array(std))

    def shaped(self, rank: int) -> tuple[Floats, Floats]:
        """Mean and std that broadcast against (n, C, ...) of this rank."""
        shape = (1, -1, *(1,) * (rank - 2))
        return self.mean.reshape(shape), self.std.reshape(shape)


def shifted_input(editor: Editor, shape: tuple[int, ...] | None, name: str | None) -> ir.Value:
    """Find the graph input a shift of ``shape`` belongs to: by name, or the only floating one that fits."""
    inputs = [v for v in editor.graph.inputs if not v.is_initializer()]
    if name is not None and name not in [v.name for v in inputs]:
        raise FuseError(
            f"the graph has no input {name!r}; --input-name NAME is one of {[v.name for v in inputs]}"
        )
    named = [v for v in inputs if name in (None, v.name)]
    tensors = [v for v in named if isinstance(v.type, ir.TensorType) and v.dtype in FLOATS]
    fits = [v for v in tensors if shape is None or _fits(v.shape, shape)]
    if len(fits) == 1:
        return fits[0]
    have = ", ".join(f"{v.name!r} {v.type} {v.shape}" for v in named)
    if not fits:
        raise FuseError(
            f"no floating-point input takes a shift of shape {shape}; the graph has {have}; "
            "the artifact is of another model, or another input takes it: --input-name NAME"
        )
    raise FuseError(f"several inputs take the shift: {have}; name one: --input-name NAME")


def _fits(actual: ir.Shape | None, shape: tuple[int, ...]) -> bool:
    assert actual is not None  # onnx's checker wants the rank of inputs
    dims = list(actual)[1:]
    return len(actual) == len(shape) + 1 and all(
        not isinstance(d, int) or d == s for d, s in zip(dims, shape, strict=True)
    )


def shift_input(
    editor: Editor, value: ir.Value, step: InputShift | None, normalization: Normalization | None
) -> str:
    """Put the shift before the graph: clip((x - mean) / std + delta) in place of x; describe the edit."""
    if normalization is not None:
        return _prefix(editor, value, step, normalization)
    assert step is not None  # the plan has a shift, or a normalisation
    if step.is_nothing:
        return "the shift is zero: nothing to do"
    _insert(editor, value, [("Add", step.delta[None].astype(np.float64))], step)
    return f"shift added to input {value.name!r}" + ("" if step.low is None else " and clipped")


def _prefix(editor: Editor, value: ir.Value, step: InputShift | None, normal: Normalization) -> str:
    assert value.shape is not None  # as of all inputs
    if len(value.shape) < 2:
        raise FuseError(
            f"--normalization MEAN,STD needs an input (n, C, ...), {value.name!r} is {value.shape}"
        )
    # The shift goes into the mean: normalisation and shift together cost what the first alone does.
    mean, std = normal.shaped(len(value.shape))
    channels, given = value.shape[1], max(mean.size, std.size)
    if isinstance(channels, int) and given not in (1, channels):
        raise FuseError(f"the input {value.name!r} has {channels} channels, --normalization MEAN,STD {given}")
    if step is not None:
        mean = mean - step.delta[None].astype(np.float64) * std  # (x - m) / s + d = (x - (m - d s)) / s
    _insert(editor, value, [("Sub", mean), ("Div", std)], step)
    what = f"normalisation put before input {value.name!r}"
    return what if step is None else f"{what}, the shift in its mean"


def _insert(editor: Editor, value: ir.Value, work: list[tuple[str, Floats]], step: InputShift | None) -> None:
    dtype, readers, new = dtype_of(value), users(value), value
    for op, numbers in work:
        new = editor.node(op, [new, editor.number(numbers, dtype, op.lower())])
    if step is not None and step.low is not None:
        ends = [editor.number(end, dtype, "clip") for end in (step.low, step.high)]
        new = editor.node("Clip", [new, *ends])
    editor.move(value, new, readers)
