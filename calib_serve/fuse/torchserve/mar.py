"""A model and its calibration as a TorchServe archive (.mar) that runs by itself."""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError, ModelError
from calib_serve.fuse.mar_options import SECTION, Kind, ModelOptions
from calib_serve.fuse.torchserve.archive import (
    CONFIG,
    Archive,
    read_archive,
    scratch,
    sha256_of,
    write_archive,
)
from calib_serve.fuse.torchserve.shipped_files import shipped

__all__ = ["Batching", "labelled_models", "pack", "pack_feedback"]


@dataclass(frozen=True)
class Batching:
    """How TorchServe runs a model; ``delay``: milliseconds a request may wait for company."""

    workers: int = 1
    batch_size: int = 8
    delay: int = 5
    timeout: int = 120

    def __post_init__(self) -> None:
        if not (self.workers >= 1 and self.batch_size >= 1 and self.delay >= 1 and self.timeout >= 1):
            raise FuseError(f"workers, batch size, delay and timeout must be at least 1, got {self}")


def pack(
    model: str | Path,
    artifact: Artifact | str | Path,
    out: str | Path,
    *,
    name: str,
    version: str = "1.0",
    weights: str | Path | None = None,
    input_shape: Sequence[int | None] | None = None,
    batching: Batching = Batching(),
    handler: str | Path | None = None,
    extra: Sequence[str | Path] = (),
    standalone: bool = False,
    **options: Any,
) -> Path:
    """Write ``out/name.mar``; the same inputs give the same bytes.

    ``model``: a TorchScript, .pt2 or .onnx file, or an eager model as ``module:factory`` (or
    ``file.py:factory``, which then travels along) with ``weights`` in a .safetensors file.
    ``handler``: an entry file of your own that subclasses ours. ``standalone``: carry the files of
    this package that a worker needs. ``options``: more fields of ``ModelOptions``. Raises FuseError
    when the model is not the one that the artifact was fitted on.
    """
    fitted = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    kind, path, factory, sources = _resolve(str(model), weights)
    entry = Path(handler) if handler else shipped("handlers/calibrated_classifier.py")
    with scratch() as folder:
        served = _fused_head(path, fitted, folder) if kind == "onnx" else path
        read = ModelOptions(
            kind=kind,
            model=f"model{path.suffix}",
            sha256=_checked_fingerprint(path, served, fitted),
            input_shape=_shape(input_shape, fitted),
            factory=factory,
            workers=batching.workers,
            **{**_known(fitted), **options},
        )
        files: dict[str, bytes | Path] = {
            read.model: served,
            entry.name: entry,
            CONFIG: _config(batching, read.as_dict()),
            **artifact_files(fitted, folder),
            **{Path(f).name: Path(f) for f in (*sources, *extra)},
            **(package_files("calib_serve.serve.classifier") if standalone else {}),
        }
        return write_archive(
            Path(out) / f"{name}.mar",
            files,
            name=name,
            version=version,
            handler=entry.name,
            serializedFile=read.model,
        )


def pack_feedback(
    out: str | Path,
    *,
    archives: Sequence[str | Path] = (),
    name: str = "calibration_feedback",
    version: str = "1.0",
    standalone: bool = False,
    **options: Any,
) -> Path:
    """Write the archive of the model that labels come home to; ``archives`` whose labels are welcome.

    ``options``: ``ttl_days`` (30), ``arl`` (100,000 labels to a false alarm), ``flush_seconds`` (1),
    ``keyring`` and ``ledger`` where the host's environment does not name them.
    """
    entry = shipped("handlers/calibration_feedback.py")
    known = {"ttl_days", "arl", "flush_seconds", "keyring", "ledger"}
    if unknown := set(options) - known:
        raise FuseError(f"unknown options {sorted(unknown)}; known: {sorted(known)}")
    section = {"models": labelled_models(archives), **options}
    # One worker: one process owns the detectors. A short wait lets requests share a transaction.
    batching = Batching(workers=1, batch_size=32, delay=5)
    files: dict[str, bytes | Path] = {
        entry.name: entry,
        CONFIG: _config(batching, section),
        **(package_files("calib_serve.serve.feedback") if standalone else {}),
    }
    return write_archive(Path(out) / f"{name}.mar", files, name=name, version=version, handler=entry.name)


def labelled_models(archives: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Name, version, class count and names of every calibrated archive among ``archives``."""
    found = []
    for path in archives:
        archive = read_archive(Path(path), verify=False)
        if is_calibrated(archive):
            artifact = artifact_of(archive)
            found.append(
                {
                    "name": archive.name,
                    "version": archive.version,
                    "classes": artifact.classes,
                    "class_names": list(artifact.class_names),
                }
            )
    return found


def is_calibrated(archive: Archive) -> bool:
    """Whether the archive serves a model that this package calibrated."""
    return "kind" in _section(archive)


def artifact_of(archive: Archive) -> Artifact:
    """The artifact inside an archive, checked as any other."""
    folder = _section(archive).get("artifact", "artifact")
    if not isinstance(folder, str) or not folder:
        raise ModelError(f"{archive.path} does not say where its artifact is, but {folder!r}")
    with scratch() as copy:
        for name in archive.files:
            if name.startswith(f"{folder}/"):
                (copy / Path(name).name).write_bytes(archive.read(name))
        return Artifact.load(copy)


def _section(archive: Archive) -> Mapping[str, Any]:
    """What an archive says to this package; nothing where it is another's."""
    section = archive.config.get(SECTION)
    return section if isinstance(section, Mapping) else {}


def artifact_files(artifact: Artifact, folder: Path, *, name: str = "artifact") -> dict[str, bytes | Path]:
    """The artifact's two files, saved below ``folder``, by their names in the archive."""
    saved = artifact.save(folder / name)
    return {f"{name}/{path.name}": path for path in sorted(saved.iterdir())}


def package_files(entry: str) -> dict[str, bytes | Path]:
    """Every file of this package that ``entry`` needs, found by following its imports."""
    root = Path(calib_serve.__file__).parent
    found: dict[str, Path] = {}
    waiting = ["calib_serve", entry]
    while waiting:
        module = waiting.pop()
        base = root.joinpath(*module.split(".")[1:])
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if module in found or not path.is_file():
            continue
        found[module] = path
        waiting += [*_imports(path), module.rpartition(".")[0] or "calib_serve"]
    return {path.relative_to(root.parent).as_posix(): path for path in found.values()}


def _imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("calib_serve.")]


def _resolve(model: str, weights: str | Path | None) -> tuple[Kind, Path, str | None, list[Path]]:
    """Kind, model file, factory, and source files that must travel along."""
    where, colon, function = model.rpartition(":")
    if colon and not Path(model).exists():
        if weights is None or Path(weights).suffix != ".safetensors":
            raise FuseError(f"an eager model needs its weights in a .safetensors file, got {weights}")
        if where.endswith(".py"):
            return "eager", _file(weights), f"{Path(where).stem}:{function}", [_file(where)]
        return "eager", _file(weights), model, []
    path = _file(model)
    if path.suffix == ".onnx":
        return "onnx", path, None, []
    if path.suffix == ".pt2":
        return "exported", path, None, []
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                return "torchscript", path, None, []
    raise FuseError(
        f"{path} is not TorchScript, .pt2 or .onnx; an eager model is given as module:factory with weights"
    )


def _file(path: str | Path) -> Path:
    if not Path(path).is_file():
        raise FuseError(f"there is no file {path}")
    return Path(path)


def _fused_head(path: Path, artifact: Artifact, folder: Path) -> Path:
    """The ONNX file to serve: with the new last layers in it, where the artifact has any."""
    if artifact.head is None:
        return path
    from calib_serve.fuse.onnx.graph import fuse_onnx  # noqa: PLC0415 - only this case needs onnx

    out = folder / "fused.onnx"
    fuse_onnx(path, replace(artifact, steps=(artifact.head,)), out, outputs="same")
    return out


def _checked_fingerprint(path: Path, served: Path, artifact: Artifact) -> str:
    fitted = artifact.model.get("sha256")
    actual = sha256_of(path)
    if fitted and fitted != actual:
        raise FuseError(
            f"{path} is not the model that the artifact was fitted on ({actual[:12]}, not {fitted[:12]}); "
            "fit it again, or give that model"
        )
    return actual if served == path else sha256_of(served)


def _shape(given: Sequence[int | None] | None, artifact: Artifact) -> tuple[int | None, ...]:
    shape = given if given is not None else artifact.model.get("input_shape")
    if not shape:
        raise FuseError("the artifact does not say what the model takes; give input_shape")
    return tuple(None if size is None or int(size) < 0 else int(size) for size in shape)


def _known(artifact: Artifact) -> dict[str, Any]:
    """What the artifact knows about its model, by the options' names."""
    facts = artifact.model
    names = {"input_dtype": "input_dtype", "outputs": "outputs", "last_linear": "last_linear"}
    return {option: facts[fact] for fact, option in names.items() if facts.get(fact)}


def _config(batching: Batching, section: Mapping[str, Any]) -> bytes:
    text = yaml.safe_dump(
        {SECTION: dict(section)}, sort_keys=False, allow_unicode=True, default_flow_style=None
    )
    return (
        "# Workers never grow or shrink by themselves; each holds its own copy of the model.\n"
        f"minWorkers: {batching.workers}\nmaxWorkers: {batching.workers}\n"
        "# So many requests share one call of the model, if they come within so many milliseconds.\n"
        f"batchSize: {batching.batch_size}\nmaxBatchDelay: {batching.delay}\n"
        "# Seconds after which a worker that does not answer is replaced.\n"
        f"responseTimeout: {batching.timeout}\n"
        "# Read by calib_serve alone; see calib_serve.fuse.mar_options.ModelOptions.\n"
        f"{text}"
    ).encode()
