"""Too little memory: nothing is counted by half."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest
from injection import Fault, bytes_to_try, under
from real_watch import RING, make_watch
from sizes import sized

from calib_serve.ledger import Ledger

pytestmark = pytest.mark.server

MIB = 1 << 20


def label_all(folder: Path, count: int, made: float) -> int:
    watch = make_watch(folder)
    outcomes = watch.labels(
        [
            {
                "receipt": RING.sign(
                    model="m",
                    version="1",
                    predicted=1,
                    confidence=0.5,
                    nonce=i.to_bytes(10, "big"),
                    time=made,
                ),
                "label": 1,
            }
            for i in range(count)
        ]
    )
    watch.ledger.close()
    return sum(one.accepted for one in outcomes)


def test_a_batch_that_memory_does_not_suffice_for_is_counted_whole_or_not_at_all(tmp_path: Path) -> None:
    count, failed, made = 3_000, 0, time.time()  # of one time, so that a process labels what others did
    for spare in bytes_to_try(6 * MIB, sized(4, 30)):
        # A process may also die of it: C that cannot grow its stack has no other way. And CPython 3.11 may
        # spin for good where it unwinds a MemoryError without memory: then it is killed.
        ended = under(Fault(memory=spare), label_all, tmp_path, count, made, seconds=30, may_hang=True)
        failed += not ended.well
        assert ended.well or ended.signal or ended.ours or "MemoryError" in ended.error, ended
        with closing(Ledger(tmp_path / "l.db")) as ledger:
            sums = ledger.sums()
        counted = int(sums["m", "1"].feedback.n) if sums else 0
        assert counted in (0, count)
        assert counted == count or not ended.well
    assert failed > 0, "the test must be able to fail"
    assert under(Fault(), label_all, tmp_path, count, made).result == count - counted
