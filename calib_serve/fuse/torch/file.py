"""A calibrated TorchScript or torch.export file, of the kind the model's own file is."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any, Literal

import torch

from calib_serve.artifact import Artifact, Outputs
from calib_serve.errors import FuseError, ModelError
from calib_serve.files import sha256, written_whole
from calib_serve.fuse.owner import check_owner
from calib_serve.fuse.torch.module import Returns, calibrated

__all__ = ["fuse_torch"]

_MARK = "calib_serve.json"  # an extra file of the archive, with the artifact's fingerprint
Kind = Literal["torchscript", "exported"]


def fuse_torch(
    model_path: str | Path,
    artifact: Artifact,
    out_path: str | Path,
    *,
    returns: Returns = "probabilities",
    outputs: Outputs | None = None,
    last_linear: str | None = None,
    fold: bool = False,
    force: bool = False,
) -> Kind:
    """Write the model of ``model_path`` with the artifact inside to ``out_path``, atomically.

    Options as in ``calibrated``; ``force`` takes an artifact that was fitted for another model.
    Loading TorchScript runs its code: load trusted files only. Raises ModelError for a file that is
    neither TorchScript nor .pt2, FuseError where the artifact does not fit or is inside already.
    """
    source, out = Path(model_path), Path(out_path)
    kind = _kind(source)
    check_owner(artifact, sha256(source), source, force=force)
    options: dict[str, Any] = {
        "returns": returns,
        "outputs": outputs,
        "last_linear": last_linear,
        "fold": fold,
    }
    mark = {_MARK: artifact.fingerprint}
    write = _script if kind == "torchscript" else _export
    try:
        with written_whole(out) as partial, torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's own internals
            warnings.simplefilter("ignore", DeprecationWarning)
            write(source, artifact, partial, mark, options)
    except OSError as error:
        raise FuseError(f"cannot write {out}: {error}") from error
    return kind


def _script(
    source: Path, artifact: Artifact, out: Path, mark: dict[str, str], options: dict[str, Any]
) -> None:
    found = {_MARK: ""}
    try:
        model = torch.jit.load(str(source), map_location="cpu", _extra_files=found)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ModelError(f"{source} is not TorchScript: {str(error).splitlines()[0]}") from error
    _check_new(source, found[_MARK])
    whole = torch.jit.script(calibrated(model, artifact, **options))
    torch.jit.save(whole, str(out), _extra_files=mark)


def _export(
    source: Path, artifact: Artifact, out: Path, mark: dict[str, str], options: dict[str, Any]
) -> None:
    found = {_MARK: ""}
    try:
        program = torch.export.load(source, extra_files=found)
    except Exception as error:  # torch raises errors of many types
        raise ModelError(f"{source} is not a program of torch.export: {error}") from error
    _check_new(source, found[_MARK])
    if program.example_inputs is None:
        raise FuseError(f"{source} was saved without example inputs; export it again with them")
    args, kwargs = program.example_inputs
    whole: torch.nn.Module = calibrated(
        program.module(), artifact, example=args[0] if len(args) == 1 and not kwargs else None, **options
    )
    if options["returns"] == "all":
        whole = _Plain(whole)
    # AUTO keeps what the program left free, such as its batch, and fixes what it had fixed.
    free = torch.export.Dim.AUTO
    each = tuple({0: free} if isinstance(a, torch.Tensor) and a.ndim else None for a in args)
    shapes = (each,) if isinstance(whole, _Plain) else (each[0], each[1:]) if each[1:] else each
    try:
        again = torch.export.export(whole, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:
        raise FuseError(f"torch.export cannot export the calibrated model: {error}") from error
    torch.export.save(again, out, extra_files=mark)


class _Plain(torch.nn.Module):
    """Five outputs as a plain tuple: a file must be readable without our class."""

    def __init__(self, whole: torch.nn.Module) -> None:
        super().__init__()
        self.whole = whole
        self.training = False

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.whole(*inputs))


def _check_new(source: Path, mark: str | bytes) -> None:
    if mark:
        text = mark.decode() if isinstance(mark, bytes) else mark
        raise FuseError(f"{source} is calibrated already ({text[:12]}); fuse into the original")


def _kind(path: Path) -> Kind:
    if not path.is_file():
        raise ModelError(f"there is no model file {path}")
    if path.suffix == ".pt2":
        return "exported"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                return "torchscript"
    raise ModelError(
        f"{path} is neither TorchScript nor a .pt2 of torch.export; an eager model needs calibrated()"
    )
