"""The dashboard's rows of the contract and of shadows, which versions that have none leave empty."""

from __future__ import annotations

from collections.abc import Mapping

from calib_serve.monitoring.chosen import VERSION
from calib_serve.monitoring.contract_rules import BURN_WINDOWS, clause_gauge, clause_number
from calib_serve.monitoring.panels import Panel, curves, row, shown_as, table, timeline
from calib_serve.monitoring.queries import LEAST, SAME

__all__ = ["contract", "shadow"]

_STATES: Mapping[float, tuple[str, str]] = {
    -1: ("broken", "red"),
    0: ("not yet known", "yellow"),
    1: ("kept", "green"),
}
_VERDICTS: Mapping[float, tuple[str, str]] = {
    -1: ("worse", "red"),
    0: ("not yet known", "yellow"),
    0.5: ("no worse", "blue"),
    1: ("better", "green"),
}
_CLAUSE = f'{VERSION}, clause="$clause"'


def _all(name: str) -> str:
    """A gauge of every clause of the version."""
    return clause_gauge(name, more=f"{{{VERSION}}}")


def _recorded(name: str, which: str = VERSION) -> str:
    return f"{clause_number(name)}{{{which}}}"


def _one(name: str) -> str:
    """A gauge of the clause that is chosen."""
    return clause_gauge(name, more=f"{{{_CLAUSE}}}")


def contract() -> tuple[Panel, ...]:
    """Promises, whether they are kept, and what is left of their budgets."""
    share = {"unit": "percentunit"}
    clauses = table(
        "Promises",
        "Broken and kept hold at every moment, with an error of 5 % over all time. Not yet known: the labels "
        "so far allow both. The budget is what a promise allows to be wrong in its time.",
        {
            "promise": _all("promise"),
            "state": f"{LEAST} (calib_contract_state{{{VERSION}}})",
            "over its time": _all("value"),
            "at least": _all("low"),
            "at most": _all("high"),
            "budget left": _all("budget_left"),
            "runs out in": _all("runs_out_seconds"),
            "labels": _all("labels"),
        },
        hidden=("Time", "model", "version"),
        first="state",
        least=True,
        looks={
            "state": {"mappings": shown_as(_STATES), "custom.cellOptions": {"type": "color-text"}},
            **dict.fromkeys(("promise", "over its time", "at least", "at most", "budget left"), share),
            "runs out in": {"unit": "s", "noValue": "never, or not known"},
        },
    )
    return (
        row("Contract"),
        clauses,
        timeline(
            "Kept, broken or not yet known",
            "By clause. A clause that was broken stays so until the artifact changes.",
            _recorded("state"),
            "{{clause}}",
            _STATES,
        ),
        curves(
            "Error budgets left",
            "By clause: 100 % is untouched, 0 is spent, below it is overspent.",
            {"{{clause}}": _all("budget_left")},
        ),
        curves(
            "The promise, and what labels say of it",
            "Of the clause that is chosen: its value over its time, and the ends between which it lies since "
            "it is watched, at every moment, with 95 %.",
            {
                "promise": _one("promise"),
                "value": _one("value"),
                "at least": _one("low"),
                "at most": _one("high"),
            },
        ),
        curves(
            "Burn rates",
            "Of the clause that is chosen: 1 spends the budget in just its time. Alerts: above 14.4 over 1h "
            "and 5m, 6 over 6h and 30m, 1 over 3d and 6h.",
            {window: _recorded(f"burn_rate:{window}", _CLAUSE) for window in BURN_WINDOWS},
            unit="none",
        ),
    )


def _of_shadow(name: str) -> str:
    return f"{SAME} (calib_shadow_{name}{{{VERSION}}})"


def shadow() -> tuple[Panel, ...]:
    """How versions that run in the shadow of this one compare with it."""
    return (
        row("Shadow"),
        timeline(
            "Against the served version",
            "By the tag of the shadow's artifact. Each verdict holds at every moment, with an error of 5 %.",
            _of_shadow("verdict"),
            "{{tag}}",
            _VERDICTS,
        ),
        curves(
            "What the shadow gains",
            "By how much its log score is better on the same labels, in nats a prediction, with its 95 % "
            "ends that hold at every moment: above zero the shadow is better.",
            {
                "gain {{tag}}": _of_shadow("gain"),
                "at least {{tag}}": _of_shadow("gain_low"),
                "at most {{tag}}": _of_shadow("gain_high"),
            },
            unit="none",
        ),
        curves(
            "Labels of predictions with a shadow",
            "By the tag of the shadow's artifact.",
            {"{{tag}}": _of_shadow("labels")},
            unit="short",
        ),
    )
