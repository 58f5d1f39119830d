"""TorchScript, which torch has deprecated: all that is done with it, until it goes."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.core.errors import Deprecated, ModelError

if TYPE_CHECKING:
    from torch import nn

# mypy: disable-error-code="attr-defined,no-any-return,no-untyped-call"


def is_torchscript(path: Path) -> bool:
    """Whether a file is TorchScript, by what it holds."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.partition("/")[2].startswith("code/") for name in archive.namelist())


def warn_of_torchscript(what: object, *, stacklevel: int = 3) -> None:
    """Warn that TorchScript goes; docs/install.md says when.

    Args:
        what: File or model that a user gave.
        stacklevel: Frame that the warning points at.
    """
    told = "TorchScript, which torch has deprecated and calib-serve 0.5 takes no more"
    warnings.warn(f"{what} is {told}; export the model by torch.export, as .pt2", Deprecated, stacklevel)


def is_scripted(model: object) -> bool:
    """Whether a module is TorchScript."""
    import torch  # noqa: PLC0415 - files are told apart without it

    return isinstance(model, torch.jit.ScriptModule)


def load_torchscript(path: Path, device: str = "cpu", extra: dict[str, Any] | None = None) -> nn.Module:
    """Load a file; ModelError if it is none.

    Args:
        path: The file.
        device: Device to load it on.
        extra: Names of files beside the code, whose contents are put in; None: none.
    """
    import torch  # noqa: PLC0415

    with _quietly():
        try:
            return torch.jit.load(str(path), map_location=device, _extra_files=extra)
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"cannot load the TorchScript file {path}: {error}") from error


def save_torchscript(module: nn.Module, path: Path, extra: dict[str, Any]) -> None:
    """Script a module and write it.

    Args:
        module: The module.
        path: File to write.
        extra: Files beside its code, by name.
    """
    import torch  # noqa: PLC0415

    with _quietly():
        torch.jit.save(torch.jit.script(module), str(path), _extra_files=extra)


def scripted_inputs(model: Any, *, needed: bool = False) -> list[str]:
    """List the names of a scripted module's inputs.

    Args:
        model: The module.
        needed: Whether to leave out those that have a default.
    """
    return [a.name for a in _arguments(model) if not (needed and a.has_default_value())]


def scripted_around(parts: nn.Module, path: tuple[str | int, ...], *, shifts: bool) -> nn.Module:
    """Script parts with a forward of their model's signature, as TorchScript has no ``*inputs``.

    Args:
        parts: Module of ``shift``, ``model``, ``head`` and ``tail``.
        path: Where the scores lie in what the model returns.
        shifts: Whether ``shift`` changes the first input.
    """
    import torch  # noqa: PLC0415

    arguments = _arguments(parts.model)
    signature = ", ".join(
        f"{a.name}: {a.type.annotation_str}" + (f" = {a.default_value!r}" if a.has_default_value() else "")
        for a in arguments
    )
    first, *more = (a.name for a in arguments)
    call = ", ".join((f"self.shift({first})" if shifts else first, *more))
    steps = "".join(f"[{step!r}]" for step in path)
    # torch keeps one type of modules that are alike, and its forward can be written once.
    parts.__class__ = type(type(parts).__name__, (type(parts),), {})
    with _quietly():
        whole = torch.jit.script(parts)
    whole.define(
        f"def forward(self, {signature}):\n    return self.tail(self.head(self.model({call}){steps}))\n"
    )
    return whole


def _arguments(model: Any) -> list[Any]:
    return list(model._c._get_method("forward").schema.arguments[1:])


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out torch's own warning, of another category in each version: ours says what is to do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.")
        yield
