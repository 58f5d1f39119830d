"""Predictions go home in few large batches, however slowly the watch answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calib_serve.reporter.home import HomewardQueue, Served
from calib_serve.watch.intake import Outcome


class Slow:
    """Acknowledges every batch, while ten more predictions are made."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.queue = HomewardQueue(self, lambda *_stages, **_times: None, most=100_000)

    def predictions(self, batch: Sequence[Served | str], *, once: str) -> list[Outcome]:
        self.batches.append([str(one) for one in batch])
        if len(self.batches) < 1000:
            self.queue.put([f"{len(self.batches)}-{i}" for i in range(10)])
        return []

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        raise AssertionError("no labels here")


def test_what_comes_while_a_batch_is_sent_waits_for_the_next_time() -> None:
    slow = Slow()
    slow.queue.put([f"first-{i}" for i in range(2500)])
    assert slow.queue.send()
    assert [len(batch) for batch in slow.batches] == [1000, 1000, 520]
    assert len(slow.queue) == 10
    assert slow.queue.send()
    assert len(slow.batches) == 4
    sent = [receipt for batch in slow.batches for receipt in batch]
    assert len(sent) == len({*sent}) == 2500 + 30
