"""One stream through every surface: the same figure under the same name, and provisional ones that say so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import invoke
from prometheus_client import CollectorRegistry
from pyarrow import parquet
from real_watch import make_watch, talk_to
from rules_by_numpy import by_numpy

from calib_serve import evaluate, judge
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.integrations.audit.measuring import audit
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import DAY
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.report import prepare_report, render
from calib_serve.web.exporter import WatchCollector

pytestmark = pytest.mark.store

N, V = 1500, ("m", "1")


def stream() -> tuple[Any, Any, Any]:
    """Probabilities (n, 3), class ids of which three in ten are drawn by chance, and what is predicted."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet([0.6, 0.6, 0.6], N)
    y = (p.cumsum(axis=1) > rng.random((N, 1))).argmax(axis=1)
    return p, np.where(rng.random(N) < 0.3, rng.integers(0, 3, N), y), p.argmax(axis=1)


def serve(watch: Watch, p: Any, y: Any, predicted: Any) -> None:
    items = [ServedPrediction(*V, int(k), float(one.max())) for one, k in zip(p, predicted, strict=True)]
    receipts = watch.predictions(items)
    told = [{"receipt": r, "label": int(label)} for r, label in zip(receipts, y, strict=True)]
    assert all(one.accepted for one in watch.labels(told))


def gauges(watch: Watch, name: str, window: str = "24h") -> dict[str, float]:
    registry = CollectorRegistry()
    collector = WatchCollector(watch)
    collector.ask(window)
    registry.register(collector)
    wanted = {"model": "m", "version": "1", "window": window}
    return {
        sample.name.removeprefix(name): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.startswith(name) and sample.labels == wanted
    }


def test_one_stream_has_one_ece_and_one_level_wherever_it_is_looked_at(tmp_path: Path) -> None:
    p, y, predicted = stream()
    offline = evaluate(p, y, outputs="probabilities", replicates=0)
    ece, floor = offline.ece.value, offline.noise_floor.value
    np.savez(tmp_path / "s.npz", probs=p, labels=y)
    done = invoke(["evaluate", str(tmp_path / "s.npz"), "--json"])
    told = json.loads(done.stdout)
    assert told["ece"]["value"] == pytest.approx(ece, abs=1e-9)
    assert told["noise_floor"]["value"] == pytest.approx(floor, abs=1e-9)
    contents = prepare_report(title="s", after=(p, y), options=ReportOptions(replicates=0))
    report = contents.as_dict()["sides"][0]["metrics"]
    assert report["ece"]["value"] == pytest.approx(ece, abs=1e-9)
    assert report["noise_floor"]["value"] == pytest.approx(floor, abs=1e-9)
    ids = np.arange(N)
    logged = {"id": ids, "predicted": predicted, "confidence": p.max(axis=1)}
    parquet.write_table(pa.table(logged), tmp_path / "p.parquet")
    parquet.write_table(pa.table({"id": ids, "label": y}), tmp_path / "l.parquet")
    audited = audit(tmp_path / "p.parquet", tmp_path / "l.parquet").total
    assert audited.as_dict()["labelled"]["ece"] == pytest.approx(ece, abs=1e-9)
    assert audited.as_dict()["estimated"]["ece"] == pytest.approx(ece, abs=1e-9)
    assert audited.as_dict()["estimated"]["noise_floor"] == pytest.approx(floor, abs=1e-9)
    # What promtool finds of the recording rules (tests/deploy), in numpy.
    recorded = by_numpy(p.max(axis=1), predicted == y, np.ones(N), np.ones(N))
    assert recorded["ece"] == pytest.approx(ece, abs=1e-9)
    assert recorded["noise_floor"] == pytest.approx(floor, abs=1e-9)
    watch = make_watch(tmp_path, maturity=0.0)
    serve(watch, p, y, predicted)
    window = watch.window(V, "24h")
    assert window.estimates.ece == pytest.approx(ece, abs=1e-9)
    assert window.estimates.noise_floor == pytest.approx(floor, abs=1e-9)
    assert gauges(watch, "calib_window_")["ece"] == pytest.approx(ece, abs=1e-9)
    assert gauges(watch, "calib_window_")["noise_floor"] == pytest.approx(floor, abs=1e-9)
    with talk_to(watch) as client:
        page = client.get("/", params={"window": "24h"}).text
    for shown in (page, render(contents)):
        (figure,) = re.findall(r"<dt>ECE</dt><dd>([^<]*)</dd><dd class=.note.>([^<]*)</dd>", shown)
        assert [one.replace("\xa0", " ") for one in figure] == [
            f"{100 * ece:.1f} %",
            f"chance alone: {100 * floor:.1f} %",
        ]
    levels = {judge(p, y, outputs="probabilities").level, told["verdict"]["level"]}
    assert levels == {audited.verdict.level} == {window.verdict.level} == {"off"}
    watch.close()


def test_labels_a_day_late_are_provisional_at_once_and_mature_on_the_third_day(tmp_path: Path) -> None:
    """A thousand predictions a day, all but one in ten labelled after 24 to 26 hours."""
    start = 1_790_000_000.0
    now = [start]
    watch = make_watch(tmp_path, clock=lambda: now[0])
    rng = np.random.default_rng(0)
    waiting: list[tuple[float, str, int]] = []
    first_label = provisional = mature = np.inf
    for quarter in range(int((3 * DAY + 3600) / 900)):
        now[0] = start + 900 * quarter
        confidences = 1 - 0.6 * rng.beta(1, 3, 10)
        receipts = watch.predictions([ServedPrediction(*V, 1, float(one)) for one in confidences])
        for confidence, receipt in zip(confidences, receipts, strict=True):
            label = 1 if rng.random() < confidence else 2
            if confidence > min(confidences):
                waiting.append((now[0] + rng.uniform(24, 26) * 3600, str(receipt), label))
        due = [one for one in waiting if one[0] <= now[0]]
        waiting = [one for one in waiting if one[0] > now[0]]
        if due:
            watch.labels([{"receipt": receipt, "label": label} for _, receipt, label in due])
            first_label = min(first_label, now[0])
        if quarter % 4 == 3:
            found = watch.window(V, "7d")
            assert found.estimates.labels or not np.isfinite(first_label), "labels were counted"
            if found.provisional and np.isfinite(found.estimates.accuracy.value):
                provisional = min(provisional, now[0])
                assert found.verdict.headline.startswith("Provisional")
                assert found.verdict.level == "too_little"
            if not found.provisional:
                mature = min(mature, now[0])
        if quarter == int(1.6 * DAY / 900):
            told = gauges(watch, "calib_window_", "7d")
            assert (told["provisional"], told["immature_share"]) == (1, 1)
            assert "verdict" not in told
            with talk_to(watch) as client:
                page = client.get("/", params={"window": "7d"}).text
            assert "Provisional" in page
            assert "mature once the longest usual delay has been seen" in page
    assert provisional - first_label <= 3600
    assert mature - start <= 3 * DAY
    assert gauges(watch, "calib_window_", "7d")["provisional"] == 0
    watch.close()
