"""Ways around the doors of a watch: other spellings, other protocols, forged headers and lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from stalling import Served, watching

pytestmark = pytest.mark.server

TOKENS = {name: f"{name}-has-a-long-token" for name in ("app", "prometheus", "owner")}
SCOPES = {"app": "predict,label", "prometheus": "scrape", "owner": "predict,label,ids,scrape,admin"}
GUARDED = ("/", "/metrics", "/v1/incidents", "/v1/contract?model=m&version=1", "/v1/shadows")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("doors")
    tokens = folder / "tokens"
    tokens.write_text("".join(f"{name} {SCOPES[name]} {token}\n" for name, token in TOKENS.items()))
    tokens.chmod(0o600)
    with watching(folder / "watch", "--token-file", str(tokens), "--allowed-hosts", "localhost") as served:
        yield served


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


def said(served: Served, raw: bytes) -> bytes:
    """All that is answered to these bytes, until the connection ends or nothing comes."""
    with served.connect(raw) as peer:
        peer.settimeout(3)
        answer = b""
        try:
            while more := peer.recv(1 << 16):
                answer += more
        except (TimeoutError, ConnectionError):
            pass
        return answer


def statuses(answer: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.[01] (\d{3})", answer)]


def asked(served: Served, line: str, *headers: str, body: bytes = b"") -> bytes:
    head = "\r\n".join([line, f"Host: localhost:{served.port}", *headers])
    return said(served, head.encode("latin-1") + b"\r\n\r\n" + body)


def counted(served: Served) -> float:
    text = served.client.get("/metrics", headers=bearer("prometheus")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "calib_predictions_total"
    )


def test_a_token_counts_where_it_is_sent_as_one_and_nowhere_else(served: Served) -> None:
    token = TOKENS["owner"]
    for query in (f"?token={token}", f"?access_token={token}", f"?authorization=Bearer%20{token}"):
        assert served.client.get(f"/metrics{query}").status_code == 401
    for name, value in (
        ("cookie", f"token={token}"),
        ("x-api-key", token),
        ("proxy-authorization", f"Bearer {token}"),
        ("authorization", token),
        ("authorization", f"Bearer nobody-has-a-long-token, Bearer {token}"),
        ("authorization", f"Digest {token}"),
        ("authorization", f"Basic {token}"),
        ("authorization", "Bearer"),
    ):
        assert served.client.get("/metrics", headers={name: value}).status_code == 401, name
    twice = [("authorization", "Bearer nobody-has-a-long-token"), ("authorization", f"Bearer {token}")]
    assert served.client.get("/metrics", headers=twice).status_code == 401
    assert token not in served.log.read_text(), "an address that holds a token is not logged"


@pytest.mark.parametrize(
    "path",
    [
        "//metrics", "/./metrics", "/%2e/metrics", "/static/../metrics", "/static/..%2fmetrics",
        "/metrics%00", "/static/%2e%2e/%2e%2e/http/app.py", "/static/..\\..\\http\\app.py", "/metrics/",
        "/static//etc/passwd", "/%6detrics", "/METRICS", "/metrics;x", "/healthz/../metrics", "/metrics?",
        "/v1/incidents/", "/docs", "http://localhost/metrics", "/healthz%2f..%2fmetrics",
        "/static/%252e%252e/%252e%252e/http/app.py",
    ],
)  # fmt: skip
def test_no_spelling_of_a_route_goes_around_its_token(served: Served, path: str) -> None:
    answer = asked(served, f"GET {path} HTTP/1.1", "Connection: close")
    assert statuses(answer)
    assert not {200, 206} & set(statuses(answer)), answer[:200]
    assert b"calib_" not in answer
    assert b"import " not in answer


@pytest.mark.parametrize(
    "method", ["HEAD", "OPTIONS", "TRACE", "CONNECT", "PUT", "PATCH", "DELETE", "PROPFIND", "get"]
)
def test_no_other_method_goes_around_it(served: Served, method: str) -> None:
    secret = "Cookie: a-secret-of-the-browser"
    for path in (*GUARDED, "/v1/labels", "/v1/incidents/1/close"):
        answer = asked(served, f"{method} {path} HTTP/1.1", secret, "Connection: close", "Content-Length: 0")
        assert all(status >= 400 for status in statuses(answer)), (path, answer[:200])
        assert b"a-secret-of-the-browser" not in answer
        assert b"access-control-allow" not in answer.lower()
        assert b"calib_" not in answer


FORGED = {
    "x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "forwarded": "for=127.0.0.1;host=localhost",
    "x-forwarded-host": "localhost", "x-forwarded-proto": "https", "x-forwarded-prefix": "/healthz",
    "x-original-url": "/healthz", "x-rewrite-url": "/healthz", "x-script-name": "/healthz",
    "x-http-method-override": "POST", "x-method-override": "DELETE", "x-remote-user": "owner",
    "x-calib-source": "owner", "remote-user": "owner", "x-accel-redirect": "/metrics",
}  # fmt: skip


def test_what_a_proxy_would_say_is_not_believed_of_a_client(served: Served) -> None:
    for name, value in FORGED.items():
        for path in GUARDED:
            answer = served.client.get(path, headers={name: value})
            assert answer.status_code == 401, (name, path)
    assert served.client.get("/healthz", headers={**FORGED, **bearer("app")}).status_code == 200
    hidden = served.client.get("/metrics", headers={"host": "evil.example", "x-forwarded-host": "localhost"})
    assert hidden.status_code == 400
    page = served.client.get("/", headers={**FORGED, **bearer("owner"), "x-forwarded-host": "evil.example"})
    assert page.status_code == 200
    assert "evil.example" not in page.text
    assert "/healthz/" not in page.text


SMUGGLED = b"POST /v1/predictions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
INNER = json.dumps({"items": [{"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}]}).encode()
HIDDEN = (
    SMUGGLED
    + f"Authorization: Bearer {TOKENS['app']}\r\nContent-Length: {len(INNER)}\r\n\r\n".encode()
    + INNER
)


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 2",
        b"Content-Length: 2\r\nContent-Length: %d" % (len(HIDDEN) + 2),
        b"Content-Length: 2, %d" % (len(HIDDEN) + 2),
        b"Content-Length: +2",
        b"Content-Length: -1",
        b"Content-Length: 0x2",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding: \x0bchunked",
        b" Content-Length: 2",
        b"X: y\rContent-Length: 2",
    ],
)
def test_a_body_of_two_lengths_hides_no_request(served: Served, framing: bytes) -> None:
    before = counted(served)
    head = SMUGGLED + b"Authorization: Bearer nobody-has-a-long-token\r\n" + framing + b"\r\n\r\n"
    answer = said(served, head + b"0\r\n\r\n" + HIDDEN)
    assert 200 not in statuses(answer), answer[:400]
    assert counted(served) == before


def test_a_chunk_is_as_long_as_it_says_and_says_little(served: Served) -> None:
    head = SMUGGLED + f"Authorization: Bearer {TOKENS['app']}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    before = counted(served)
    for chunk in (
        b"2;" + b"x" * 2_000_000 + b"\r\n[]\r\n0\r\n\r\n",
        b"ffffffffffffffffffff\r\n[]",
        b"-2\r\n[]\r\n0\r\n\r\n",
        b"0x2\r\n[]\r\n0\r\n\r\n",
        b"1_0\r\n[]\r\n0\r\n\r\n",
        b"0\r\n" + b"X-Trailer: a\r\n" * 200_000 + b"\r\n",
        b"7fffffffffffffff\r\n[]",
    ):
        assert 200 not in statuses(said(served, head + chunk)), chunk[:30]
    assert counted(served) == before
    assert served.ready()


def test_older_protocols_have_the_same_door(served: Served) -> None:
    assert statuses(said(served, b"GET /metrics HTTP/1.0\r\n\r\n")) == [400], "without a host it is nobody's"
    kept = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n"
    found = statuses(said(served, kept * 2))
    assert found
    assert set(found) == {401}
    assert b"calib_" not in said(served, b"GET /metrics\r\n\r\n")


@pytest.mark.parametrize("to", ["websocket", "h2c", "TLS/1.3"])
def test_no_connection_becomes_another_protocol(served: Served, to: str) -> None:
    upgrade = (
        f"Upgrade: {to}",
        "Connection: Upgrade, HTTP2-Settings",
        "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    )
    keys = ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13")
    # Asked behind it, which ends what stayed the connection that it was.
    last = f"GET /nothing HTTP/1.1\r\nHost: localhost:{served.port}\r\nConnection: close\r\n\r\n"
    found = statuses(asked(served, "GET /metrics HTTP/1.1", *upgrade, *keys, body=last.encode()))
    assert found
    assert not {101, 200} & set(found)
    assert served.ready()


def test_what_is_guarded_lies_in_no_cache(served: Served) -> None:
    for path in (*GUARDED, "/healthz", "/openapi.json", "/nothing"):
        for headers in ({}, bearer("owner")):
            answer = served.client.get(path, headers=headers)
            assert answer.headers["cache-control"] == "no-store", path
            assert not {"etag", "last-modified", "expires"} & set(answer.headers), path
    known = {"if-none-match": "*", "if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT", "range": "bytes=0-9"}
    for path in GUARDED:
        assert served.client.get(path, headers=known).status_code == 401


NAMES = [
    'x"} 1e9\ncalib_predictions_total{model="y',
    "a\\",
    'm",version="9',
    "{}",
    "\u2028x",
    "a\rb",
    "#",
    "é\u202e",
]


def test_no_name_forges_a_series_or_a_line_of_the_log(served: Served) -> None:
    items = [
        {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9, "segment": name, "id": f"i {name}"}
        for name in NAMES
    ]
    items += [{**items[0], "segment": "", "model": name, "version": name} for name in NAMES]
    before = served.log.read_text()
    for route, sent in (("predictions", items), ("labels", [{"id": name, "label": name} for name in NAMES])):
        answer = served.client.post(f"/v1/{route}", json={"items": sent}, headers=bearer("owner"))
        assert answer.status_code == 200
    served.client.get("/a%0aERROR%20all%20is%20lost%0d%0a", headers={"user-agent": "x\tERROR all is lost"})
    served.client.get("/", params={"model": NAMES[0], "segment": NAMES[0]}, headers=bearer("owner"))
    text = served.client.get("/metrics", headers=bearer("prometheus")).text
    labels = [s.labels for f in text_string_to_metric_families(text) for s in f.samples]
    assert {(one["model"], one["version"]) for one in labels if "model" in one} == {("m", "1")}
    assert not any(line.startswith("ERROR all") for line in served.log.read_text().splitlines())
    new = served.log.read_text().removeprefix(before)
    assert all(re.match(r"\d{4}-|INFO|WARNING|ERROR|\{", line) for line in new.splitlines()), new
