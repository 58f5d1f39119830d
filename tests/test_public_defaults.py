"""What watches and judges by default, in numbers: one that changes is a change for who relies on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from calib_serve import Bins, calibrate, evaluate, judge
from calib_serve.core.bins import bin_index
from calib_serve.ledger import intake
from calib_serve.metrics import gaps
from calib_serve.monitor import Detector, _bin_gaps, estimates, live_verdict
from calib_serve.receipts import DAY, SKEW


def defaults(function: Callable[..., Any]) -> dict[str, object]:
    """Those that are numbers, texts or flags, of its own and of the options class that it takes."""
    parameters = inspect.signature(function).parameters
    known = {name: one.default for name, one in parameters.items()}
    if "options" in parameters:
        cls = vars(inspect.getmodule(function))[parameters["options"].annotation.removesuffix(" | None")]
        known |= {field.name: field.default for field in fields(cls)}
    return {name: value for name, value in known.items() if type(value) in (int, float, str, bool)}


def test_what_watches_and_judges_has_these_numbers() -> None:
    assert defaults(Detector) == {"arl": 100_000, "tolerance": 0.02, "bins": 15, "block": 1}
    assert defaults(bin_index) == defaults(Bins.tally) == {"bins": 15, "edges": "right"}
    assert defaults(evaluate) == {"bins": 15, "edges": "right", "replicates": 1000, "level": 0.95, "seed": 0}
    assert defaults(calibrate) == {"method": "auto", "cross_validate": True, "seed": 0}
    assert defaults(judge) == {"tolerance": 0.02}
    assert defaults(live_verdict.judge_estimates) == {"tolerance": 0.02, "event": ""}
    assert defaults(estimates.estimate) == {"missing": "chance"}
    assert defaults(intake.Intake) == {"ttl": 30 * 86_400.0, "detect": True, "hold": False}
    assert (DAY, SKEW, _bin_gaps.LEAST) == (86_400.0, 300.0, 5.0)
    assert (gaps.RISK, gaps.FEW) == (0.05, 500)
