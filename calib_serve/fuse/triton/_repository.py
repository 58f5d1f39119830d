"""A Triton model repository from a model and its artifact: fused, configured, warmed up, monitored.

Clients call the ensemble ``NAME``: ``NAME_onnx`` is the fused graph on the onnxruntime backend,
``NAME_receipts`` signs a receipt for every prediction and counts it on Triton's metrics port. On the Python
backend the model ``NAME`` does both by itself, with the same tensors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, InputError
from calib_serve.core.options.base import changed, fields_of
from calib_serve.core.options.fuse import GraphOptions, TritonOptions
from calib_serve.fuse.onnx._fuse import FuseReport, fuse_onnx
from calib_serve.fuse.triton._config import (
    LABELS,
    GraphTensor,
    Signature,
    ensemble,
    graph,
    python,
    receipts,
)
from calib_serve.fuse.triton._publish import Pack, staging_folder, writing
from calib_serve.fuse.triton.step import VERSION

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import TritonKeywords


BACKEND = '''"""{what}."""

from calib_serve.fuse.triton.{module} import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''

KEPT = "An ensemble has no file of its own; this one keeps its folder in git and object stores.\n"


def fuse_triton(
    model: str | Path,
    artifact: Artifact,
    repository: str | Path,
    options: TritonOptions | None = None,
    *,
    name: str,
    **keywords: Unpack[TritonKeywords],
) -> FuseReport:
    """Fuse an ONNX model and put it into a repository of Triton.

    Where the graph's batch is fixed, the report warns that Triton makes no batches. Models and versions that
    are there stay as they are, also where this raises or is killed.

    Args:
        model: The model, .onnx.
        artifact: The calibration that was fitted on this model's scores.
        repository: The folder of the models that Triton serves.
        options: A ``TritonOptions``; keywords replace its fields.
        name: The model's name in Triton; the fused graph becomes a version of it.
        **keywords: Fields of ``TritonOptions``: ``against``, ``backend``, ``decisions``,
            ``device``, ``inputs``, ``max_batch``, ``output_name``, ``outputs``,
            ``receipts``, ``unproven``, ``version``.

    Raises:
        InputError: For an invalid name or options.
        FuseError: As ``fuse_onnx``, and where the version is there, or differs from the others in settings
            that all of them share.
        ModelError: As ``fuse_onnx``.
    """
    settings = changed(options or TritonOptions(), keywords, fuse_triton)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(f"a name (--name, name=) is letters, digits, _ . and -, got {name!r}")
    if artifact.model.class_axis is not None and settings.receipts:
        raise FuseError(
            "the artifact is of tokens or pixels, and Triton's step signs one receipt a sample: say "
            "--no-receipts (receipts=False), and report artifact.one_place of the probabilities"
        )
    models = (f"{name}_onnx", f"{name}_receipts", name) if settings.ensemble else (name,)
    root = Path(repository).resolve()
    with staging_folder(root) as place:
        pack = Pack(place, root, name, settings.version, models)
        pack.check()
        graph = fields_of(GraphOptions, settings)
        onnx_file = pack.folder(models[0]) / "model.onnx"
        # All results, as receipts need the confidence and class whatever a client asks for.
        report = fuse_onnx(model, artifact, onnx_file, returns="all", **graph)
        with writing(root):
            batch = _configure(pack, artifact, settings)
            kept = pack.publish()
    return replace(report, done=(*report.done, *batch, *kept))


def _configure(pack: Pack, artifact: Artifact, settings: TritonOptions) -> list[str]:
    """Write the settings of all models; return the warning of a batch that is fixed, if it is."""
    path = pack.folder(pack.models[0]) / "model.onnx"
    chosen = artifact.choice.actions if artifact.choice is not None and settings.decisions else ()
    found = Signature.of(path, settings, chosen)
    bins = 15 if artifact.reference is None else len(artifact.reference)
    labels = artifact.class_names or tuple(map(str, range(artifact.classes)))
    for model in {pack.models[0], pack.name}:  # all that show probabilities
        lines = (f"{' '.join(label.split())}\n" for label in labels)
        (pack.folder(model).parent / LABELS).write_text("".join(lines), encoding="utf-8")
    if settings.ensemble:
        inner, step, _ = pack.models
        _tell_version(path, pack.version)
        told = GraphTensor(VERSION, "TYPE_INT64", found.predicted.dims)
        pack.configure(inner, graph(inner, found, settings, more=[told]))
        code = BACKEND.format(what="Signs and counts the predictions of the model beside it", module="step")
        (pack.folder(step) / "model.py").write_text(code, encoding="utf-8")
        pack.configure(step, receipts(step, pack.name, found, bins=bins, multilabel=artifact.is_multilabel))
        (pack.folder(pack.name) / "ensemble.txt").write_text(KEPT, encoding="utf-8")
        pack.configure(pack.name, ensemble(pack.name, inner, step, found))
    elif settings.backend == "python":
        what = "Runs the graph beside it with onnxruntime, signs and counts its predictions"
        code = BACKEND.format(what=what, module="graph")
        (pack.folder(pack.name) / "model.py").write_text(code, encoding="utf-8")
        pack.configure(
            pack.name, python(pack.name, found, settings, bins=bins, multilabel=artifact.is_multilabel)
        )
    else:
        pack.configure(pack.name, graph(pack.name, found, settings))
    fixed = {t.name: t.dims[0] for t in found.inputs if t.dims[0] != -1}
    if not fixed or not settings.max_batch:
        return []
    axes = ", ".join(f"{name!r}: {{0: 'batch'}}" for name in fixed)
    sizes = ", ".join(map(str, sorted({*fixed.values()})))
    return [
        f"warning: the graph's batch is fixed at {sizes}: Triton gets max_batch_size 0, and "
        f"max_batch={settings.max_batch} has no effect; export the model with a free "
        f"batch, in torch: dynamic_axes={{{axes}}}"
    ]


def _tell_version(path: Path, version: int) -> None:
    """Add the output VERSION: the model's version, once a prediction.

    While Triton changes versions, a graph may run beside the step of another version.
    """
    model = onnx.load(path, load_external_data=False)
    (predicted,) = (v for v in model.graph.output if v.name == "predicted")
    number = helper.make_tensor("value", TensorProto.INT64, [1], [version])
    shape = f"{VERSION}.shape"
    model.graph.node.extend(
        [
            helper.make_node("Shape", ["predicted"], [shape]),
            helper.make_node("ConstantOfShape", [shape], [VERSION], value=number),
        ]
    )
    told = onnx.ValueInfoProto()
    told.CopyFrom(predicted)
    told.name = VERSION
    model.graph.output.append(told)
    onnx.save(model, path)
