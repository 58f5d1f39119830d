"""What a reporter keeps while its watch is away: bounded in bytes, and each prediction is counted at last."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from calib_serve import Keyring, Reporter
from calib_serve.core.errors import Unanswered
from calib_serve.receipts import reporter as module
from calib_serve.receipts.destination import Batch, Served

MODEL = {"model": "m", "version": "1"}


class Away:
    """A watch that is away until it is back, and then keeps what it is sent to be looked at."""

    sample_rate = 1.0

    def __init__(self) -> None:
        self.here, self.one_by_one, self.added_up = False, list[Any](), 0

    def count(self, batch: Batch) -> list[str]:
        if not self.here:
            raise Unanswered("nobody is there")
        ones = [one for one in batch.items if isinstance(one, Served)]
        self.one_by_one += ones
        self.added_up += sum(batch.counts) - len(ones)
        return [""] * len(batch.items)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Away:
    made = Away()
    monkeypatch.setattr(module, "destination_of", lambda *_: made)
    return made


def made(classes: int, **options: Any) -> Reporter:
    return Reporter(
        classes, **MODEL, keyring=Keyring.new(), registry=CollectorRegistry(), watch="away",
        flush_seconds=3600, **options,
    )  # fmt: skip


def failures(reporter: Reporter, stage: str) -> float:
    return reporter.registry.get_sample_value("calib_monitor_errors_total", {"stage": stage}) or 0.0


def waiting_bytes(reporter: Reporter) -> int:
    """Bytes of what waits one by one, as the interpreter has them."""
    box = reporter._outbox
    assert box is not None
    named = [one for batch in box._named for one in batch.items if isinstance(one, Served)]
    held = [*box._last, *named]
    parts = [part for one in held for part in one]
    return sum(map(sys.getsizeof, held)) + sum(
        sys.getsizeof(one) + sys.getsizeof(getattr(one, "__dict__", "")) for one in parts if one
    )


@pytest.mark.parametrize("named", [False, True], ids=["without ids", "with ids"])
def test_an_hour_of_a_large_model_waits_in_bounded_memory_and_all_of_it_is_counted(
    home: Away, named: bool
) -> None:
    classes, calls = 1000, 20
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(classes), 2_000)
    z = np.log(p)
    reporter = made(classes)
    for call in range(calls):  # more of them do not change what is kept
        ids = [f"order {call} {i}" for i in range(len(p))] if named else ""
        assert None not in reporter.served(p, logits=z, id=ids)
        if call % 10 == 0:
            reporter.flush()
    assert waiting_bytes(reporter) < 40 << 20
    assert failures(reporter, "logits") > 30_000
    assert (failures(reporter, "ids") > 0) == named
    home.here = True
    assert reporter.flush() == 0
    assert len(home.one_by_one) + home.added_up == calls * len(p)
    assert sum(one.numbers is not None for one in home.one_by_one) > 5_000, "some logits are kept"
    with_id = sum(bool(one.id) for one in home.one_by_one)
    assert with_id == (calls * len(p) - failures(reporter, "ids") if named else 0)
    reporter.close()


def test_what_was_taken_makes_room_again(home: Away) -> None:
    reporter = made(1000)
    p = np.full((4_000, 1000), 1e-3)
    for _ in range(3):
        home.here = False
        reporter.served(p, logits=np.log(p))
        reporter.served(p, logits=np.log(p))
        lost = failures(reporter, "logits")
        home.here = True
        assert reporter.flush() == 0
    assert len(home.one_by_one) + home.added_up == 24_000
    assert lost < 3 * 3_000
    reporter.close()


TEXT = st.text(st.characters(codec=None), max_size=300) | st.sampled_from(
    ["\ud800", "x" * 64, "\0", "ü" * 63]
)


@given(segment=TEXT, group=TEXT, id=TEXT, low=st.sampled_from([0.0, -np.inf, -1e300, np.nan]))
def test_nothing_that_a_client_names_raises_into_a_prediction_or_is_signed_and_not_counted(
    segment: str, group: str, id: str, low: float
) -> None:
    home = Away()
    home.here = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "destination_of", lambda *_: home)
        reporter = made(3)
        told = {"segment": segment, "group": group, "id": id, "logits": [[2.0, 1.0, low]]}
        (receipt,) = reporter.served([[0.7, 0.3, 0.0]], **told)
        assert receipt is not None
        assert reporter.flush() == 0
        reporter.close()
    assert len(home.one_by_one) + home.added_up == 1
    for one in home.one_by_one:
        assert one.numbers is None or np.isfinite(one.numbers).all()
        one.id.encode()
