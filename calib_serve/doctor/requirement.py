"""Requirements as packages declare them, and whether a version meets them (PEP 440, PEP 508).

The ``packaging`` library does this whole. It is no dependency of this package, and the lines that are read
here are simple: names, comparisons, and markers of extras and of Python's version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Requirement", "canonical", "meets"]

_LINE = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?\s*\(?([^;()]*)\)?\s*(?:;\s*(.*))?$")
_TERM = re.compile(r"""\(?\s*(extra|python_version)\s*(==|!=|<=|>=|<|>)\s*['"]([^'"]*)['"]\s*\)?""")
_VERSION = re.compile(
    r"""\s*v?(?:(\d+)!)?(\d+(?:\.\d+)*)
    (?:[-_.]?(alpha|beta|preview|pre|rc|a|b|c)[-_.]?(\d*))?
    (?:-(\d+)|[-_.]?(post|rev|r)[-_.]?(\d*))?
    (?:[-_.]?(dev)[-_.]?(\d*))?
    (?:\+[a-z0-9._-]+)?\s*""",
    re.VERBOSE | re.IGNORECASE,
)
_COMPARISON = re.compile(r"(===|~=|==|!=|<=|>=|<|>)\s*([\w.+!*-]+)")
_STAGES = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_LATE = 1 << 62  # beyond any number of a development release

_Key = tuple[int, tuple[int, ...], tuple[int, int], int, int]


@dataclass(frozen=True)
class Requirement:
    """A package's ``name``, ``versions`` such as ">=2.4,<3", and the ``marker`` under which it counts."""

    name: str
    versions: str = ""
    marker: str = ""

    @classmethod
    def read(cls, line: str) -> Requirement:
        """The requirement of a line of metadata; ValueError for another form, such as a URL.

        >>> Requirement.read("onnx-ir>=0.1.13; extra == 'onnx'")
        Requirement(name='onnx-ir', versions='>=0.1.13', marker="extra == 'onnx'")
        """
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"no requirement of a version: {line!r}")
        return cls(canonical(found[1]), re.sub(r"\s", "", found[3]), (found[4] or "").strip())

    def applies(self, extra: str, python: Sequence[int]) -> bool | None:
        """Whether it counts for an ``extra`` (or "") under this ``python``; None where that is not known.

        >>> Requirement.read("torch>=2.4; extra == 'fit'").applies("fit", (3, 11))
        True
        """
        if not self.marker:
            return True
        answers: list[bool] = []
        for part in self.marker.split(" and "):
            term = _TERM.fullmatch(part.strip())
            if term is None:
                return None
            variable, operator, value = term.groups()
            if variable == "extra":
                answers.append((canonical(value) == canonical(extra)) is (operator == "=="))
            else:
                answers.append(meets(".".join(map(str, python[:2])), operator + value))
        return all(answers)


def canonical(name: str) -> str:
    """A package's name as metadata compare it.

    >>> canonical("Prometheus_Client")
    'prometheus-client'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def meets(version: str, wanted: str) -> bool:
    """Whether a version meets all comparisons of ``wanted``; ValueError for what is none.

    >>> meets("2.13.0+cpu", ">=2.4"), meets("2.0rc1", ">=2.0"), meets("0.12.1", "==0.12.0")
    (True, False, False)
    """
    parts = [part.strip() for part in wanted.split(",") if part.strip()]
    return all(_meets(version, part) for part in parts)


def _meets(version: str, comparison: str) -> bool:
    found = _COMPARISON.fullmatch(comparison)
    if found is None or found[1] == "===":
        raise ValueError(f"no comparison of versions: {comparison!r}")
    operator, wanted = found.groups()
    if wanted.endswith(".*"):
        within = _begins(version, wanted[:-2])
        return within if operator == "==" else not within
    here, there = _key(version), _key(wanted)
    if operator == "~=":
        epoch, release = _release(wanted)
        return here >= there and _begins(version, f"{epoch}!{'.'.join(map(str, release[:-1]))}")
    if operator in ("==", "!="):
        return (here == there) is (operator == "==")
    if operator in ("<=", ">="):
        return here <= there if operator == "<=" else here >= there
    # Neither 2.0rc1 is below 2.0, nor 2.0.post1 above it.
    same = here[:2] == there[:2]
    if operator == "<":
        of_it = same and there[3] in (-1, here[3]) and _is_early(here)
        return here < there and not (of_it and not _is_early(there))
    return here > there and not (same and here[2] == there[2] and here[3] >= 0 and there[3] < 0)


def _key(version: str) -> _Key:
    """Epoch, release, stage, post, dev: tuples in the order of the versions; local parts do not count."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"no version: {version!r}")
    epoch, release, stage, of_stage, implicit, post, of_post, dev, of_dev = found.groups()
    numbers = [int(n) for n in release.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    after = int(implicit or of_post or 0) if (implicit or post) else -1
    if stage:
        early = (_STAGES[stage.lower()], int(of_stage or 0))
    else:
        early = (-1, 0) if dev and after < 0 else (3, 0)
    return int(epoch or 0), tuple(numbers), early, after, int(of_dev or 0) if dev else _LATE


def _is_early(key: _Key) -> bool:
    return key[2][0] < 3 or key[4] != _LATE


def _begins(version: str, prefix: str) -> bool:
    """Whether the release begins with the numbers of ``prefix``: 0.12.3 with 0.12."""
    (epoch, have), (of_prefix, wanted) = _release(version), _release(prefix)
    have += [0] * (len(wanted) - len(have))
    return epoch == of_prefix and have[: len(wanted)] == wanted


def _release(version: str) -> tuple[int, list[int]]:
    """Epoch and the numbers of the release, as many as are written."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"no version: {version!r}")
    return int(found[1] or 0), [int(n) for n in found[2].split(".")]
