"""Alerts of contracts: promises that are broken, about to be, or of which nothing can be said.

Burn rates are alerted on over two windows, as the SRE workbook does (Beyer et al. 2018, chapter 5): the long
one says that it matters, the short one that it goes on. Here the long one needs evidence, too: the lower end
of its interval must lie above the bound. A short window without labels does not silence the long one.
"""

from __future__ import annotations

import json

from calib_serve.monitoring.alert import NAME, OWN_LABELS, Alert
from calib_serve.monitoring.contract_rules import burn, burn_low, clause_gauge, clause_number
from calib_serve.monitoring.queries import SUM, recorded

__all__ = ["BURN_ALERTS", "CONTRACT_ALERTS"]

BURN_ALERTS = ((14.4, "1h", "5m", "critical"), (6, "6h", "30m", "critical"), (1, "3d", "6h", "warning"))
"""(burn rate, long window, short window, severity): 2 % of 30 days' budget in an hour, 5 % in six, 10 % in
three days."""

_CLAUSE = "{{ $labels.clause }}"
_STATE, _SPENT = clause_number("state"), clause_number("budget_spent")
_BROKEN = f"{_STATE} == -1"
_RUNS_OUT = clause_gauge("runs_out_seconds")
_SOON = 3 * 86_400  # seconds
_LONG_UNKNOWN = "14d"
_PUBLISHED = f"{SUM[:-1]}, bin) (calib_predictions_total)"
"""Versions that are there: the contract of one that was taken away must not be missed."""


def _told(name: str, before: str, how: str, after: str) -> str:
    """A clause's gauge with words around it, where there is one; ``how``: how its value is written."""
    asked = json.dumps(clause_gauge(name, more="{%s}"))
    value = f"{{{{ . | first | value | {how} }}}}"
    return f"{{{{ with query (printf {asked} $own) }}}}{before}{value}{after}{{{{ end }}}}"


_SHARE = "humanizePercentage"
_NUMBERS = (
    OWN_LABELS
    + _told("promise", " Promised: ", _SHARE, ".")
    + _told("value", " Over its time: ", _SHARE, ".")
    + _told("low", " Since it is watched, at least ", _SHARE, "")
    + _told("high", " and at most ", _SHARE, " (95 %, at any time).")
    + _told("budget_left", " Budget left: ", _SHARE, ".")
    + _told("runs_out_seconds", " It is spent in ", "humanizeDuration", " at this rate.")
)


def _burning(rate: float, long: str, short: str, severity: str) -> Alert:
    return Alert(
        "ContractBurning",
        f"The error budget is spent at a burn rate above {rate:g}: over {long} by its whole 95 % interval, "
        f"and over {short} as far as there are labels.",
        f"{burn(long)} and {burn_low(long)} > {rate:g} unless {burn(short)} <= {rate:g}",
        f"{NAME}: the budget of {_CLAUSE} is spent {{{{ $value | humanize }}}} times as fast as promised "
        f"over {long}",
        _NUMBERS,
        severity=severity,
        window=long,
    )


CONTRACT_ALERTS = (
    Alert(
        "ContractBroken",
        "The promise is not kept: what labels say cannot be chance, whenever it is looked at (5 %).",
        # A scrape that fails once must not page twice.
        f"last_over_time({_STATE}[15m]) == -1",
        f"{NAME}: the contract is broken, {_CLAUSE}",
        _NUMBERS,
        severity="critical",
    ),
    *(_burning(*one) for one in BURN_ALERTS),
    Alert(
        "ContractBudgetGone",
        "The error budget of the clause's time is spent; whether the promise is broken is not known yet.",
        f"{_SPENT} >= 1 unless {_BROKEN}",
        f"{NAME}: {{{{ $value | humanizePercentage }}}} of the budget of {_CLAUSE} is spent",
        _NUMBERS,
        lasts="1h",
    ),
    Alert(
        "ContractBudgetRunsOut",
        "More than half of the error budget is spent, and the rest lasts for less than three days.",
        f"{_RUNS_OUT} < {_SOON} and {_SPENT} > 0.5 and {_SPENT} < 1",
        f"{NAME}: the budget of {_CLAUSE} runs out in {{{{ $value | humanizeDuration }}}}",
        _NUMBERS,
        lasts="1h",
    ),
    Alert(
        "ContractNotKnown",
        "At least 1,000 predictions were served in a day, and too few labels came to say how the promise "
        "stands.",
        f"{clause_gauge('promise')} unless {clause_gauge('value')}"
        f" and ignoring (clause) {recorded('served', '24h')} >= 1000",
        f"{NAME}: nothing is known of {_CLAUSE}, which promises {{{{ $value | humanizePercentage }}}}",
        lasts="1d",
    ),
    Alert(
        "ContractNotKnown",
        "For two weeks labels came, and they do not tell yet whether the promise is kept or broken.",
        f"{_STATE} == 0 and max_over_time(abs({_STATE})[{_LONG_UNKNOWN}:6h]) == 0"
        f" and {clause_gauge('labels')} > {clause_gauge('labels', more=f' offset {_LONG_UNKNOWN}')}",
        f"{NAME}: two weeks of labels do not tell whether {_CLAUSE} is kept",
        _NUMBERS,
        severity="info",
        window=_LONG_UNKNOWN,
    ),
    Alert(
        "ContractGone",
        "The version had this clause a day ago, and nothing watches it now.",
        f"({_STATE} offset 1d) unless {_STATE} and ignoring (clause) {_PUBLISHED}",
        f"{NAME}: {_CLAUSE} of its contract is not watched any more",
        lasts="15m",
    ),
)
"""In the order of alerts.yml."""
