"""Who may do what: scopes, token files old and new, files that change or break under a running server."""

import hashlib
from pathlib import Path

import pytest
from real_watch import TestClient, make_watch, talk_to

from calib_serve.core.errors import InputError
from calib_serve.web import Token, TokenFile, create_app, read_tokens

pytestmark = pytest.mark.store

SECRETS = {scope: f"{scope}-token-of-a-client" for scope in ("predict", "label", "scrape", "admin")}
LINES = [f"{scope}r {scope} {secret}" for scope, secret in SECRETS.items()]
PREDICTION = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
CALLS = {
    ("POST", "/v1/predictions"): {"predict"},
    ("POST", "/v1/labels"): {"label"},
    ("GET", "/metrics"): {"scrape"},
    ("GET", "/"): {"scrape", "admin"},
    ("GET", "/v1/incidents"): {"scrape", "admin"},
    ("GET", "/v1/contract?model=m&version=1"): {"scrape", "admin"},
    ("GET", "/v1/shadows?model=m&version=1"): {"scrape", "admin"},
    ("POST", "/v1/incidents/1/close"): {"admin"},
}


def bearer(secret):
    return {"authorization": f"Bearer {secret}"}


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path


@pytest.fixture
def watch(tmp_path):
    watch = make_watch(tmp_path)
    yield watch
    watch.close()


def test_each_call_needs_its_scope_and_no_other(watch):
    with talk_to(watch, tokens=[Token.read(line) for line in LINES]) as client:
        for (method, path), scopes in CALLS.items():
            for scope, secret in SECRETS.items():
                answer = client.request(method, path, headers=bearer(secret), json=None)
                assert (answer.status_code != 403) == (scope in scopes), (method, path, scope)
                if answer.status_code == 403:
                    assert scope in answer.json()["detail"]
                    assert all(one in answer.json()["detail"] for one in scopes)
            assert client.request(method, path).status_code == 401
            assert client.request(method, path, headers=bearer("another-token-here")).status_code == 401
        assert client.get("/healthz").status_code == 200


def test_a_file_may_hold_digests_comments_and_two_tokens_of_one_client(tmp_path, watch):
    digest = hashlib.sha256(b"a-token-that-is-long").hexdigest()
    lines = ["# clients", f"lab label sha256:{digest}", "lab label,predict another-token-here"]
    path = write(tmp_path / "tokens", *lines)
    assert [one.name for one in read_tokens(path)] == ["lab", "lab"]
    with talk_to(watch, tokens=TokenFile(path)) as client:
        for secret in ("a-token-that-is-long", "another-token-here"):
            assert client.post("/v1/labels", json=[], headers=bearer(secret)).status_code == 200
        assert client.post("/v1/labels", json=[], headers=bearer(f"sha256:{digest}")).status_code == 401
        assert client.post("/v1/labels", json=[], headers=bearer(digest)).status_code == 401


@pytest.mark.parametrize(
    "line",
    [
        "short", "lab label short", "lab lable a-token-that-is-long", "lab a-token-that-is-long",
        "lab label sha256:12", f"sha256:{'0' * 64}", "other label a-token-that-is-long",
        "../lab label a-token-that-is-long", "lab label,,scrape a-token-that-is-long",
        "lab  a-token that-is-long too", "ok label a-token-that-is-long\nno label a-token-that-is-long",
        "# none",
    ],
)  # fmt: skip
def test_a_file_with_a_wrong_line_is_refused_without_its_secret(tmp_path, line):
    with pytest.raises(InputError) as error:
        read_tokens(write(tmp_path / "tokens", line))
    assert "that-is-long" not in str(error.value)


def test_a_changed_file_counts_at_once_and_a_broken_one_not_at_all(tmp_path, watch):
    now, failures = [0.0], []
    path = write(tmp_path / "tokens", "lab label a-token-that-is-long")
    tokens = TokenFile(path, clock=lambda: now[0], failed=lambda: failures.append(1))
    with talk_to(watch, tokens=tokens) as client:

        def status(secret):
            now[0] += 2
            return client.post("/v1/labels", json=[], headers=bearer(secret)).status_code

        assert (status("a-token-that-is-long"), status("another-token-here")) == (200, 401)
        write(tmp_path / "new", "lab label another-token-here").replace(path)
        assert (status("a-token-that-is-long"), status("another-token-here")) == (401, 200)
        for broken in ("lab lable another-token-here", ""):
            write(path, broken)
            assert [status("another-token-here") for _ in range(3)] == [200] * 3
        path.unlink()
        assert [status("another-token-here") for _ in range(3)] == [200] * 3
        assert len(failures) == 9  # once for each try
        write(path, "lab label a-token-that-is-long")
        assert (status("a-token-that-is-long"), status("another-token-here")) == (200, 401)


def test_an_app_checks_the_file_of_its_tokens(tmp_path, watch):
    path = write(tmp_path / "tokens", "lab scrape a-token-that-is-long")
    with TestClient(create_app(watch, tokens=TokenFile(path), hosts=["testserver"])) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=bearer("a-token-that-is-long")).status_code == 200
        assert client.get("/healthz").json()["checks"]["tokens"] == "ok"


def test_a_key_of_another_client_is_another_key(watch):
    tokens = [Token.read(f"{name} predict {name * 16}") for name in "ab"]
    with talk_to(watch, tokens=tokens) as client:
        sent = [
            client.post(
                "/v1/predictions",
                json=[PREDICTION | {"confidence": confidence}],
                headers=bearer(name * 16) | {"idempotency-key": "1"},
            )
            for name, confidence in (("a", 0.9), ("b", 0.9), ("b", 0.9), ("a", 0.8))
        ]
    assert [one.status_code for one in sent] == [200, 200, 200, 409]
    assert sent[0].json() != sent[1].json() == sent[2].json()
    assert watch.ledger.sums()["m", "1"].predictions.sum() == 2
