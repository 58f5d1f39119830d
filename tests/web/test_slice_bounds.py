"""Slices have so many series at most: the most served ones, and those that are surely off."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from calib_serve import Keyring
from calib_serve.ledger import Ledger
from calib_serve.monitor import Watch, Watched
from calib_serve.receipts import ServedPrediction
from calib_serve.web.exporter import export


def test_of_many_segments_the_most_served_and_the_worst_have_series(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.db")
    watch = Watch(Keyring.new(), ledger, models={("m", "1"): Watched.of(30)}, maturity=0.0, segments=64)
    registry = CollectorRegistry()
    export(watch, registry)
    for i in range(30):
        told = ServedPrediction("m", "1", predicted=i, confidence=0.9, segment=f"s{i:02}")
        receipts = watch.predictions([told] * (130 - i))
        wrong = i in (25, 28)  # few are served, and none is right
        right = [
            {"receipt": str(one), "label": (i + (wrong or n % 10 == 0)) % 30}
            for n, one in enumerate(receipts)
        ]
        watch.labels(right)
    found: dict[tuple[str, str], dict[str, float]] = {}
    for family in registry.collect():
        for sample in family.samples if family.name == "calib_slice_gap" else ():
            at = sample.labels["kind"], sample.labels["window"]
            found.setdefault(at, {})[sample.labels["slice"]] = sample.value
    off = {25, 28}
    for kind, first in (("segment", "s"), ("class", "")):
        worst = {f"{first}{i}" for i in off}
        most = {f"{first}{i:02}" if first else str(i) for i in range(3)}
        assert found[kind, "24h"].keys() == most | worst, "chance explains the others"
        assert found[kind, "1h"].keys() == worst, "where nothing is off, nothing can be over"
    ledger.close()
