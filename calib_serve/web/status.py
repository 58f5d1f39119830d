"""One status of a version: its open incidents, broken promises and failing checks, then what labels say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from calib_serve.core.text import signed_points, when
from calib_serve.metrics import Verdict
from calib_serve.monitor import ClauseState, Incident

_WORDS: Mapping[str, str] = {
    "calibrated": "Calibrated",
    "no_error_found": "No error found",
    "too_little": "Too little to say",
    "off": "Not calibrated",
}
"""The short word of each level of a verdict."""


class Status(NamedTuple):
    """What a person on call has to know of a version.

    Args:
        level: Level of a ``Verdict``, which chooses icon and colour.
        word: The status in two words, for tables.
        headline: The status in a sentence.
        do: What to do; empty: nothing.
        alert: The alert whose runbook says more; empty: none.
        beside: The verdict of labels in a sentence, where the headline says something worse.
    """

    level: str
    word: str
    headline: str
    do: str = ""
    alert: str = ""
    beside: str = ""


def status_of(
    verdict: Verdict,
    *,
    incidents: Sequence[Incident] = (),
    clauses: Sequence[ClauseState] = (),
    checks: Mapping[str, str | None],
) -> Status:
    """Choose the worst of what is known: well is what has no incident, broken promise or failing check.

    Args:
        verdict: The verdict of its labels.
        incidents: Its incidents.
        clauses: The states of its contract.
        checks: The reason of each failing check of the watch, None of the others.
    """
    said, word = verdict.headline, _WORDS[verdict.level]
    if still := [one for one in incidents if one.open]:
        do = "Find what changed then; refit if it is here to stay."
        about = f"Drifting: {drift(still[-1])}"
        return Status("off", f"Incident {still[-1].id}", about, do, "CalibrationDrift", said)
    if broken := [one.clause.name for one in clauses if one.state == "broken"]:
        do = "Act on fewer of its predictions, or on none."
        return Status(
            "off", "Contract broken", f"Contract broken: {', '.join(broken)}.", do, "ContractBroken", said
        )
    do = next(iter(verdict.do), "")
    if verdict.level == "off":
        return Status("off", word, said, do, "CalibrationErrorHigh")
    # Numbers that may be old or incomplete prove nothing.
    if failing := [name for name, reason in checks.items() if reason is not None]:
        about = f"In doubt while a check fails ({', '.join(failing)}): {said[0].lower()}{said[1:]}"
        return Status("too_little", "In doubt", about, "Mend what the check names.", "MonitorFailing")
    return Status(verdict.level, word, said, do)


def drift(one: Incident) -> str:
    """An open incident in a sentence."""
    return f"{one.direction}, {gap(one)}, since {when(one.onset)} (incident {one.id})."


def gap(one: Incident) -> str:
    """The gap of an incident so far."""
    return f"{signed_points(one.gap)} points so far" if math.isfinite(one.gap) else "of unknown size"
