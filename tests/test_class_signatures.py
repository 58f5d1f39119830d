"""What the reference pages show says of each parameter what it is, once, and hides no keyword."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.signatures import keywords_of, undocumented

import calib_serve

pytestmark = pytest.mark.unit

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
PUBLIC: list[type] = [
    one for name in calib_serve.__all__ if inspect.isclass(one := getattr(calib_serve, name))
]
# Parameters of others: of the classifier that is calibrated, which scikit-learn hands on, and of MLflow.
FOREIGN = ("CalibratedClassifier.fit", "log_calibrated")


def _is_ours(one: Any) -> bool:
    return (getattr(one, "__module__", None) or "").startswith("calib_serve")


def _in(one: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the constructor, where a class has one of its own, and the public methods."""
    own = [base for base in one.__mro__ if _is_ours(base) and {"__init__", "__new__"} & {*vars(base)}]
    # A protocol's constructor, and that of a handler, which TorchServe makes, take anything.
    if own and any("VAR_" not in of.kind.name for of in inspect.signature(one).parameters.values()):
        yield "", one
    for name, method in inspect.getmembers(one, inspect.isroutine):
        if not name.startswith("_") and _is_ours(method):
            yield name, method


def _shown_of(shown: Any, members: Sequence[str]) -> Iterator[Callable[..., Any]]:
    """Yield what a page shows: classes and their own methods, and a module's functions of two parameters."""
    if inspect.isclass(shown):
        yield from (of for name, of in _in(shown) if name in ("", *vars(shown)))
    elif inspect.ismodule(shown):
        own = [name for name, one in vars(shown).items() if getattr(one, "__module__", "") == shown.__name__]
        for name in members or getattr(shown, "__all__", own):
            one = getattr(shown, name)
            if inspect.isclass(one) and _is_ours(one) and not name.startswith("_"):
                yield from _shown_of(one, ())
            elif inspect.isfunction(one) and not name.startswith("_"):
                yield from [one] * (len(inspect.signature(one).parameters) > 1)


def _directives() -> Iterator[tuple[Any, Sequence[str]]]:
    """Yield what each page of the reference shows, and which members of it where the page names them."""
    for page in sorted(REFERENCE.glob("*.md")):
        for name, options in re.findall(r"^::: (\S+)(?:\n +(options: .*))?", page.read_text(), re.MULTILINE):
            members = yaml.safe_load(options)["options"].get("members", ()) if options else ()
            yield pkgutil.resolve_name(name), members


SHOWN = {
    f"{of.__module__}.{of.__qualname__}": of
    for of in (
        *(of for one in PUBLIC for _, of in _in(one)),
        *(of for shown, members in _directives() for of in _shown_of(shown, members)),
    )
}


@pytest.mark.parametrize("name", SHOWN)
def test_each_parameter_is_described_and_nothing_else(name: str) -> None:
    assert undocumented(SHOWN[name]) == []


@pytest.mark.parametrize("name", [name for name in SHOWN if not name.endswith(FOREIGN)])
def test_no_keyword_is_hidden(name: str) -> None:
    parameters = inspect.signature(SHOWN[name]).parameters.values()
    open_ended = [one for one in parameters if one.kind is one.VAR_KEYWORD]
    assert all("Unpack[" in str(one.annotation) for one in open_ended)


@pytest.mark.parametrize("display", [one for one in PUBLIC if hasattr(one, "from_estimator")])
def test_a_classifier_is_drawn_by_the_keywords_of_its_probabilities(display: Any) -> None:
    takes = inspect.signature(display.from_predictions).parameters.values()
    options = inspect.signature(display.from_estimator).parameters["options"]
    keywords = {one.name for one in takes if one.kind is one.KEYWORD_ONLY}
    assert {*keywords_of(options, display.from_estimator)} == keywords - {"labels", "name"}
