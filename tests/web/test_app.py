"""The HTTP app over a real ledger: typed, bounded, guarded, and honest about every item."""

import functools
import json
import threading
import warnings
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from calib_serve.core.bins import Bins
from calib_serve.ledger import Ledger
from calib_serve.monitor import Detector
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.classes import Classes
from calib_serve.receipts.series import LEDGER_LABELS
from calib_serve.web import Limits, create_app

pytestmark = pytest.mark.store

with warnings.catch_warnings():
    # Newer starlettes ask for httpx2 at import; the client works with either.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

RING = Keyring("k", {"k": bytes(32)})
MODELS = {
    ("digits", "1.0"): Watched(Classes(3, ("zero", "one", "two")), Bins([5, 5], [2, 4], [2, 4])),
    ("digits", "2.0"): Watched(Classes(3)),
}


@pytest.fixture
def watch(tmp_path):
    ledger = Ledger(tmp_path / "l.db", bins=2)
    detector = functools.partial(Detector, arl=1000, bins=2)
    yield Watch(RING, ledger, models=MODELS, detector=detector, maturity=0.0, segments=2)
    ledger.close()


@pytest.fixture
def client(watch, monkeypatch):
    monkeypatch.setattr(Limits, "WAITING", 3)
    with TestClient(create_app(watch, hosts=["testserver"])) as client:
        yield client


def prediction(**more):
    return {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9} | more


def scrape(client):
    """{(name, sorted labels): value} of /metrics; without those that tell its ledger."""
    text = client.get("/metrics").text
    return {
        (
            sample.name,
            *sorted((k, v) for k, v in sample.labels.items() if k not in LEDGER_LABELS),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_prediction_gets_a_receipt_and_its_label_is_counted_once(client, watch):
    answer = client.post("/v1/predictions", json={"items": [prediction(), prediction(confidence=0.3)]})
    receipts = [one["receipt"] for one in answer.json()["items"]]
    labels = [{"receipt": receipts[0], "label": "one"}, {"receipt": receipts[1], "label": 0}]
    first = client.post("/v1/labels", json={"items": labels}).json()
    again = client.post("/v1/labels", json=labels).json()
    assert (first["accepted"], first["refused"]) == (2, 0)
    assert [one["reason"] for one in again["items"]] == ["duplicate"] * 2
    sums = watch.ledger.sums()["digits", "1.0"]
    assert sums.predictions.tolist() == [1, 1]
    assert sums.feedback == Bins([1, 1], [0.3, 0.9], [0, 1])


def test_ndjson_is_judged_line_by_line(client, watch):
    lines = [json.dumps(prediction()), "not json", json.dumps(prediction(version="9")), ""]
    answer = client.post(
        "/v1/predictions", content="\n".join(lines), headers={"content-type": "application/x-ndjson"}
    )
    good, bad, held = answer.json()["items"]
    assert "receipt" in good
    assert bad["reason"] == "malformed"
    assert "receipt" in held
    assert watch.ledger.held.counts() == {("digits", "9"): 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"confidence": 1.5}, {"confidence": "0.9"}, {"confidence": None}, {"predicted": 3}, {"predicted": -1},
        {"predicted": 1.5}, {"predicted": True}, {"model": ""}, {"extra": 1}, {"segment": "x" * 65},
    ],
)  # fmt: skip
def test_a_wrong_prediction_is_refused_alone(client, watch, wrong):
    answer = client.post("/v1/predictions", json=[prediction(), prediction(**wrong)]).json()["items"]
    assert "receipt" in answer[0]
    assert answer[1]["reason"] == "malformed"
    assert watch.ledger.sums()["digits", "1.0"].predictions.sum() == 1


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"[]", "text/plain", 415),
        (b"\xff\xfe", "application/json", 400),
        (b"[" + b" " * (5 << 20) + b"]", "application/json", 413),
        (b"[" + b"1," * 10_000 + b"1]", "application/json", 413),
    ],
)
def test_bodies_that_cannot_be_are_refused(client, content, kind, status):
    assert client.post("/v1/labels", content=content, headers={"content-type": kind}).status_code == status


def test_exported_sums_are_those_of_numpy(client):
    rng = np.random.default_rng(0)
    c, y = rng.random(300), rng.integers(0, 3, 300)
    items = [prediction(confidence=float(p), predicted=0) for p in c]
    receipts = [one["receipt"] for one in client.post("/v1/predictions", json=items).json()["items"]]
    labels = [{"receipt": r, "label": int(k)} for r, k in zip(receipts, y, strict=True)]
    assert client.post("/v1/labels", json=labels).json()["accepted"] == 300
    found, want = scrape(client), Bins.tally(c, y == 0, bins=2)
    own = ("model", "digits"), ("version", "1.0")
    for name, column in (("", want.count), ("_confidence", want.confidence), ("_correct", want.correct)):
        of = {"sum": f"feedback{name}", "window": "24h"}
        got = [
            n
            for key, n in sorted(found.items())
            if key[0] == "calib_window_sums" and {*own, *of.items()} <= {*key[1:]}
        ]
        np.testing.assert_allclose(got, column, rtol=1e-12)
    refused = client.get("/metrics", params={"window": "5m"})
    assert (refused.status_code, refused.json()["detail"]) == (400, "a window is one of 1h, 24h, 7d, 30d")


def test_segments_are_bounded_whatever_clients_invent(client, watch):
    items = [prediction(segment=f"user-{i}") for i in range(500)]
    receipts = [one["receipt"] for one in client.post("/v1/predictions", json=items).json()["items"]]
    labels = [{"receipt": r, "label": 1, "segment": f"u{i}"} for i, r in enumerate(receipts)]
    client.post("/v1/labels", json=labels)
    assert {key.name for key in watch.ledger.slices()} == {"user-0", "user-1", "other"}
    assert watch.ledger.sums()["digits", "1.0"].feedback.n == 500
    assert client.get("/", params={"segment": "other"}).status_code == 200


def test_too_many_batches_are_told_so_at_once(client, watch):
    release = threading.Event()
    take = watch.intake.take

    def slow(items, **more):
        assert release.wait(120)
        return take(items, **more)

    watch.intake.take = slow
    with ThreadPoolExecutor(4) as pool:
        waiting = {pool.submit(client.post, "/v1/labels", json=[]) for _ in range(4)}
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED, timeout=60)
        release.set()
        full = done.pop().result()
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert [one.result().status_code for one in waiting].count(200) == 3 - len(done)


def drift(client, watch):
    """Sixty labels that show no prediction right, seen by the detector."""
    items = [prediction(confidence=0.95) for _ in range(60)]
    receipts = [one["receipt"] for one in client.post("/v1/predictions", json=items).json()["items"]]
    client.post("/v1/labels", json=[{"receipt": r, "label": 0} for r in receipts])
    watch.feed.tick()


def test_drift_opens_an_incident_that_metrics_api_and_page_show(client, watch):
    drift(client, watch)
    found = scrape(client)
    alarms, still = (
        found[name, ("model", "digits"), ("version", "1.0")]
        for name in ("calib_drift_alarms_total", "calib_incidents_open")
    )
    assert alarms > still == 1
    assert found["calib_incidents_open", ("model", "digits"), ("version", "2.0")] == 0
    (incident,) = client.get("/v1/incidents").json()["items"]
    assert (incident["direction"], incident["gap"]) == ("overconfident", pytest.approx(0.95))
    assert "overconfident, +95.0 points so far" in client.get("/").text


def test_a_person_closes_an_incident_once_with_a_note(client, watch):
    drift(client, watch)
    said = {"by": "Ada", "note": "camera was dirty <b>"}
    assert client.post("/v1/incidents/7/close", json=said).status_code == 404
    closed = client.post("/v1/incidents/1/close", json=said).json()
    assert (closed["closed_by"], closed["note"]) == ("Ada", said["note"])
    assert client.post("/v1/incidents/1/close", json=said).status_code == 404
    assert scrape(client)["calib_incidents_open", ("model", "digits"), ("version", "1.0")] == 0
    page = client.get("/").text
    assert "by Ada" in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("number", "content"),
    [
        ("1", b'{"by": ""}'),
        ("1", b'{"by": "a", "more": 1}'),
        ("1", b'{"by": "\\ud800"}'),
        ("1", b'{"by": "' + b"a" * 101 + b'"}'),
        ("1", b'{"by": ' + b"[" * 5000),
        ("1", b"\xff"),
        ("9" * 4301, b'{"by": "a"}'),
    ],
)
def test_what_cannot_close_an_incident_is_refused_and_closes_none(client, watch, number, content):
    drift(client, watch)
    headers = {"content-type": "application/json"}
    answer = client.post(f"/v1/incidents/{number}/close", content=content, headers=headers)
    assert answer.status_code in (400, 404, 422)
    assert [one.open for one in watch.incidents()] == [True]


def test_names_from_clients_are_escaped_on_the_page(tmp_path):
    name = "<script>alert(1)</script>"
    ledger = Ledger(tmp_path / "x.db")
    watch = Watch(RING, ledger, models={(name, "1"): Watched(Classes(2))})
    client = TestClient(create_app(watch, hosts=["testserver"]))
    client.post("/v1/predictions", json=[prediction(model=name, version="1", segment=name)])
    page = client.get("/").text
    assert name not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    ledger.close()


@pytest.mark.parametrize(
    ("asked", "compressed"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5, br", True),
        ("GZip ;q=1.0", True),
        ("", False),
        ("identity", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000, identity", False),
        ("x-gzipped", False),
    ],
)
def test_a_scrape_is_compressed_where_it_is_asked_for(client, asked, compressed):
    answer = client.get("/metrics", headers={"Accept-Encoding": asked})
    assert answer.headers.get("content-encoding") == ("gzip" if compressed else None)
    assert answer.headers["vary"] == "Accept-Encoding"
    assert "calib_window_sums" in answer.text, "the client unpacks it"
    assert (int(answer.headers["content-length"]) < len(answer.text) / 4) == compressed


def test_a_version_of_many_classes_is_named_and_every_body_has_the_bound_that_the_error_names(client):
    names = [f"class {i} of a catalogue" for i in range(100_000)]
    told = {"model": "shop", "version": "1", "classes": len(names), "class_names": names}
    assert client.post("/v1/versions", json=told).json() == {
        "model": "shop",
        "version": "1",
        "classes": 100_000,
    }
    posts = [path for path, one in client.get("/openapi.json").json()["paths"].items() if "post" in one]
    assert len(posts) == 5
    for path in posts:
        headers = {"content-type": "application/json", "idempotency-key": "k"}
        answer = client.post(path.format(number=1), content=b" " * (4 << 20) + b"{}", headers=headers)
        assert answer.status_code == 413
        assert "4194304 bytes" in answer.json()["detail"]
        said = client.get("/openapi.json").json()["paths"][path]["post"]["responses"]["413"]["description"]
        assert "4 MiB" in said


def test_the_schema_lists_scopes_of_which_one_is_enough_each_by_itself(watch: Watch) -> None:
    """OpenAPI means all scopes of an entry, and one entry of the list."""
    said = create_app(watch, tokens=["t" * 20]).openapi()["paths"]["/v1/incidents"]["get"]["security"]
    assert said == [{name: [scope]} for name in ("token", "password") for scope in ("scrape", "admin")]
