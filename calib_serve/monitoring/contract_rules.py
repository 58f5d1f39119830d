"""The group of rules.yml for contracts: a few series for each clause of a version that has one.

Every ``calib-serve watch`` on a ledger publishes the same numbers of a clause. Rules keep one of them: that
which says worse where two scrapes are of different moments.
"""

from __future__ import annotations

from collections.abc import Mapping

from calib_serve.monitoring.queries import LEAST, REPLICA, SAME

__all__ = [
    "BURN_WINDOWS",
    "burn",
    "burn_low",
    "clause_gauge",
    "clause_number",
    "contract_rules",
    "recorded_clause_series",
]

BURN_WINDOWS = ("5m", "30m", "1h", "6h", "3d")
"""Of burn rates, shortest first; all but the first two are long windows, which need evidence."""

_LONG = BURN_WINDOWS[2:]
_INTERVAL = "1m"


def clause_number(name: str) -> str:
    """A recorded number of a clause.

    >>> clause_number("state")
    'model_version_clause:calib_contract_state'
    """
    return f"model_version_clause:calib_contract_{name}"


def burn(window: str) -> str:
    """How many times as fast as promised the budget is spent."""
    return clause_number(f"burn_rate:{window}")


def burn_low(window: str) -> str:
    """The least burn rate that the labels of the window leave, by their 95 % interval."""
    return clause_number(f"burn_rate_low:{window}")


def clause_gauge(name: str, *, more: str = "") -> str:
    """A gauge of clauses, which all replicas on one ledger publish alike; ``more``: a selector in braces."""
    return f"{SAME} (calib_contract_{name}{more})"


def _of_window(name: str, window: str) -> str:
    return f"max without ({REPLICA}, window) (calib_contract_{name}{{window='{window}'}})"


def _formulas() -> Mapping[str, tuple[str, str]]:
    """series: (what it is, formula)."""
    return {
        clause_number("state"): (
            "1: kept; 0: not yet known; -1: broken.",
            f"{LEAST} (calib_contract_state)",
        ),
        clause_number("budget_spent"): (
            "Share of the error budget that is spent; above 1: overspent.",
            f"1 - {LEAST} (calib_contract_budget_left)",
        ),
        **{
            burn(window): (
                "Burn rate: 1 spends the budget in just its time.",
                _of_window("burn_rate", window),
            )
            for window in BURN_WINDOWS
        },
        **{
            burn_low(window): ("The least that its labels leave, 95 %.", _of_window("burn_rate_low", window))
            for window in _LONG
        },
    }


def recorded_clause_series() -> int:
    """How many series the rules record for a clause of a contract.

    >>> recorded_clause_series()
    10
    """
    return len(_formulas())


def contract_rules() -> str:
    """The group, as YAML."""
    rules = "".join(
        f"      # {says}\n      - record: {series}\n        expr: >-\n          {formula}\n"
        for series, (says, formula) in _formulas().items()
    )
    return f"  - name: calib_contracts\n    interval: {_INTERVAL}\n    rules:\n{rules}"
