"""What no client and no server may do to the gateway: other servers, other models, other readings, floods."""

from __future__ import annotations

import gzip
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from command_line import calib_serve
from gateways import ASKED, CLASSES, INFER, METHOD, Answers, Running, document, gateway, message, post, probs
from gateways import logits as model_logits
from live_server import until
from real_watch import TestClient
from recording_server import Recording, reply
from test_conformance import message as request
from test_conformance import raw
from tritonclient.grpc import service_pb2

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.gateway.app import open_gateway
from calib_serve.web import Limits

pytestmark = pytest.mark.server

OTHER = "/v2/models/other/infer"


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "path",
    [
        "http://127.0.0.1:1/v2",
        "@127.0.0.1:1/",
        "*",
        "/v2/models/%2e%2e/models/digits/infer",
        "/v2/models/other/../digits/infer",
        "/v2//models/digits/infer",
        "/v2/models/other%2f..%2fdigits/infer",
        "/v2/models/other\\digits/infer",
        "/v2/models/d%2569gits/infer",
        "/v2/models/digits;v=1/infer",
        "/v2/models/digits%00/infer",
        "/v2/models/%ff/infer",
        "/v2/models/digits/infer#/ready",
    ],
)
def test_addresses_of_others_and_addresses_with_two_readings_are_refused(
    before: Running, server: Recording, path: str
) -> None:
    assert status(raw(before.http, request("POST", path, b"{}"))) == 400
    assert not server.requests


@pytest.mark.parametrize(
    "path",
    [
        INFER,
        "/v2/models/d%69gits/infer",
        "/v2/models/digits/infer/",
        "/v2/models/digits/versions/1/infer",
        "/v2/models/digits/infer?x=1",
    ],
)
def test_every_spelling_of_a_calibrated_model_is_calibrated_and_goes_on_as_written(
    before: Running, server: Recording, path: str
) -> None:
    found = post(before, path=path).json()
    names = ["confidence", "receipt", "abstain", "set", "act", "decision"]
    assert [one["name"] for one in found["outputs"]][1:] == names
    assert server.requests[0].startswith(f"POST {path} HTTP/1.1\r\n".encode())


def smuggled(body: bytes, *headers: str) -> bytes:
    return "\r\n".join([f"POST {INFER} HTTP/1.1", "Host: a", *headers, "", ""]).encode() + body


HIDDEN = b"POST /hidden HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        smuggled(b"0\r\n\r\n" + HIDDEN, "Content-Length: 4", "Transfer-Encoding: chunked"),
        smuggled(b"{}" + HIDDEN, "Content-Length: 2", "Content-Length: 90"),
        smuggled(b"{}" + HIDDEN, "Content-Length: 2, 90"),
        smuggled(b"{}" + HIDDEN, "Content-Length: +2"),
        smuggled(b"0\r\n\r\n" + HIDDEN, "Transfer-Encoding: xchunked"),
        smuggled(b"0\r\n\r\n" + HIDDEN, "Transfer-Encoding: chunked, identity"),
        smuggled(b"0\r\n\r\n" + HIDDEN, "Transfer-Encoding : chunked"),
        smuggled(b"0\r\n\r\n" + HIDDEN, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        smuggled(b"2\r\n{}\r\nx\r\n\r\n" + HIDDEN, "Transfer-Encoding: chunked"),
        smuggled(b"{}", "Content-Length: 2", " folded: 1"),
        smuggled(b"{}", "Content-Length: 2", "a\x00b: 1"),
        smuggled(b"{}", "Content-Length: 2", "a: " + "b" * (1 << 17)),
        smuggled(b"{}", "Content-Length: 2", "Inference-Header-Content-Length: 9"),
        smuggled(b"{}", "Content-Length: 2", "Inference-Header-Content-Length: -1"),
        smuggled(b"{}", "Content-Length: 2", *["Inference-Header-Content-Length: 1"] * 2),
    ],
    ids=range(15),
)
def test_a_request_that_two_servers_would_read_differently_reaches_nobody(
    before: Running, server: Recording, sent: bytes
) -> None:
    try:
        assert status(raw(before.http, sent)) in (400, 431, 501)
    except ConnectionResetError:
        assert len(sent) > 1 << 16  # it is cut off while it is being sent
    assert not server.requests


def test_no_cache_may_keep_a_reply_that_has_a_receipt(before: Running, server: Recording) -> None:
    """Whatever the server says: a reply that is given twice has one receipt for two predictions."""
    kept = (
        "Cache-Control: public, max-age=600",
        "Expires: Fri, 01 Jan 2100 00:00:00 GMT",
        "Age: 3",
        "Server: s",
    )
    for more in ((), kept, ("cache-control: max-age=9", "Cache-Control: s-maxage=9", "ETag: x")):
        server.answer = lambda _, more=more: reply(document(), *more)
        found = post(before)
        assert b"receipt" in found.content
        assert found.headers.get_list("cache-control") == ["no-store"]
        assert not {"expires", "age", "etag"} & set(found.headers)
        assert found.headers.get("server") == ("s" if more is kept else None)
    server.answer = lambda _: reply(b"{}", *kept)  # no prediction: as it came
    assert post(before).headers["cache-control"] == "public, max-age=600"


def test_headers_of_one_connection_stay_there_and_others_go_on(before: Running, server: Recording) -> None:
    for path in (INFER, OTHER):
        headers = ["Connection: close, X-Mine", "X-Mine: 1", "TE: trailers", "Upgrade: h2c", "Keep-Alive: 5"]
        headers += ["Proxy-Authorization: Basic eA==", "Authorization: Bearer mine", "X-Other: 1"]
        raw(before.http, request("POST", path, b"{}", *headers, chunked=True, close=False))
        head = server.requests[-1].partition(b"\r\n\r\n")[0].lower()
        assert b"authorization: bearer mine" in head
        assert b"x-other: 1" in head
        assert f"host: 127.0.0.1:{server.port}".encode() in head
        for gone in (b"x-mine", b"te:", b"upgrade", b"keep-alive", b"proxy-", b"host: localhost"):
            assert gone not in head, gone
        assert not (b"content-length" in head and b"transfer-encoding" in head)


def test_a_servers_redirect_and_its_cookies_are_the_clients(before: Running, server: Recording) -> None:
    headers = ("Location: http://127.0.0.1:1/", "Set-Cookie: a=1", "Set-Cookie: b=2")
    server.answer = lambda _: reply(b"", *headers, status="307 Temporary Redirect")
    for path in (OTHER, INFER):
        found = post(before, path=path)
        assert (found.status_code, found.headers["location"]) == (307, "http://127.0.0.1:1/")
        assert found.headers.get_list("set-cookie") == ["a=1", "b=2"]
    before.client.cookies.clear()
    post(before, path=OTHER)
    assert b"cookie" not in server.requests[-1].lower()


def bodies() -> dict[str, tuple[bytes, tuple[str, ...]]]:
    """Replies that cannot be calibrated: bodies, and headers."""
    length = "Inference-Header-Content-Length: "
    z = model_logits().astype("f4")
    binary = document(output={"data": None, "parameters": {"binary_data_size": z.nbytes}})
    return {
        "no JSON": (b"{", ()),
        "too deep": (b"[" * 100_000, ()),
        "outputs of texts": (b'{"outputs": ["logits"]}', ()),
        "another output": (document(output={"name": "z"}), ()),
        "another version": (document(model_version="7"), ()),
        "too few numbers": (document(output={"data": [1.0]}), ()),
        "a negative size": (document(output={"shape": [-5, -3]}), ()),
        "a huge size": (document(output={"shape": [1 << 40, 1 << 40]}), ()),
        "another number of classes": (document(output={"shape": [3, 5]}), ()),
        "an unknown datatype": (document(output={"datatype": None}), ()),
        "fewer bytes": (binary + z.tobytes()[:-1], (f"{length}{len(binary)}",)),
        "a wrong length": (binary + z.tobytes(), (f"{length}{10**9}",)),
        "a bomb": (gzip.compress(bytes(1 << 25)), ("Content-Encoding: gzip",)),
        "another coding": (document(), ("Content-Encoding: br",)),
        "two codings": (gzip.compress(document()), ("Content-Encoding: gzip",) * 2),
    }


@pytest.mark.parametrize("name", bodies())
def test_a_reply_that_cannot_be_calibrated_passes_as_it_is_says_so_and_is_counted(
    before: Running, server: Recording, name: str
) -> None:
    body, headers = bodies()[name]
    server.answer = lambda _: reply(body, *headers)
    uncalibrated = before.counted("calib_uncalibrated_total")
    answer = raw(before.http, request("POST", INFER, b"{}"))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert (status(answer), content) == (200, body)
    assert b"x-calib-uncalibrated: " in head
    assert before.counted("calib_uncalibrated_total") == uncalibrated + 1


def test_rows_that_are_not_finite_stay_and_have_no_receipt(before: Running, server: Recording) -> None:
    z = model_logits().copy()
    z[1, 0] = np.nan
    server.answer = lambda _: reply(document(output={"data": z.ravel().tolist()}))
    invalid = before.counted("calib_invalid_outputs_total")
    found = {one["name"]: one["data"] for one in post(before).json()["outputs"]}
    assert [bool(one) for one in found["receipt"]] == [True, False, True, True, True]
    assert np.isnan(np.reshape(found["logits"], z.shape)[1, 0])
    np.testing.assert_allclose(
        np.delete(found["confidence"], 1), np.delete(probs().max(axis=1), 1), atol=1e-7
    )
    until(lambda: before.counted("calib_invalid_outputs_total") == invalid + 1)


def test_a_body_is_bounded_before_and_after_it_is_decompressed(before: Running, server: Recording) -> None:
    large = b'{"inputs": []}' + b" " * (1 << 20)
    assert post(before, large).status_code == 413
    bomb = gzip.compress(b'{"outputs": []}' + b" " * (1 << 22))
    assert post(before, bomb, headers={"Content-Encoding": "gzip"}).status_code == 400
    assert post(before, b"x", headers={"Content-Encoding": "br"}).status_code == 400
    assert post(before, b"x", headers={"Content-Encoding": "gzip"}).status_code == 400
    assert not server.requests
    assert post(before, large * 4, path=OTHER).status_code == 200


@pytest.mark.parametrize("name", ["segment", "group", "id"])
def test_what_a_request_says_of_itself_is_bounded(before: Running, server: Recording, name: str) -> None:
    assert post(before, headers={f"x-calib-{name}": "a" * 300}).status_code == 400
    assert post(before, headers=[(f"x-calib-{name}", "a")] * 2).status_code == 400
    assert post(before, headers={f"x-calib-{name}": b"\xff"}).status_code == 400
    assert not server.requests
    assert post(before, headers={f"x-calib-{name}": "ü".encode()}).status_code == 200


def test_a_server_that_is_late_is_504_and_one_that_hangs_up_is_502(
    before: Running, server: Recording
) -> None:
    server.answer = lambda _: None
    for path in (INFER, OTHER):
        began = time.monotonic()
        assert post(before, path=path).status_code == 504
        assert time.monotonic() - began < 30
    server.answer = lambda _: b""
    for path in (INFER, OTHER):
        assert post(before, path=path).status_code in (502, 504)
    server.answer = lambda _: b"nonsense\r\n\r\n"
    for path in (INFER, OTHER):
        found = post(before, path=path)
        assert found.status_code == 502
        assert set(found.json()) == {"error"}


def test_an_answer_that_is_cut_off_is_cut_off_for_the_client(before: Running, server: Recording) -> None:
    server.answer = lambda _: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    assert post(before).status_code == 502
    answer = raw(before.http, request("GET", "/v2/models/other/stream"))
    assert b"hello" in answer
    assert not answer.endswith(b"0\r\n\r\n")


def test_requests_beyond_the_bound_are_429_and_health_still_answers(
    before: Running, server: Recording
) -> None:
    server.answer = lambda sent: reply(b"") if b"/health/" in sent else None
    # All at once, so that the first four still wait when the others come, however busy the machine is.
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(post, before) for _ in range(16)]
        until(lambda: len(server.requests) >= 4)
        assert before.client.get(f"{before.http}/v2/health/live").status_code == 200
        answers = [one.result() for one in asked]
    refused = [one for one in answers if one.status_code == 429]
    assert refused
    assert {one.headers["retry-after"] for one in refused} == {"1"}
    late = [one.status_code for one in answers if one not in refused]
    assert late == [504] * (len(server.requests) - 1)


def test_a_client_that_sends_no_end_is_let_go(before: Running, server: Recording) -> None:
    began = time.monotonic()
    raw(before.http, request("POST", INFER, b"{}", close=False).replace(b"Length: 2", b"Length: 3"))
    assert time.monotonic() - began < 40
    assert not server.requests


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--upstream", "ftp://a"], "http://HOST:PORT"),
        (["--host", "0.0.0.0"], "--token-file"),
        (["--scores", "probabilities"], "fitted on logits"),
        (["--watch", "http://127.0.0.1:1"], "where to count"),
        (["--shadow", "of-4-classes"], "3 classes"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    vector = LogitMap(np.array([0.5, 1.0, 2.0]), np.zeros(3))  # for which it matters what scores are
    Artifact((vector,), method="vector", classes=CLASSES, model={"outputs": "logits"}).save("a")
    Artifact((LogitMap.temperature(2.0),), method="temperature", classes=4).save("of-4-classes")
    Keyring.new().save("keys.json")
    right = {"--upstream": "http://127.0.0.1:1", "--host": "127.0.0.1", "--output": "logits"}
    told = [p for pair in right.items() if pair[0] not in wrong[::2] or pair[0] == "--output" for p in pair]
    files = ["--keyring", "keys.json", "--ledger", "ledger.db"]
    done = calib_serve("gateway", "digits=a", *told, "--port", 0, *files, *wrong)
    assert done.exit_code == 2
    assert says in done.stderr


BROKEN = {
    "no message": b"\xff\xff",
    "empty": b"",
    "another version": service_pb2.ModelInferResponse(model_version="9").SerializeToString(),
    "too few bytes": service_pb2.ModelInferResponse(
        outputs=[{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}], raw_output_contents=[b"abc"]
    ).SerializeToString(),
    "no contents": service_pb2.ModelInferResponse(
        outputs=[{"name": "logits", "datatype": "FP16", "shape": [1, 3]}]
    ).SerializeToString(),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_reply_over_grpc_that_cannot_be_calibrated_passes_as_it_is_and_says_so(
    before: Running, grpc_answers: Answers, name: str
) -> None:
    grpc_answers.answer = lambda *_: BROKEN[name]
    uncalibrated = before.counted("calib_uncalibrated_total")
    with grpc.insecure_channel(before.grpc) as channel:
        found, told = channel.unary_unary(METHOD).with_call(ASKED, timeout=20)
    assert found == BROKEN[name]
    assert "x-calib-uncalibrated" in dict(told.trailing_metadata())
    assert before.counted("calib_uncalibrated_total") == uncalibrated + 1


def test_a_call_ends_with_its_deadline_or_the_gateways_and_too_many_are_refused(
    before: Running, grpc_answers: Answers
) -> None:
    left: list[float] = []
    held = threading.Event()

    def answer(*call: Any) -> bytes:
        _, context = call
        left.append(context.time_remaining())
        assert dict(context.invocation_metadata())["authorization"] == "Bearer mine"
        context.set_trailing_metadata((("x-servers", "own"),))
        held.wait(20)
        return message()

    grpc_answers.answer = answer
    mine = (("authorization", "Bearer mine"),)
    with grpc.insecure_channel(before.grpc) as channel:
        call = channel.unary_unary(METHOD)
        while not left:  # on a busy machine, a second may be over before the server hears of it
            with pytest.raises(grpc.RpcError) as raised:
                call(ASKED, timeout=1, metadata=mine)
            assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert left[-1] < 1.5  # the client's second, not the gateway's two
        waiting = [call.future(ASKED, metadata=mine) for _ in range(16)]
        codes = Counter(one.exception().code() for one in waiting)
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}
        assert codes[grpc.StatusCode.DEADLINE_EXCEEDED] >= 4
        held.set()
        raw_reply, told = call.with_call(ASKED, metadata=mine)
    found = service_pb2.ModelInferResponse.FromString(raw_reply)
    assert [one.name for one in found.outputs][:3] == ["logits", "confidence", "receipt"]
    assert all(found.outputs[2].contents.bytes_contents)
    assert ("x-servers", "own") in [tuple(one) for one in told.trailing_metadata()]


def test_large_calls_over_grpc_are_bounded_in_bytes_together(
    tmp_path: Path, answering_server: tuple[Recording, Answers], grpc_answers: Answers, model: str
) -> None:
    held, (http, _) = threading.Event(), answering_server

    def answer(*_: Any) -> bytes:
        held.wait(60)
        return message()

    grpc_answers.answer = answer
    large = service_pb2.ModelInferRequest(model_name="other", raw_input_contents=[bytes(900_000)])
    options = ("--output", "logits", "--max-megabytes", "1", "--timeout", "60")
    with (
        gateway(tmp_path, http.url, *options, models=[model], grpc=grpc_answers.address) as found,
        grpc.insecure_channel(found.grpc) as channel,
    ):
        call = channel.unary_unary(METHOD)
        waiting = [call.future(large.SerializeToString()) for _ in range(30)]
        until(
            lambda: sum(one.done() for one in waiting) == 12, seconds=60
        )  # sixteen times a megabyte hold 18
        held.set()
        codes = Counter(one.code() for one in waiting)
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED: 12, grpc.StatusCode.OK: 18}
        assert (
            call.with_call(large.SerializeToString())[1].code() == grpc.StatusCode.OK
        )  # there is room again


@contextmanager
def in_process(server: Recording, *, root_path: str = "", **options: Any) -> Iterator[TestClient]:
    """A client of a gateway in this process, which counts in a watch at the address of ``server``."""
    models = {("digits", "1"): CLASSES}
    named = {"output": ["logits"], "scores": ["logits"], "upstream": server.url, "watch": server.url}
    made = open_gateway(models, keyring=Keyring.new(), **{**named, **options})
    with made as app, TestClient(app, base_url="http://127.0.0.1", root_path=root_path) as client:
        yield client


def test_a_path_that_the_proxy_strips_is_no_part_of_an_address(server: Recording) -> None:
    """As of an app that mounts it, or of a server that puts it before the path that came."""
    with in_process(server, root_path="/models") as client:
        found = client.post(f"/models{INFER}", json={}).json()
        assert [one["name"] for one in found["outputs"]] == ["logits", "confidence", "receipt"]
        assert client.get("/models/calibration/metrics").status_code == 200
        client.get("/models/v2/models/other")
    paths = [one.split(b" ")[1].decode() for one in server.requests]
    assert [one for one in paths if not one.startswith("/v1/")] == [INFER, "/v2/models/other"]


def test_a_name_of_others_reaches_nothing_of_the_gateways(server: Recording) -> None:
    """As a page of another site would have it, by DNS that it changes."""
    with in_process(server) as client:
        for host in ("rebound.evil.example", "rebound.evil.example:80", "[", ""):
            for method, path in (("GET", "/calibration/metrics"), ("POST", "/v1/labels")):
                assert client.request(method, path, headers={"Host": host}).status_code == 400
        assert not server.requests
        for host in ("localhost", "127.0.0.1:8080"):
            assert client.get("/calibration/metrics", headers={"Host": host}).status_code == 200
        assert client.get("/calibration/", headers={"Host": "localhost"}).status_code == 404


def test_it_asks_for_the_labels_of_its_budget_wherever_it_counts(server: Recording, tmp_path: Path) -> None:
    here = {"watch": None, "ledger": str(tmp_path / "ledger.db")}
    for home in ({}, here):
        with in_process(server, label_budget="0.001", **home) as client:
            outputs = {one["name"]: one["data"] for one in client.post(INFER, json={}).json()["outputs"]}
            assert not all(outputs["label_wanted"])


def test_versions_that_clients_name_get_series_until_there_are_the_most(
    server: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "VERSIONS", 2)
    server.answer = lambda _: reply(b"{}")
    with in_process(server) as client:
        for version in (7, 8, 9):
            client.post(f"/v2/models/digits/versions/{version}/infer", json={})
        lines = client.get("/calibration/metrics").text.splitlines()
    found = [one for one in lines if one.startswith("calib_uncalibrated_total{")]
    named = {
        version: float(one.split()[-1]) for one in found for version in re.findall('version="(.*?)"', one)
    }
    assert named == {"1": 0.0, "7": 1.0, "other": 2.0}
