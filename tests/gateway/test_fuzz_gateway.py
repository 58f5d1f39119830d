"""Requests of any kind to a gateway with tokens: none is a failure of its own, and no label slips by."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

import httpx
import pytest
from gateways import INFER, Running, document, gateway
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recording_server import recording, reply
from sizes import sized

pytestmark = pytest.mark.server

TOKENS = {scope: f"a-token-of-the-scope-{scope}" for scope in ("label", "scrape")}
PATHS = [
    INFER, "/v2", "/v2/health/live", "/v2/models/other/infer", "/v1/labels", "/v1/labels/", "/v1/predictions",
    "/v1/sums", "/v1/versions", "/calibration/", "/calibration/metrics", "/calibration/v1/labels",
    "/calibration/openapi.json", "/calibration/v1/incidents/1/close", "/x",
]  # fmt: skip
HEADERS = {
    "authorization": st.sampled_from(
        [*(f"Bearer {one}" for one in TOKENS.values()), "Bearer x", "Basic eDp5"]
    ),
    "content-type": st.sampled_from(["application/json", "application/x-ndjson", "text/plain"]),
    "content-encoding": st.sampled_from(["gzip", "deflate", "br", "identity", ""]),
    "origin": st.sampled_from(["https://evil.example", "null"]),
    "sec-fetch-site": st.sampled_from(["cross-site", "same-origin"]),
    "host": st.sampled_from(["evil.example", "localhost"]),
    "inference-header-content-length": st.integers(-5, 500).map(str),
    "x-calib-segment": st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=80).map(
        str.strip
    ),
    "x-calib-id": st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=300).map(str.strip),
    "accept-encoding": st.sampled_from(["gzip", "*"]),
}
LABELS = b'{"items": [{"receipt": "AgA", "label": 1}]}'
BODIES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([document(), LABELS, b"[]", b"{}", b'{"outputs": [{"name": "logits"}]}']),
    st.sampled_from([document(), LABELS, bytes(1 << 22)]).map(gzip.compress),
)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "tokens").write_text("".join(f"{scope} {scope} {token}\n" for scope, token in TOKENS.items()))
    (folder / "tokens").chmod(0o600)
    options = ["--output", "logits", "--token-file", str(folder / "tokens"), "--max-megabytes", "1"]
    with recording() as server:
        server.answer = lambda _: reply(document())
        with gateway(folder, server.url, *options, models=[model]) as found:
            yield found


@settings(max_examples=sized(60, 3000), suppress_health_check=list(HealthCheck))
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]),
    path=st.sampled_from(PATHS),
    headers=st.fixed_dictionaries({}, optional=HEADERS),
    body=BODIES,
)
def test_whatever_is_sent_is_answered_and_needs_its_token(
    behind: Running, method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = httpx.request(
        method, behind.http + path, headers=sent, content=body, timeout=30, trust_env=False
    )
    assert answer.status_code < 500, (answer.status_code, answer.text[:200])
    assert "\n" not in "".join(answer.headers.values())
    # The schema of the API is the program's, and tells nothing of what it counts.
    own = path != "/calibration/openapi.json" and (path.startswith("/calibration/") or path == "/v1/labels")
    given_token = headers.get("authorization", "").removeprefix("Bearer ")
    if own and method in ("GET", "POST") and given_token not in TOKENS.values():
        assert answer.status_code in (400, 401, 403, 404, 405, 413), answer.status_code
        assert not re.search("calib_[a-z_]+_total", answer.text)
    if method == "POST" and own and headers.get("sec-fetch-site") == "cross-site":
        assert answer.status_code >= 400
