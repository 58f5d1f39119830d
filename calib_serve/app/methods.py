"""``calib-serve methods``: the purpose of each method, and its options."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from calib_serve.app._command import command
from calib_serve.app._show import console
from calib_serve.core.errors import InputError

app = command(
    "methods",
    "calib-serve methods\ncalib-serve methods neural-clamping",
    details="An option is given to fit as --option KEY=VALUE.",
)
# Arguments that the data or a flag of fit give.
_NEVER = ("samples", "class_names", "seed", "progress")


@app.default
def _methods(name: str | None = None) -> None:
    """List the methods, or show one."""
    fitters = _fitters()
    if name is None:
        from rich.table import Table

        table = Table("method", "what it fits", box=None)
        for each, fit in fitters.items():
            table.add_row(each, str(fit.__doc__).partition("\n")[0])
        console().print(table)
        return
    if name not in fitters:
        raise InputError(f"there is no method {name!r}; choose one of {', '.join(fitters)}")
    options = _options(name, fitters[name])
    out = console()
    out.print(inspect.cleandoc(str(fitters[name].__doc__)).partition("\n>>>")[0].rstrip())
    for key, default in options.items():
        shown = "" if default is None else f"  [default: {default}]"
        out.print(f"  --option {key}={shown}")


def _fitters() -> dict[str, Callable[..., Any]]:
    """Fitters by name: auto, those of scores and, where torch is installed, those of a model."""
    from calib_serve.fit import CANDIDATES, TWO_CLASSES, UNLABELLED, select

    found: dict[str, Callable[..., Any]] = {"auto": select, **CANDIDATES, **TWO_CLASSES, **UNLABELLED}
    try:
        from calib_serve.fit import MODEL_FITTERS
    except ModuleNotFoundError:
        return found
    return {**found, **MODEL_FITTERS}


def _options(name: str, fit: Callable[..., Any]) -> dict[str, Any]:
    """A method's options and their defaults; of one that fits a model also those of the model."""
    parameters = inspect.signature(fit).parameters
    try:
        from calib_serve.fit import MODEL_OPTIONS
    except ModuleNotFoundError:
        MODEL_OPTIONS = {}
    if name not in MODEL_OPTIONS:
        return {key: one.default for key, one in parameters.items() if key not in _NEVER}
    from calib_serve.core.options.fit import ModelFitOptions

    own = {key: parameters[key].default if key in parameters else None for key in MODEL_OPTIONS[name]}
    kept = ("input_shape", "last_linear", "device", "batch_size")
    return {**own, **{field.name: field.default for field in fields(ModelFitOptions) if field.name in kept}}
