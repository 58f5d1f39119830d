"""What a watch keeps of its windows is what it would find anew, whatever happened in between."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from ledgers import NOW, sweep
from real_watch import make_watch
from sizes import sized

from calib_serve.monitor import Watch, estimate, windows
from calib_serve.receipts import DAY, ServedPrediction, Sums
from calib_serve.web.window_gauges import WindowGauges

V = ("m", "1")

STEPS = st.one_of(
    st.tuples(
        st.just("serve"), st.integers(20, 60), st.sampled_from(["", "north"]), st.sampled_from(["", "g", "h"])
    ),
    st.tuples(st.just("label"), st.integers(5, 60), st.sampled_from(["desk", "crowd"])),
    st.tuples(st.just("correct"), st.integers(1, 20)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 20.0, 4000.0, 2 * DAY, 20 * DAY])),
    st.tuples(st.just("ask"), st.sampled_from(["1h", "7d", "30d"])),
    st.sampled_from([("revoke",), ("sweep",), ("roll_up",)]),
)


class Story:
    """A watch to which things happen, beside the series that it keeps."""

    def __init__(self, folder: Path, maturity: float, seed: int) -> None:
        self.folder, self.maturity, self.now = folder, maturity, NOW
        self.draw, self.asked = random.Random(seed), list[str]()
        self.waiting, self.labelled = list[Any](), dict[Any, int]()
        self.watch = self.opened()
        self.gauges = WindowGauges(self.watch, clock=lambda: self.now)

    def opened(self) -> Watch:
        return make_watch(self.folder, clock=lambda: self.now, maturity=self.maturity)

    def serve(self, n: int, segment: str, group: str) -> None:
        items = [
            ServedPrediction(
                *V,
                self.draw.randrange(3),
                self.draw.uniform(0.5, 1.0),
                segment,
                group and f"{group}{self.draw.randrange(9)}",
            )
            for _ in range(n)
        ]
        self.waiting += self.watch.predictions(items)

    def label(self, n: int, source: str) -> None:
        told, self.waiting = self.waiting[:n], self.waiting[n:]
        self.send({one: self.draw.randrange(3) for one in told}, source)

    def correct(self, n: int) -> None:
        """Replace labels by others, each but those that are revoked or forgotten."""
        told = self.draw.sample(list(self.labelled), min(n, len(self.labelled)))
        outcomes = self.send({one: (self.labelled[one] + 1) % 3 for one in told}, "desk", replaces=True)
        assert all(one.corrected or one.reason in ("revoked", "forgotten", "expired") for one in outcomes)

    def send(self, labels: Mapping[Any, int], source: str, **more: Any) -> Sequence[Any]:
        items = [{"receipt": receipt, "label": label, **more} for receipt, label in labels.items()]
        outcomes = self.watch.labels(items, source=source)
        self.labelled |= {
            one: labels[one] for one, said in zip(labels, outcomes, strict=True) if said.accepted
        }
        return outcomes

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, window: str) -> None:
        self.asked.append(window)
        self.gauges.ask(window)

    def revoke(self) -> None:
        self.watch.ledger.revoke("crowd", since=self.now - DAY)

    def sweep(self) -> None:
        sweep(self.watch.ledger, self.now)

    def roll_up(self) -> None:
        self.watch.ledger.roll_up()

    def sums(self) -> Sums:
        return self.watch.ledger.sums().get(V, Sums.zeros())

    def anew(self, patch: pytest.MonkeyPatch) -> dict[str, list[str]]:
        """The series as a program that has just started finds them, and keeps no estimate."""
        patch.setattr(windows, "_kept", windows._kept.__wrapped__)
        watch = self.opened()
        try:
            gauges = WindowGauges(watch, clock=lambda: self.now)
            for window in self.asked:
                gauges.ask(window)
            return plain(gauges.rows({V: self.sums()}))
        finally:
            watch.close()


def check_estimates(watch: Watch) -> None:
    """Each kept estimate is that of its own sums and groups."""
    for window in watch.windows(V, ("1h", "24h", "7d")).values():
        assert repr(window.estimates) == repr(estimate(window.sums, groups=window.groups))
        for sums in window.by_name("class").values():
            assert repr(window.judged(sums)[0]) == repr(estimate(sums))


def plain(rows: dict[str, list[tuple[tuple[str, ...], float]]]) -> dict[str, list[str]]:
    """Rows as texts, as NaN is unlike itself."""
    return {name: sorted(map(repr, of)) for name, of in rows.items() if of}


@pytest.mark.parametrize("maturity", [0.0, 3600.0])
# A story takes a second: a shorter one is not looked for.
@settings(max_examples=sized(6, 60), deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(steps=st.lists(STEPS, min_size=6, max_size=14), seed=st.integers(0, 2**32))
def test_kept_estimates_equal_those_found_anew_whatever_happens(
    maturity: float, steps: list[tuple[Any, ...]], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder), maturity, seed)
        made: tuple[float, bytes, int] | None = None
        for what, *how in (("serve", 60, "", "g"), ("label", 30, "desk"), ("correct", 5), *steps):
            getattr(story, what)(*how)
            check_estimates(story.watch)
            sums = story.sums()
            kept = plain(story.gauges.rows({V: sums}))
            stamp, asked = sums.vector.tobytes(), len({"24h", *story.asked})
            # Where no sum changed, what only moved by time may be 15 seconds old.
            if made is None or (stamp, asked) != made[1:] or story.now - made[0] > 15.0:
                made = story.now, stamp, asked
                with pytest.MonkeyPatch.context() as patch:
                    assert kept == story.anew(patch), (what, how)
        assert story.watch.intake.corrected[V] >= 5
        story.watch.close()
