"""Every name of a room's face says of each parameter what it is: shape, unit and meaning, once."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.signatures import args_of, undocumented

import calib_serve
from calib_serve.core.faces import modules_of

pytestmark = pytest.mark.unit

ROOT = Path(calib_serve.__file__).parent
REFERENCE = ROOT.parent / "docs/reference"
ROOMS = sorted(path.parent for path in ROOT.rglob("__init__.pyi"))
PACKAGES = sorted(path.parent for path in ROOT.glob("integrations/*/__init__.py"))
ARRAY = re.compile(r"Array|Floats|Ints|Codes|Probs|Pixels|Tensor")


def _named() -> Iterator[Any]:
    """Yield what faces name, and what the reference shows of inner modules."""
    for room in ROOMS:
        package = ".".join(room.relative_to(ROOT.parent).parts)
        yield from (pkgutil.resolve_name(f"{package}:{name}") for name in modules_of(room / "__init__.pyi"))
    shown = [f"calib_serve.integrations.{path.name}" for path in PACKAGES]
    shown += [
        name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
    ]
    for one in map(pkgutil.resolve_name, shown):
        own = [name for name, of in vars(one).items() if getattr(of, "__module__", "") == one.__name__]
        names = getattr(one, "__all__", own) if inspect.ismodule(one) else ()
        yield from (getattr(one, name) for name in names if not name.startswith("_"))


def _is_ours(one: Any) -> bool:
    return (getattr(one, "__module__", None) or "").startswith("calib_serve.")


def _called(one: Any) -> Iterator[Callable[..., Any]]:
    """Yield a function; of a class its constructor, where it has one of its own, and its public methods."""
    if inspect.isfunction(one):
        yield one
    if not inspect.isclass(one):
        return
    made = [base for base in one.__mro__ if _is_ours(base) and {"__init__", "__new__"} & {*vars(base)}]
    # A protocol's constructor, and that of a handler, which TorchServe makes, take anything.
    # Options have each field's help below it, for the command line too.
    taken = (
        inspect.signature(one).parameters.values() if made and not one.__name__.endswith("Options") else ()
    )
    if any("VAR_" not in of.kind.name for of in taken):
        yield one
    for name, method in inspect.getmembers(one, inspect.isroutine):
        if not name.startswith("_") and _is_ours(method):
            yield method


def _is_to_describe(of: Callable[..., Any]) -> bool:
    """Whether it makes an object, has two parameters or an array, or describes some already."""
    taken = [one for one in inspect.signature(of).parameters.values() if one.name not in ("self", "cls")]
    few = len(taken) < 2 and not inspect.isclass(of)  # their names and types say what they are
    return bool(args_of(of) or not few or any(ARRAY.search(str(one.annotation)) for one in taken))


DESCRIBED = {
    f"{of.__module__}.{of.__qualname__}": of
    for one in _named()
    if _is_ours(one)
    for of in _called(one)
    if _is_to_describe(of)
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_each_parameter_is_described_and_nothing_else(name: str) -> None:
    assert undocumented(DESCRIBED[name]) == []
