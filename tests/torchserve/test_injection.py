"""Text that users can reach never becomes a metric, and never costs one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from live_server import (
    Running,
    exported,
    inputs,
    rewritten,
    samples,
    serve,
    temperature_artifact,
    total,
    until,
)

from calib_serve.torchserve import pack, pack_feedback

pytestmark = pytest.mark.server

FORGED = (
    "[METRICS]calib_predictions_total.Count:100000"
    "|#model:digits,version:1.0,bin:3|#type:COUNTER|#hostname:h,1"
)
ODD = {
    "newline": f"\n{FORGED}\n",
    "carriage return": f"\r{FORGED}\r",
    "CRLF": f"\r\n{FORGED}\r\n",
    "next line": f"\x85{FORGED}\x85",
    "line separator": f"\u2028{FORGED}\u2028",
    "paragraph separator": f"\u2029{FORGED}\u2029",
    "form feed": f"\x0c{FORGED}\x0b",
    "bare": FORGED,
    "separators": "a:b,c|d #e",
    "unicode": "\u732b \U0001f408 \u202e \ufeff \x00 \x1b[31m",
    "long": "x" * 100_000,
}

ECHOING = '''
import logging

from calib_serve.torchserve.classifier import CalibratedClassifier


class Handler(CalibratedClassifier):
    """Logs the client's own words, which no handler should do."""

    def _read(self, payload):
        if isinstance(payload, dict) and "log" in payload:
            logging.getLogger().info("got %s", payload["log"])
        return super()._read(payload)
'''


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("injection")
    path = pack(
        exported(folder / "net.pt2"),
        temperature_artifact(),
        folder / "store",
        name="digits",
        batch_size=4,
        flush_seconds=0.1,
        unproven=True,
    )
    rewritten(path, {"calibrated_classifier.py": ECHOING})
    pack_feedback(folder / "store")
    yield from serve(folder / "store", ["digits.mar", "calibration_feedback.mar"], folder / "run")


@pytest.fixture
def sound(running: Running) -> Iterator[None]:
    """Around each test: the same workers, the same series, and counters exact to the last."""
    pids = running.server.workers("digits") + running.server.workers("calibration_feedback")
    series = set(samples(running.server.scrape(), "calib_predictions_total"))
    assert len(series) == 15
    yield
    assert running.predict(inputs(1)[0].tolist()).status_code == 200
    text = running.settled()
    assert total(text, "calib_predictions_total") == len(running.served)
    assert set(samples(text, "calib_predictions_total")) == series
    assert running.server.workers("digits") + running.server.workers("calibration_feedback") == pids


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_in_bodies(running: Running, text: str) -> None:
    for kind in ("application/json", "text/plain", "application/octet-stream", "x/y; charset=z"):
        reply = running.predict(
            None, content=text.encode("utf-8", "surrogatepass"), headers={"content-type": kind}
        )
        assert reply.status_code == 400
        as_json = running.predict(None, content=json.dumps([text]).encode(), headers={"content-type": kind})
        assert as_json.status_code == 400


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
def test_in_labels_and_receipts(running: Running, text: str) -> None:
    receipt = running.predict(inputs(1)[0].tolist()).json()["receipt"]
    items = [
        {"receipt": receipt, "label": text},
        {"receipt": text, "label": 1},
        {"receipt": receipt, "label": {text: text}},
        {text: text},
        text,
    ]
    before = total(running.server.scrape(), "calib_feedback_total")
    outcome = running.label(items).json()
    assert (outcome["accepted"], outcome["refused"]) == (0, 5)
    assert {o["reason"] for o in outcome["outcomes"]} == {"bad_label", "malformed"}
    body = "\n".join(json.dumps(item) for item in items).encode() + b"\n" + text.encode()
    lines = running.http.post(
        "/predictions/calibration_feedback", content=body, headers={"content-type": "application/x-ndjson"}
    )
    assert lines.status_code == 400 or lines.json()["accepted"] == 0
    assert total(running.server.scrape(), "calib_feedback_total") == before


ODD_HEADERS = (
    b"\xff\xfe\x80",
    b"\xe2\x80\xa8[METRICS]x",
    b"\xc2\x85[METRICS]x",
    b"a" * 7000,
    b"\xf0\x9f\x90\x88",
    b"\xed\xa0\x80",
    b"\t",
    b'"; drop',
)


@pytest.mark.usefixtures("sound")
def test_in_headers(running: Running) -> None:
    where = urlsplit(running.server.inference)
    token = running.server.tokens.inference

    def send(value: bytes) -> bytes:
        with socket.create_connection((where.hostname, where.port), timeout=60) as raw:
            raw.sendall(
                b"POST /predictions/digits HTTP/1.1\r\nHost: h\r\n"
                + f"Content-Type: application/json\r\nAuthorization: Bearer {token}\r\n".encode()
                + b"X-Odd: "
                + value
                + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]"
            )
            return raw.recv(100)

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(send, ODD_HEADERS))
    assert all(reply.startswith(b"HTTP/1.1 400") for reply in replies)


@pytest.mark.last
@pytest.mark.parametrize("kind", ["newline", "carriage return", "next line", "line separator"])
def test_the_same_text_in_a_log_line_does_forge_a_metric(running: Running, kind: str) -> None:
    """Why request content is never logged; and proof that the tests above could fail."""
    before = total(running.server.scrape(), "calib_predictions_total")
    running.predict({"log": ODD[kind]})
    until(lambda: total(running.server.scrape(), "calib_predictions_total") >= before + 100_000)
