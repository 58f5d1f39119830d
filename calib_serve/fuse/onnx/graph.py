"""A calibrated ONNX file: the artifact's steps inside the graph, without new nodes where that is exact."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from numpy.typing import NDArray

from calib_serve.artifact import Artifact, Outputs
from calib_serve.errors import InputError
from calib_serve.files import sha256
from calib_serve.fuse.onnx.edit import Editor
from calib_serve.fuse.onnx.files import MARK, pending, read, write
from calib_serve.fuse.onnx.input_shift import Normalization
from calib_serve.fuse.onnx.outputs import Returns
from calib_serve.fuse.onnx.parity import generate, measure
from calib_serve.fuse.onnx.plan import Request, carry_out, make_plan
from calib_serve.fuse.owner import check_owner
from calib_serve.npz import read_npz

__all__ = ["FuseReport", "Normalization", "fuse_onnx"]


@dataclass(frozen=True)
class FuseReport:
    """The edits of the graph, and its distance from the calibration in numpy.

    ``done`` says where each step went. ``max_abs_diff`` is of probabilities, over ``samples``
    inputs; ``tolerance`` is what rounding in the model's own type allows.
    """

    done: tuple[str, ...]
    nodes_before: int
    nodes_after: int
    outputs: tuple[str, ...]
    max_abs_diff: float
    tolerance: float
    samples: int
    near_edge: int
    engine: str
    model: str
    artifact: str

    @property
    def folded(self) -> tuple[str, ...]:
        """The steps that added no node."""
        return tuple(what for what in self.done if "folded" in what or "head put into" in what)

    def rows(self) -> list[tuple[str, str]]:
        """For display: headings, which may be empty, and texts."""
        parity = (
            f"{self.max_abs_diff:.2g} at most on {self.samples} inputs, {self.tolerance:.2g} allowed "
            f"({self.engine})"
        )
        near = f"{self.near_edge} inputs near a table's edge left out"
        return [
            *(("", what) for what in self.done),
            ("nodes", f"{self.nodes_before} -> {self.nodes_after}"),
            ("outputs", ", ".join(self.outputs)),
            ("parity", parity),
            *([("", near)] if self.near_edge else []),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "folded": list(self.folded)}


def fuse_onnx(
    model_path: str | Path,
    artifact: Artifact,
    out_path: str | Path,
    *,
    returns: Returns = "same",
    outputs: Outputs | None = None,
    output_name: str | None = None,
    input_name: str | None = None,
    features: str | None = None,
    normalization: Normalization | None = None,
    inputs: Mapping[str, NDArray[Any]] | str | Path | None = None,
    samples: int = 8,
    force: bool = False,
) -> FuseReport:
    """Write ``model_path`` with the artifact inside to ``out_path``, atomically.

    ``returns``: "same" keeps names, shapes and meaning; "probabilities" puts (n, K) probabilities in
    the place of the scores; "all" puts logits, probabilities, confidence, predicted and bin there.
    ``outputs`` says what the scores are now, where no Softmax shows it, ``output_name`` which output
    holds them where several may, ``input_name`` which input is shifted, ``features`` the tensor a
    new head reads. ``normalization`` goes into the graph, before the shift. Parity is measured on
    ``inputs`` by name (or an npz of them), else on ``samples`` generated ones.

    Raises ModelError for an invalid model file, FuseError where a step cannot be put in,
    the artifact was fitted for another model (unless ``force``), or parity does not hold.
    """
    for name, value, allowed in (("returns", returns, Returns), ("outputs", outputs or "logits", Outputs)):
        if value not in get_args(allowed):
            raise InputError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")
    source, out = Path(model_path), Path(out_path)
    model, hashed = read(source), sha256(source)
    check_owner(artifact, hashed, source, force=force)
    nodes_before, editor = len(model.graph), Editor(model)
    plan = make_plan(
        editor, artifact, Request(returns, outputs, output_name, input_name, features, normalization)
    )
    done = carry_out(editor, plan)
    given = _arrays(inputs) if isinstance(inputs, (str, Path)) else inputs
    feeds = dict(given or generate(model.graph, samples=samples, shapes=plan.shapes))
    model.metadata_props[MARK] = artifact.fingerprint
    model.metadata_props["calib_serve.method"] = artifact.method
    model.metadata_props["calib_serve.model"] = hashed
    with pending(out) as partial:
        write(model, partial, source=source, out=out)
        probe = partial.with_name(f"{partial.name}.{secrets.token_hex(2)}.raw")
        try:
            quantized = _write_probe(source, probe, out, plan.source)
            parity = measure(probe, partial, plan, feeds, quantized=quantized)
        finally:
            probe.unlink(missing_ok=True)
    return FuseReport(
        done=done,
        nodes_before=nodes_before,
        nodes_after=len(model.graph),
        outputs=tuple(str(v.name) for v in model.graph.outputs),
        **vars(parity),
        model=hashed,
        artifact=artifact.fingerprint,
    )


def _arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    try:
        return read_npz(Path(path))[0]
    except ValueError as error:
        raise InputError(f"{path} is not an npz of inputs by name: {error}") from error


def _write_probe(source: Path, probe: Path, out: Path, wanted: str) -> bool:
    """Write the raw graph with one more output; returns whether it is quantised."""
    model = read(source)
    graph = model.graph
    if wanted not in [v.name for v in graph.outputs]:
        values = [v for node in graph for v in node.outputs] + list(graph.inputs)
        graph.outputs.append(next(v for v in values if v.name == wanted))
    write(model, probe, source=source, out=out, strict=False)
    return any(node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear") for node in graph)
