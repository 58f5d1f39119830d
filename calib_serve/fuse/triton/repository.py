"""A Triton model repository from a model and its artifact: fused, configured, warmed up and monitored.

Clients call the ensemble ``NAME``: ``NAME_onnx`` is the fused graph on the onnxruntime backend,
``NAME_receipts`` signs a receipt for every prediction and counts it on Triton's metrics port. On the Python
backend the model ``NAME`` does both by itself, with the same tensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.fuse.onnx import FuseReport, Normalization, fuse_onnx
from calib_serve.fuse.onnx.graph import given_inputs
from calib_serve.fuse.triton.batch import free_batch
from calib_serve.fuse.triton.models import (
    LABELS,
    VERSION,
    Settings,
    Signature,
    Tensor,
    ensemble,
    graph,
    python,
    receipts,
)
from calib_serve.fuse.triton.publish import Pack, prepared, writing
from calib_serve.scores import Outputs

__all__ = ["fuse_triton"]

BACKEND = '''"""Signs and counts the predictions of the model beside it."""

from calib_serve.serve.triton import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''

GRAPH_BACKEND = '''"""Runs the graph beside it with onnxruntime, signs and counts its predictions."""

from calib_serve.serve.triton_graph import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''

KEPT = "An ensemble has no file of its own; this one keeps its folder in git and object stores.\n"


def fuse_triton(
    model: str | Path,
    artifact: Artifact,
    repository: str | Path,
    *,
    name: str,
    version: int = 1,
    settings: Settings | None = None,
    outputs: Outputs | None = None,
    output_name: str | None = None,
    input_name: str | None = None,
    features: str | None = None,
    normalization: Normalization | None = None,
    inputs: Mapping[str, NDArray[Any]] | str | Path | None = None,
    samples: int = 8,
    decisions: bool = True,
    strict: bool = False,
    force: bool = False,
) -> FuseReport:
    """Fuse ``model`` and put it under ``repository`` as version ``version`` of ``name``.

    The options from ``outputs`` on are those of ``fuse_onnx``. A batch that is fixed at 1 is made free where
    rows together give what each gives alone, by the graph and on rows that are run, that of ``inputs`` among
    them; else the report warns that Triton makes no batches. Models and versions that are there stay as they
    are, also where this raises or is killed. Raises what ``fuse_onnx`` raises, InputError for an invalid
    name, FuseError where the version is there, or differs from the others in what all of them share.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name) or version < 1:
        raise InputError(
            f"a name is letters, digits, _ . and -, a version 1 or more; got {name!r}, {version}"
        )
    settings = settings or Settings()
    models = (f"{name}_onnx", f"{name}_receipts", name) if settings.ensemble else (name,)
    root = Path(repository).resolve()
    with prepared(root) as place:
        pack = Pack(place, root, name, version, models)
        pack.check()
        report = fuse_onnx(
            model,
            artifact,
            pack.folder(models[0]) / "model.onnx",
            returns="all",
            outputs=outputs,
            output_name=output_name,
            input_name=input_name,
            features=features,
            normalization=normalization,
            inputs=inputs,
            samples=samples,
            decisions=decisions,
            strict=strict,
            force=force,
        )
        batch = free_batch(pack.folder(models[0]) / "model.onnx", settings.max_batch, given_inputs(inputs))
        with writing(root):
            _configure(pack, artifact, settings)
            kept = pack.publish()
    return replace(report, done=(*report.done, *batch, *kept))


def _configure(pack: Pack, artifact: Artifact, settings: Settings) -> None:
    path = pack.folder(pack.models[0]) / "model.onnx"
    found = Signature.of(path, settings)
    bins = 15 if artifact.reference is None else len(artifact.reference)
    _write_labels(pack, artifact)
    if settings.ensemble:
        inner, step, _ = pack.models
        _tell_version(path, pack.version)
        told = Tensor(VERSION, "TYPE_INT64", found.predicted.dims)
        pack.configure(inner, graph(inner, found, settings, more=[told]))
        (pack.folder(step) / "model.py").write_text(BACKEND, encoding="utf-8")
        pack.configure(step, receipts(step, pack.name, found, bins=bins, multilabel=artifact.is_multilabel))
        (pack.folder(pack.name) / "ensemble.txt").write_text(KEPT, encoding="utf-8")
        pack.configure(pack.name, ensemble(pack.name, inner, step, found))
    elif settings.backend == "python":
        (pack.folder(pack.name) / "model.py").write_text(GRAPH_BACKEND, encoding="utf-8")
        pack.configure(
            pack.name, python(pack.name, found, settings, bins=bins, multilabel=artifact.is_multilabel)
        )
    else:
        pack.configure(pack.name, graph(pack.name, found, settings))


def _write_labels(pack: Pack, artifact: Artifact) -> None:
    """The names of the classes, one a line, beside every model that shows probabilities."""
    labels = artifact.class_names or tuple(map(str, range(artifact.classes)))
    for model in {pack.models[0], pack.name}:
        path = pack.folder(model).parent / LABELS
        path.write_text("".join(f"{' '.join(label.split())}\n" for label in labels), encoding="utf-8")


def _tell_version(path: Path, version: int) -> None:
    """Add the output VERSION, as many numbers as predictions.

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
