"""What an option's text stands for; a wrong one is refused on the command line, not an hour later."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from calib_serve.errors import InputError

__all__ = ["channels", "floats", "gammas", "names", "pair", "penalties", "positive", "resolutions"]
__all__ += ["share", "shares", "watched_model", "whole"]


def share(text: str) -> float:
    """A share above 0 and up to 1.

    >>> share("0.1")
    0.1
    """
    value = _number(text)
    if not 0 < value <= 1:
        raise typer.BadParameter(f"it is a share above 0 and at most 1, got {text}")
    return value


def positive(text: str) -> float:
    """A finite number above 0.

    >>> positive("300")
    300.0
    """
    value = _number(text)
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"it must be above 0 and finite, got {text}")
    return value


def names(text: str) -> list[str]:
    """Names with commas between.

    >>> names("temperature, vector")
    ['temperature', 'vector']
    """
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise typer.BadParameter(f"give one or more names with commas between, got {text!r}")
    return found


def whole(text: str) -> list[int]:
    """Whole numbers with commas between.

    >>> whole("10,15")
    [10, 15]
    """
    return _several(text, int, "whole numbers")


def floats(text: str) -> list[float]:
    """Numbers with commas between.

    >>> floats("0,.5")
    [0.0, 0.5]
    """
    return _several(text, float, "numbers")


def pair(text: str) -> tuple[float, float]:
    """LOW,HIGH.

    >>> pair("0,1")
    (0.0, 1.0)
    """
    found = floats(text)
    if len(found) != 2:
        raise typer.BadParameter(f"it is LOW,HIGH, two numbers with a comma between, got {text!r}")
    return found[0], found[1]


def channels(text: str) -> tuple[list[float], list[float]]:
    """MEAN,STD, each with its channels separated by a slash.

    >>> channels(".5/.4,.2/.1")
    ([0.5, 0.4], [0.2, 0.1])
    """
    parts = text.split(",")
    if len(parts) != 2:
        raise typer.BadParameter(f"it is MEAN,STD, channels separated by /, got {text!r}")
    mean, std = (floats(part.replace("/", ",")) for part in parts)
    return mean, std


def gammas(text: str) -> Any:
    """Candidates of gamma, or "paper" for the paper's.

    >>> gammas("paper"), gammas("0,.5")
    ('paper', [0.0, 0.5])
    """
    return text if text == "paper" else floats(text)


def penalties(text: str) -> list[Any]:
    """Candidates of the penalty: "tenth", the paper's rule, or numbers.

    >>> penalties("tenth,.1")
    ['tenth', 0.1]
    """
    return [name if name == "tenth" else _number(name) for name in names(text)]


def resolutions(text: str) -> Any:
    """Candidates of delta's resolution: numbers, "full", or "auto".

    >>> resolutions("4,full"), resolutions("auto")
    ([4, None], 'auto')
    """
    if text == "auto":
        return text
    return [None if name == "full" else whole(name)[0] for name in names(text)]


def shares(text: str) -> Any:
    """Class shares: numbers in order, or names with theirs; or a file of such text or of JSON.

    >>> shares("0.7,0.3"), shares("cat=0.7, dog=0.3")
    ([0.7, 0.3], {'cat': 0.7, 'dog': 0.3})
    """
    try:
        if Path(text).is_file():
            text = Path(text).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        if "=" not in text and "," not in text:
            raise typer.BadParameter(f"cannot read {text[:80]!r}: {error}") from error
    if text.startswith(("[", "{")):
        return _json_shares(text)
    parts = names(text.replace("\n", ","))
    if not any("=" in part for part in parts):
        return floats(",".join(parts))
    found = {}
    for part in parts:
        name, is_named, number = part.rpartition("=")
        if not is_named or name.strip() in found:
            raise typer.BadParameter(f"give each class its share once, as NAME=SHARE, got {part!r}")
        found[name.strip()] = _number(number)
    return found


def watched_model(text: str, *, version: str = "") -> tuple[tuple[str, str], Path | int]:
    """``NAME:VERSION=ARTIFACT`` (a folder), or ``=CLASSES`` (a number); ``version``: where none is said.

    >>> watched_model("digits:1.0=10"), watched_model("digits=10", version="1")
    ((('digits', '1.0'), 10), (('digits', '1'), 10))
    """
    name, _, what = text.partition("=")
    model, colon, said = name.rpartition(":")
    if not colon:
        model, said = name, version
    if not (model and said and what):
        asked = "NAME[:VERSION]" if version else "NAME:VERSION"
        raise InputError(f"a model is {asked}=ARTIFACT or {asked}=CLASSES, got {text!r}")
    return (model, said), int(what) if what.isdecimal() else Path(what)


def _json_shares(text: str) -> Any:
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            return {str(name): float(share) for name, share in found.items()}
        return [float(share) for share in found]
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise typer.BadParameter(
            f"JSON of class shares is a list or a mapping of numbers: {error}"
        ) from error


def _several(text: str, kind: Callable[[str], Any], what: str) -> list[Any]:
    try:
        return [kind(part) for part in names(text)]
    except ValueError:
        raise typer.BadParameter(f"give {what} with commas between, got {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"it is a number, got {text!r}") from None
