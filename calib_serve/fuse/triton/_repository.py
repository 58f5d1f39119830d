"""A Triton model repository from a model and its artifact: fused, configured, warmed up, monitored.

Clients call the ensemble ``NAME``: ``NAME_onnx`` is the fused graph on the onnxruntime backend,
``NAME_receipts`` signs a receipt for every prediction and counts it on Triton's metrics port. On the Python
backend the model ``NAME`` does both by itself, with the same tensors.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from calib_serve.artifact import Artifact
from calib_serve.core.errors import FuseError, InputError
from calib_serve.core.files import read_whole
from calib_serve.core.options.base import changed, fields_of
from calib_serve.core.options.fuse import GraphOptions, TritonOptions
from calib_serve.fuse._parity import read_inputs
from calib_serve.fuse.onnx._fuse import FuseReport, fuse_onnx
from calib_serve.fuse.triton._batch import free_batch
from calib_serve.fuse.triton._config import (
    LABELS,
    VERSION,
    Block,
    GraphTensor,
    Signature,
    ensemble,
    fields,
    graph,
    python,
    receipts,
    text,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import TritonKeywords

BACKEND = '''"""Signs and counts the predictions of the model beside it."""

from calib_serve.fuse.triton.step import TritonPythonModel

__all__ = ["TritonPythonModel"]
'''

GRAPH_BACKEND = '''"""Runs the graph beside it with onnxruntime, signs and counts its predictions."""

from calib_serve.fuse.triton.graph import TritonPythonModel

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

    A batch that is fixed at 1 is made free where rows together give what each gives alone, by the graph and
    on rows that are run, that of ``inputs`` among them; else the report warns that Triton makes no batches.
    Models and versions that are there stay as they are, also where this raises or is killed.

    Args:
        model: The model, .onnx.
        artifact: The calibration that was fitted on this model's scores.
        repository: The folder of the models that Triton serves.
        options: A ``TritonOptions``; keywords replace its fields.
        name: The model's name in Triton; the fused graph becomes a version of it.
        **keywords: Fields of ``TritonOptions``: ``backend``, ``decisions``, ``delay``, ``device``,
            ``features``, ``force``, ``input_name``, ``inputs``, ``instances``, ``max_batch``,
            ``normalization``, ``output_name``, ``outputs``, ``receipts``, ``samples``, ``strict``,
            ``tensorrt``, ``trt_cache``, ``trt_level``, ``trt_workspace``, ``version``, ``versions``.

    Raises:
        InputError: For an invalid name or options.
        FuseError: As ``fuse_onnx``, and where the version is there, or differs from the others in settings
            that all of them share.
        ModelError: As ``fuse_onnx``.
    """
    settings = changed(options or TritonOptions(), keywords, fuse_triton)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name):
        raise InputError(f"a name (--name, name=) is letters, digits, _ . and -, got {name!r}")
    models = (f"{name}_onnx", f"{name}_receipts", name) if settings.ensemble else (name,)
    root = Path(repository).resolve()
    with _staging_folder(root) as place:
        pack = Pack(place, root, name, settings.version, models)
        pack.check()
        graph = fields_of(GraphOptions, settings)
        onnx_file = pack.folder(models[0]) / "model.onnx"
        # All results, as receipts need the confidence and class whatever a client asks for.
        report = fuse_onnx(model, artifact, onnx_file, returns="all", **graph)
        batch = free_batch(onnx_file, settings.max_batch, read_inputs(settings.inputs))
        with writing(root):
            _configure(pack, artifact, settings)
            kept = pack.publish()
    return replace(report, done=(*report.done, *batch, *kept))


def _configure(pack: Pack, artifact: Artifact, settings: TritonOptions) -> None:
    path = pack.folder(pack.models[0]) / "model.onnx"
    found = Signature.of(path, settings)
    bins = 15 if artifact.reference is None else len(artifact.reference)
    _write_labels(pack, artifact)
    if settings.ensemble:
        inner, step, _ = pack.models
        _tell_version(path, pack.version)
        told = GraphTensor(VERSION, "TYPE_INT64", found.predicted.dims)
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
    """Write the names of the classes, one a line, beside every model that shows probabilities."""
    labels = artifact.class_names or tuple(map(str, range(artifact.classes)))
    for model in {pack.models[0], pack.name}:
        path = pack.folder(model).parent / LABELS
        path.write_text("".join(f"{' '.join(label.split())}\n" for label in labels), encoding="utf-8")


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


# --- So that a server never sees half of a model ----------------------------------------------------


CONFIG = "config.pbtxt"

SHARED = ("backend", "platform", "max_batch_size", "input", "output", "parameters", "ensemble_scheduling")
"""The fields of a config that all versions of a model must agree in."""


@contextmanager
def _staging_folder(root: Path) -> Iterator[Path]:
    """Make an empty folder beside the repository ``root``, for one process at a time; removed afterwards."""
    place, lock = (root.parent / f".{root.name}.{what}" for what in ("staging", "lock"))
    with ExitStack() as held:
        with writing(root):
            root.parent.mkdir(parents=True, exist_ok=True)
            # It stays: who removes a lock may remove one that another process has just taken.
            _wait_for(held.enter_context(lock.open("a")).fileno())
            shutil.rmtree(place, ignore_errors=True)  # left by a process that was killed
            place.mkdir()
            held.callback(shutil.rmtree, place, ignore_errors=True)
            if root.exists() and root.stat().st_dev != place.stat().st_dev:
                raise FuseError(
                    f"{root} is a file system of its own, and Triton would take an unfinished pack in it for "
                    f"a model; make the repository a folder in it: --out {root / 'models'} (repository=)"
                )
        yield place


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turn an OSError into the FuseError that ``root`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise FuseError(f"cannot write {root}: {error}") from error


def _wait_for(file: int) -> None:
    try:
        import fcntl  # noqa: PLC0415 - not on every platform
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX)


@dataclass(frozen=True)
class Pack:
    """A ``version`` of the model ``name`` on its way into ``root``, prepared in ``place``.

    ``models``: its folders, the one that clients call last; each stands on those before it alone.
    """

    place: Path
    root: Path
    name: str
    version: int
    models: tuple[str, ...]

    def folder(self, model: str) -> Path:
        """Make the folder that the version of one of its models is written to."""
        path = self.place / model / str(self.version)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def configure(self, model: str, config: Block) -> None:
        """Write the settings of one model, marked with their origin."""
        (self.place / model / CONFIG).write_text(f"{self._mark}\n{text(config)}", encoding="utf-8")

    def check(self) -> None:
        """Raise FuseError if the version is served, or a foreign folder of the same name exists."""
        first, path = self.models[0], self.root / self.models[0] / str(self.version)
        if self._begun and path.exists():
            raise FuseError(f"{path} exists; a served version must not change: choose another --version")
        for model in self.models:
            path = self.root / model
            if path.exists() and not self._begun and not self._is_ours(path):
                raise FuseError(f"{path} is there, and no part of {self.name!r}; choose another --name")
        if self._begun and not (self.root / first / CONFIG).is_file():
            raise FuseError(
                f"{self.root / self.name} is there without {first}, so it was packed otherwise; "
                "choose another --name, or the same options"
            )

    def publish(self) -> list[str]:
        """Move the version in; return the settings kept. FuseError where a served version would change."""
        if not self._begun:
            self._move_models()
            return []
        kept = [one for model in self.models for one in self._compare(model)]
        self._move_versions()
        return kept

    @property
    def _mark(self) -> str:
        return f"# calib-serve fuse triton: {json.dumps(self.name)}"

    @property
    def _begun(self) -> bool:
        """Whether the model is served: the folder that clients call is moved in last."""
        return (self.root / self.name / CONFIG).is_file()

    def _is_ours(self, path: Path) -> bool:
        config = path / CONFIG
        return config.is_file() and _written(config).startswith(f"{self._mark}\n")

    def _move_models(self) -> None:
        """Move a new model in, folder by folder; the folder that clients call is the last."""
        self.root.mkdir(parents=True, exist_ok=True)
        for model in self.models:
            if (self.root / model).exists():  # of a pack that was stopped
                _move(self.root / model, self.place / f"{model}.old")
            _move(self.place / model, self.root / model)

    def _move_versions(self) -> None:
        """Move another version in: the graph last, as the steps behind it take the version from it."""
        for model in reversed(self.models):
            new = self.root / model / str(self.version)
            if not new.exists():
                _move(self.place / model / str(self.version), new)

    def _compare(self, model: str) -> Iterator[str]:
        """Yield differences between served and new settings; the served settings are kept."""
        path = self.root / model / CONFIG
        if not path.is_file():
            raise FuseError(f"{path} is missing; choose another --name")
        old, new = (_config(p) for p in (path, self.place / model / CONFIG))
        # Triton reads one config for all versions: a new one must not change what is served.
        differing = _differing(old, new, SHARED)
        for file in sorted(
            p.name for p in (self.place / model).iterdir() if p.is_file() and p.name != CONFIG
        ):
            one, other = self.root / model / file, self.place / model / file
            if not one.is_file() or one.read_bytes() != other.read_bytes():
                differing.append(file)
        if differing:
            raise FuseError(
                f"{path.parent} is served with another {', '.join(differing)}, which its versions share; "
                "choose another --name, or the same options"
            )
        for field in _differing(old, new, [f for f in new if f not in SHARED]):
            yield f"{model}/{CONFIG} kept, with its own {field}: it holds for all versions"


def _config(path: Path) -> Mapping[str, list[str]]:
    return fields(_written(path))


def _written(path: Path) -> str:
    try:
        return read_whole(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FuseError(f"cannot read the settings {path}: {error}") from error


def _differing(
    one: Mapping[str, list[str]], other: Mapping[str, list[str]], names: Sequence[str]
) -> list[str]:
    return [name for name in names if one.get(name) != other.get(name)]


# A rename within one file system is atomic: hence the staging folder beside the repository.
def _move(old: Path, new: Path) -> None:
    old.rename(new)
