"""A fresh Prometheus and a real watch: one stream is one number everywhere, from the first scrape on."""

import json
import re
import time
from contextlib import closing

import httpx
import numpy as np
import pytest
from collecting import until
from ledgers import entries, make_label, revoked
from real_prometheus import prometheus
from real_servers import Server

from calib_serve import evaluate
from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.bins import Bins
from calib_serve.ledger import Ledger
from calib_serve.web import monitoring_files

pytestmark = pytest.mark.server

N, V = 897, {"model": "digits", "version": "1.0"}
WINDOW = "24h"


class Stream:
    """A watch of two versions, a Prometheus that knows nothing of before, and what was sent."""

    def __init__(self, server, found):
        self.server, self.prometheus = server, found
        self.rng = np.random.default_rng(0)

    def send(self, n, *, version="1.0", off=0.1, label=True):
        """Predictions of class 1, labelled 1 where they are right."""
        c = np.maximum(self.rng.beta(5, 2, n), 0.34)  # of three classes, none is more probable
        y = self.rng.random(n) < c - off
        items = [
            {"model": "digits", "version": version, "predicted": 1, "confidence": float(one)} for one in c
        ]
        told = self.post("predictions", {"items": items})["items"]
        if label:
            labels = [
                {"receipt": one["receipt"], "label": int(right)} for one, right in zip(told, y, strict=True)
            ]
            self.post("labels", {"items": labels})
        return c, y

    def post(self, route, body, **more):
        answer = httpx.post(f"{self.server.url}/v1/{route}", json=body, timeout=60, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def number(self, name, version="1.0"):
        return self.prometheus.number(f"model_version:calib_{name}:{WINDOW}", version=version)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first_minute")
    reference = Bins.tally(np.random.default_rng(1).beta(5, 2, 500), np.ones(500))
    one = Artifact((LogitMap.temperature(1.5),), method="temperature", classes=3, reference=reference)
    one.save(folder / "artifact")
    models = (f"digits:1.0={folder / 'artifact'}", f"digits:2.0={folder / 'artifact'}")
    with Server(folder, "--maturity", "0", models=models) as server:
        # Everything is there before the first scrape.
        waiting = Stream(server, None)
        waiting.c, waiting.y = waiting.send(N)
        waiting.send(300, version="2.0")
        target = [(f"127.0.0.1:{server.port}", {})]
        with prometheus(tmp_path_factory.mktemp("prometheus"), target) as found:
            waiting.prometheus = found
            found.wait(f"count(model_version:calib_verdict:{WINDOW}) == 2")
            yield waiting


def test_one_stream_is_one_number_on_every_surface_from_the_first_scrape(stream):
    rest = (1 - stream.c) / 2
    p, y = np.stack([rest, stream.c, rest], axis=1), stream.y.astype(int)
    offline = evaluate(p, y, outputs="probabilities", replicates=0)
    ece, floor = offline.ece.value, offline.noise_floor.value
    assert stream.number("served") == stream.number("labels") == N
    assert stream.number("ece") == pytest.approx(ece, abs=1e-9)
    assert stream.number("noise_floor") == pytest.approx(floor, abs=1e-9)
    assert stream.number("verdict") == 1
    page = httpx.get(f"{stream.server.url}/", params={**V, "window": WINDOW}, timeout=60).text
    (shown,) = re.findall(r"<dt>ECE</dt><dd>([^<]*)</dd>", page)
    assert shown.replace("\xa0", " ") == f"{100 * ece:.1f} %"
    (labels,) = re.findall(r"<dt>Labels</dt><dd>([^<]*)</dd>", page)
    assert labels == f"{N:,}"
    for name in ("accuracy", "gap", "ece", "confidence_psi"):
        (gauge,) = stream.prometheus.query(f"calib_window_{name}{{window='{WINDOW}'}}", version="1.0")
        recorded = {"gap": "signed_gap"}.get(name, name)
        assert stream.number(recorded) == float(gauge["value"][1]), name


def test_no_query_of_the_dashboard_is_empty_within_a_minute(stream):
    (text,) = monitoring_files(parts=["dashboards"]).values()
    board = json.loads(text)
    queries = {
        (panel["title"], one["legendFormat"]): one["expr"]
        .replace("$model", "digits")
        .replace("$version", "1.0")
        for panel in board["panels"]
        for one in panel["targets"]
    }
    # A contract that nobody set aside; replies that only TorchServe's workers compare; this test's own jobs.
    without = ("Promises of its contract", "without receipt", "{{job}} {{instance}}")
    wanted = [one for one in queries if not any(text in " ".join(one) for text in without)]
    until(lambda: all(stream.prometheus.query(queries[one]) for one in wanted), what=str(wanted))


def test_what_is_taken_back_moves_its_own_series_at_the_next_scrape(stream):
    whole = {name: stream.number(name) for name in ("served", "labels", "ece")}
    series = stream.prometheus.query("calib_feedback_total", version="1.0")
    labels = f"model_version:calib_labels:{WINDOW}{{version='2.0'}}"
    more = [make_label(i, model="digits", version="2.0", when=time.time()) for i in range(200)]
    with closing(Ledger(stream.server.folder / "ledger.db")) as ledger:
        ledger.accept(entries(more, source="lab"))
        stream.prometheus.wait(f"{labels} == 500", seconds=30)
        assert revoked(ledger, "lab") == {("digits", "2.0"): 200}
    stream.prometheus.wait(f"{labels} == 300", seconds=30)
    assert {name: stream.number(name) for name in whole} == whole
    after = stream.prometheus.query("calib_feedback_total", version="1.0")
    assert [one["metric"] for one in after] == [one["metric"] for one in series]


def test_a_version_that_is_named_later_shows_all_that_was_held_at_the_next_scrape(stream):
    stream.send(500, version="3.0")
    stream.post("versions", {"model": "digits", "version": "3.0", "classes": 3})
    stream.prometheus.wait(f"model_version:calib_served:{WINDOW}{{version='3.0'}} == 500", seconds=30)
    stream.prometheus.wait(f"model_version:calib_labels:{WINDOW}{{version='3.0'}} == 500", seconds=30)
