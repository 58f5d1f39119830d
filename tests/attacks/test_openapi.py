"""The OpenAPI that the watch app serves, held against the real server: no 5xx, and every answer as it says.

schemathesis makes up requests of every operation, right ones and wrong ones, and checks the answers. It
talks to the server under test alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import real_servers
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sizes import sized

pytestmark = pytest.mark.server
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
]  # fmt: skip
POSTS = ["/v1/predictions", "/v1/sums", "/v1/labels", "/v1/incidents/{number}/close", "/v1/versions"]
GETS = ["/v1/contract", "/v1/shadows", "/v1/incidents", "/metrics", "/healthz"]


SCOPES = ("predict", "label", "scrape", "admin")
TOKENS = {scope: f"a-token-of-the-scope-{scope}" for scope in SCOPES} | {
    "all": "a-token-that-may-do-everything"
}
LINES = [
    f"{scope} {','.join(SCOPES) if scope == 'all' else scope} {token}" for scope, token in TOKENS.items()
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("openapi")
    (folder / "tokens").write_text("\n".join(LINES))
    (folder / "tokens").chmod(0o600)
    with real_servers.Server(folder, "--token-file", str(folder / "tokens")) as server:
        yield server


@pytest.fixture(scope="module")
def schema(server: Any) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [
        *((path, "POST", GenerationMode.POSITIVE) for path in POSTS),
        *((path, "POST", GenerationMode.NEGATIVE) for path in POSTS),
        *((path, "GET", GenerationMode.POSITIVE) for path in GETS),  # without parameters none is wrong
    ],
)
def test_every_answer_is_as_the_schema_says(schema: Any, path: str, method: str, mode: Any) -> None:
    operation = schema[path][method]

    @settings(
        max_examples=sized(20, 250) if method == "POST" else 3,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=operation.as_strategy(generation_mode=mode), token=st.sampled_from([*TOKENS.values(), "nobody"])
    )
    def meet(case: Any, token: str) -> None:
        case.call_and_validate(checks=CHECKS, headers={"Authorization": f"Bearer {token}"})

    meet()


@settings(max_examples=sized(20, 250))
@given(
    name=st.sampled_from(["authorization", "idempotency-key", "content-type", "accept", "x-forwarded-for"]),
    value=st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60).map(str.strip),
    path=st.sampled_from([*POSTS, *GETS, "/", "/static/look.css", "/static/../app.py", "/x"]),
)
def test_headers_and_paths_of_any_kind_are_no_server_error(
    server: Any, name: str, value: str, path: str
) -> None:
    headers = {name.encode(): value.encode("latin-1")}
    for method in ("GET", "POST", "DELETE"):
        answer = httpx.request(method, f"{server.url}{path}", headers=headers, content=b"[]", timeout=60)
        assert answer.status_code < 500
        assert "\n" not in "".join(answer.headers.values())
