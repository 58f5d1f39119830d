"""What is decided of labels: when a shadow is promoted, and when a promotion is taken back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from calib_serve.artifact import Clause, Contract
from calib_serve.promotion import broken_promises, judged
from calib_serve.watch.contracts import ContractFollower
from calib_serve.watch.ledger import Key, Noted, Shadowed, SqliteLedger
from calib_serve.watch.shadow import ShadowFollower

SERVED, OLD = ("m", "2"), ("m", "1")
FINGERPRINT = "sha256:0a1b2c3d" + 56 * "0"
CLAUSE = Clause("act", 0.9, above=0.8)
CONTRACT = Contract((CLAUSE,))
NOW = float(int(time.time()))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with_close = SqliteLedger(str(tmp_path / "ledger.db"))
    yield with_close
    with_close.close()


def rows(version: tuple[str, str], right: np.ndarray, served: float, shadow: float) -> list[Noted]:
    clause = (Key(*version, CLAUSE.id, "clause"),)
    beside = Shadowed(shadow, False, True, "0a1b2c3d")
    return [
        Noted(
            *("", *version, NOW, b"", NOW, served, bool(y), 1, 1.0, 0, clause),
            beside._replace(correct=bool(y)),
        )
        for y in right
    ]


def half(n: int) -> np.ndarray:
    """Right in every second one."""
    return np.arange(n) % 2


@pytest.mark.parametrize(
    ("served", "shadow", "verdict", "alone", "unless_worse"),
    [
        (0.9, 0.5, "better", True, True),
        (0.5, 0.9, "worse", False, False),
        (0.5, 0.5, "no worse", False, True),
    ],
)
def test_a_verdict_is_enough_or_not(
    ledger: SqliteLedger, served: float, shadow: float, verdict: str, *, alone: bool, unless_worse: bool
) -> None:
    found = rows(SERVED, half(4000), served, shadow)
    with ledger.transaction():
        ShadowFollower(ledger).feed(SERVED, found, now=NOW)
    told = judged(ledger, SERVED, FINGERPRINT)
    assert (told.verdict, told.promote) == (verdict, alone)
    assert judged(ledger, SERVED, FINGERPRINT, unless_worse=True).promote is unless_worse
    assert "4,000 labels" in told.reason
    assert told.numbers["labels"] == 4000


def test_of_another_shadow_or_version_nothing_is_known(ledger: SqliteLedger) -> None:
    with ledger.transaction():
        ShadowFollower(ledger).feed(SERVED, rows(SERVED, half(4000), 0.9, 0.5), now=NOW)
    for version, fingerprint in ((OLD, FINGERPRINT), (SERVED, "sha256:" + 64 * "1")):
        told = judged(ledger, version, fingerprint, unless_worse=True)
        assert (told.promote, told.verdict) == (False, "unknown")
        assert "serve it as a shadow first" in told.reason


def test_a_broken_contract_takes_back_only_what_the_version_before_had_kept(ledger: SqliteLedger) -> None:
    def broken() -> list[str]:
        return broken_promises(ledger, SERVED, CONTRACT, before=OLD, now=NOW)

    follower = ContractFollower(ledger, {SERVED: CONTRACT, OLD: CONTRACT})
    assert broken() == []
    with ledger.transaction():
        follower.feed(SERVED, rows(SERVED, half(400), 0.9, 0.5), now=NOW)
    (told,) = broken()
    assert told.startswith(CLAUSE.name)
    assert told.endswith("after 400 labels")
    assert broken_promises(ledger, SERVED, None, before=OLD, now=NOW) == []
    with ledger.transaction():
        follower.feed(OLD, rows(OLD, half(400), 0.9, 0.5), now=NOW)
    assert broken() == []
