"""The door of every route: foreign hosts, pages of other sites, other kinds of content, and tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from real_watch import make_watch, talk_to
from starlette.routing import Mount

from calib_serve.core.errors import InputError
from calib_serve.web import Guard, Token, allowed_hosts, create_app

HOSTS = ("127.0.0.1", "localhost", "::1", "ml.example.com", "*.inner.example")


def asked(method: str = "GET", **headers: str | list[str]) -> dict[str, object]:
    """An ASGI scope with these headers, whose _ stands for a dash."""
    pairs = [
        (name.replace("_", "-").encode(), one.encode("latin-1", "replace"))
        for name, value in headers.items()
        for one in ([value] if isinstance(value, str) else value)
    ]
    return {"type": "http", "method": method, "headers": pairs}


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9300",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:9300",
        "ml.example.com",
        "a.inner.example",
    ],
)
def test_its_own_names_are_answered_with_any_port(host: str) -> None:
    assert Guard((), HOSTS).refusal(asked(host=host)) is None


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "localhost.evil.example", "evil.localhost", "localhost@evil.example",
        "inner.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example:80", "xinner.example",
        "localhost/", "0.0.0.0", "2130706433", "[::ffff:127.0.0.1]", "[::1", "localhost:80@evil.example",
        "ml.example.com.", " ", "*",
    ],
)  # fmt: skip
def test_other_names_are_not_answered(host: str) -> None:
    status, told = Guard((), HOSTS).refusal(asked(host=host)) or (0, "")
    assert status == 400, host
    assert "--allowed-hosts" in told


@given(host=st.text(max_size=60))
def test_no_text_of_a_host_raises_and_no_other_name_passes(host: str) -> None:
    passed = Guard((), ("ml.example.com",)).refusal(asked(host=host)) is None
    assert not passed or host.lower().partition(":")[0] == "ml.example.com"


def test_two_hosts_or_none_are_not_answered_and_any_is_where_any_may_be() -> None:
    guard = Guard((), HOSTS)
    assert guard.refusal(asked(host=["localhost", "evil.example"]))
    assert guard.refusal(asked())
    assert Guard((), ("*",)).refusal(asked(host="evil.example")) is None


OWN = {"host": "localhost:9300"}
FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://localhost:8888"},  # another program's page on this host
    {"origin": "http://127.0.0.1"},
    {"origin": "https://ml.example.com.evil.example"},
    {"origin": "https://localhost:9300@evil.example"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site", "origin": "http://localhost:9300"},
    {"sec_fetch_site": ""},
]


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_a_page_of_another_site_changes_nothing(method: str, headers: dict[str, str]) -> None:
    for hosts in (HOSTS, ("*",)):
        assert (Guard((), hosts).refusal(asked(method, **OWN, **headers)) or (0,))[0] == 403
        assert Guard((), hosts).refusal(asked("GET", **OWN, **headers)) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:9300"},
        {"origin": "https://ml.example.com"},  # named, whatever a proxy made of the host
        {"sec_fetch_site": "same-origin", "origin": "https://outside.example"},
        {"sec_fetch_site": "none"},
    ],
)
def test_programs_and_its_own_pages_may_post(headers: dict[str, str]) -> None:
    assert Guard((), HOSTS).refusal(asked("POST", **OWN, **headers)) is None


def test_names_are_given_without_ports_and_open_nothing_to_others() -> None:
    for wrong in ("ml.example.com:443", "https://ml.example.com", "", "a b", "ml.example.com/x"):
        with pytest.raises(InputError):
            allowed_hosts("127.0.0.1", guarded=True, named=[wrong])
    with pytest.raises(InputError, match="token-file"):
        allowed_hosts("0.0.0.0", guarded=False, named=["ml.example.com"])
    assert allowed_hosts("0.0.0.0", guarded=True) == ("*",)
    assert "*" not in allowed_hosts("0.0.0.0", guarded=True, named=["ml.example.com"])


JSON = {"content-type": "application/json"}
KINDS = [
    "text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data", "",
    "text/plain; application/json", "application/jsonp", "text/json",
]  # fmt: skip


@pytest.mark.store
def test_every_post_of_the_watch_wants_json_from_its_own_pages_under_its_own_name(tmp_path: Path) -> None:
    with make_watch(tmp_path) as watch, talk_to(watch) as client:
        paths = client.get("/openapi.json").json()["paths"]
        posts = [path.replace("{number}", "1") for path, of in paths.items() if "post" in of]
        assert len(posts) == 5
        for path in posts:

            def status(path: str = path, **headers: str) -> int:
                return client.post(path, content=b"{}", headers={**JSON, **headers}).status_code

            assert status(origin="https://evil.example") == 403
            assert status(**{"sec-fetch-site": "cross-site"}) == 403
            assert status(host="evil.example") == 400
            assert [status(**{"content-type": kind}) for kind in KINDS] == [415] * len(KINDS), path
            assert status() not in (403, 415)
        for path in ("/", "/metrics", "/healthz", "/static/watch.js", "/nothing", "/openapi.json"):
            assert client.get(path, headers={"host": "evil.example"}).status_code == 400


@pytest.mark.store
def test_a_mounted_watch_has_the_same_door(tmp_path: Path) -> None:
    token = Token.read("lab label,admin a-token-that-is-long")
    told = {"hosts": ["testserver"], "tokens": [token]}
    with make_watch(tmp_path) as watch:
        mounted = FastAPI(routes=[Mount("/c", create_app(watch, **told))])
        with TestClient(mounted) as client:

            def status(path: str, client: TestClient = client, **headers: str) -> int:
                body = json.dumps({"items": [], "by": "me"})
                return client.post(path, content=body, headers={**JSON, **headers}).status_code

            bearer = {"authorization": "Bearer a-token-that-is-long"}
            for path in ("/c/v1/labels", "/c/v1/incidents/1/close"):
                assert status(path) == 401
                assert status(path, **bearer, origin="https://evil.example") == 403
                assert status(path, **bearer, host="evil.example") == 400
                assert status(path, **bearer, **{"content-type": "text/plain"}) == 415
            assert status("/c/v1/labels", **bearer) == 200
            assert status("/c/v1/predictions", **bearer) == 403
