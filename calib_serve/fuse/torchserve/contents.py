"""The common content of our archives: the artifact, the settings, the package's own files."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError, ModelError
from calib_serve.fuse.mar_options import SECTION
from calib_serve.fuse.torchserve.archive import Archive, read_archive, scratch
from calib_serve.fuse.torchserve.forms import is_archive, opened

__all__ = [
    "SHADOW",
    "Batching",
    "artifact_files",
    "artifact_of",
    "config_file",
    "is_calibrated",
    "load_artifact",
    "package_files",
    "shadow_files",
    "shipped",
    "with_section",
]


def shipped(name: str) -> Path:
    """The file ``name``, such as "config.properties" or "handlers/calibrated_classifier.py"."""
    package = Path(calib_serve.__file__).parent
    for root in (package / "_shipped", package.parent):
        if (root / name).is_file():
            return root / name
    raise ModelError(f"{name} is missing from this installation; install calib-serve again")


SHADOW = "shadow"
"""Where in an archive the artifact lies that runs in the shadow of the served one."""


@dataclass(frozen=True)
class Batching:
    """How TorchServe runs a model; ``delay``: milliseconds a request may wait for others."""

    workers: int = 1
    batch_size: int = 8
    delay: int = 5
    timeout: int = 120

    def __post_init__(self) -> None:
        if not (self.workers >= 1 and self.batch_size >= 1 and self.delay >= 1 and self.timeout >= 1):
            raise FuseError(f"workers, batch size, delay and timeout must be at least 1, got {self}")


def is_calibrated(archive: Archive) -> bool:
    """Whether the archive serves a model that this package calibrated."""
    return "kind" in _section(archive)


def artifact_of(archive: Archive) -> Artifact:
    """The artifact inside an archive, checked as any other; ModelError where it has none."""
    if not is_calibrated(archive):
        raise ModelError(
            f"{archive.path} holds no calibration; to run its handler and see what of it can be calibrated: "
            f"calib-serve inspect --from {archive.path}"
        )
    folder = _section(archive).get("artifact", "artifact")
    if not isinstance(folder, str) or not folder:
        raise ModelError(f"{archive.path} does not say where its artifact is, but {folder!r}")
    with opened(archive.path) as form, scratch() as copy:
        for name in form.sizes:
            if name.startswith(f"{folder}/"):
                with (copy / Path(name).name).open("wb") as file:
                    file.writelines(form.pieces(name))
        return Artifact.load(copy)


def load_artifact(path: str | Path) -> Artifact:
    """The artifact in a folder or inside a TorchServe archive of any form, every hash checked."""
    return artifact_of(read_archive(Path(path))) if is_archive(Path(path)) else Artifact.load(path)


def _section(archive: Archive) -> Mapping[str, Any]:
    """The archive's section for this package; empty if it has none."""
    section = archive.config.get(SECTION)
    return section if isinstance(section, Mapping) else {}


def artifact_files(artifact: Artifact, folder: Path, *, name: str = "artifact") -> dict[str, bytes | Path]:
    """The artifact's two files, saved below ``folder``, by their names in the archive."""
    saved = artifact.save(folder / name)
    return {f"{name}/{path.name}": path for path in sorted(saved.iterdir())}


def shadow_files(
    shadow: Artifact | str | Path | None, served: Artifact, folder: Path
) -> dict[str, bytes | Path]:
    """Those of the artifact in the shadow of ``served``, if any; InputError for one that cannot be that."""
    if shadow is None:
        return {}
    found = shadow if isinstance(shadow, Artifact) else Artifact.load(shadow)
    found.check_beside(served)
    return artifact_files(found, folder, name=SHADOW)


def package_files(entry: str) -> dict[str, bytes | Path]:
    """Every file of this package that ``entry`` needs, found by following its imports when it runs."""
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
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.startswith("calib_serve.")]


def config_file(batching: Batching, section: Mapping[str, Any]) -> bytes:
    """model-config.yaml: how TorchServe runs the model, and the section for this package."""
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


def with_section(config: Mapping[str, Any], section: Mapping[str, Any]) -> bytes:
    """A model-config.yaml with this section for this package."""
    text: str = yaml.safe_dump({**config, SECTION: dict(section)}, sort_keys=False, allow_unicode=True)
    return text.encode()
