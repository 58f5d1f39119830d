"""What no client and no server of language models may do: pass by, be read in two ways, stop the others."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import calib_serve
from gateways import Running, gateway
from recording_server import Recording, recording, reply

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap

pytestmark = pytest.mark.server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = {"model": "judge", "messages": [{"role": "user", "content": "?"}], "prompt": "?"}


def completion(tops: dict[str, float], choices: int = 1, **more: Any) -> bytes:
    """A chat's completion, whose first token was taken."""
    top = [{"token": t, "logprob": math.log(p)} for t, p in tops.items()]
    entry = {**top[0], "top_logprobs": top}
    choice = {"message": {"content": next(iter(tops))}, "logprobs": {"content": [entry]}}
    return json.dumps({"choices": [choice] * choices, **more}).encode()


YES = completion({"yes": 0.8, "no": 0.2})


def artifact(folder: Path) -> Path:
    facts: dict[str, Any] = {"model": {"outputs": "probabilities"}, "class_names": ("yes", "no")}
    Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2, **facts).save(folder / "artifact")
    return folder / "artifact"


@contextmanager
def before(folder: Path, upstream: str, form: str = "logprobs", *options: str) -> Iterator[Running]:
    (folder / "words.yaml").write_text(f"form: {form}\nclasses:\n  'yes': ['yes']\n  'no': ['no']\n")
    output = ["--output", f"judge=answers:{folder / 'words.yaml'}", *options]
    with gateway(folder, upstream, *output, models=[f"judge:prompt-1={artifact(folder)}"]) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[Recording]:
    with recording() as found:
        yield found


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, server: Recording) -> Iterator[Running]:
    with before(tmp_path_factory.mktemp("judged"), server.url) as running:
        yield running


@pytest.fixture(scope="module")
def voted(tmp_path_factory: pytest.TempPathFactory, server: Recording) -> Iterator[Running]:
    with before(tmp_path_factory.mktemp("voted"), server.url, "votes") as running:
        yield running


@pytest.fixture(autouse=True)
def _answering(server: Recording) -> None:
    server.requests.clear()
    server.answer = lambda _: reply(YES)


def ask(running: Running, path: str = CHAT, **more: Any) -> httpx.Response:
    return running.client.post(running.http + path, json={**ASKED, **more})


def sent(server: Recording) -> dict[str, Any]:
    return dict(json.loads(server.requests[-1].partition(b"\r\n\r\n")[2]))


@pytest.mark.parametrize("path", [CHAT, CHAT + "/", "/v1/ch%61t/completions", CHAT + "?a=b"])
def test_every_spelling_of_a_chat_is_asked_as_a_chat(judged: Running, server: Recording, path: str) -> None:
    assert "calibration" in ask(judged, path).json()
    assert (sent(server)["logprobs"], sent(server)["top_logprobs"]) == (True, 20)


@pytest.mark.parametrize(
    "path",
    ["//v1/chat/completions", "/v1/chat%2Fcompletions", "/v1/chat/completions;a"],
)
def test_an_address_of_two_readings_is_refused(judged: Running, server: Recording, path: str) -> None:
    assert judged.client.post(judged.http + path, json=ASKED).status_code in (400, 404)
    assert not server.requests


@pytest.mark.parametrize(
    ("more", "kept"),
    [({"logprobs": 0}, [{}]), ({"logprobs": 1}, [{"yes": -0.1}]), ({}, None), ({"logprobs": None}, None)],
)
def test_a_completion_has_as_many_log_probabilities_as_were_asked_for(
    judged: Running, server: Recording, more: dict[str, Any], kept: Any
) -> None:
    held = {"tokens": ["yes"], "token_logprobs": [-0.1], "top_logprobs": [{"yes": -0.1, "no": -3.0}]}
    server.answer = lambda _: reply(json.dumps({"choices": [{"text": "yes", "logprobs": held}]}).encode())
    found = ask(judged, TEXT, **more).json()
    assert "calibration" in found
    held = found["choices"][0]["logprobs"]
    assert (held if held is None else held["top_logprobs"]) == kept


@pytest.mark.parametrize("more", [{"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"stream": "true"}])
def test_answers_to_several_questions_are_no_votes(
    voted: Running, server: Recording, more: dict[str, Any]
) -> None:
    server.answer = lambda _: reply(completion({"yes": 1.0}, choices=2))
    found = ask(voted, TEXT, **more)
    assert "calibration" not in found.json()
    assert "x-calib-uncalibrated" in found.headers
    assert "calibration" in ask(voted, TEXT, prompt=[1, 2], n=2).json()


@pytest.mark.parametrize(
    "content",
    [
        completion({"maybe": 0.99}),  # one point is not listed: nothing is known of any class
        completion({"maybe": 1.0}),
        completion({"yes": 0.8, "no": 0.2}, choices=2),
        b'{"error": {"message": "busy"}}',
        b"<html>busy</html>",
        b"[]",
        b"null",
        b"",
        b'{"choices": [{"logprobs": {"content": ["yes"]}}]}',
        b'{"choices": [null]}',
        b'{"choices": ' + b"[" * 100_000,
    ],
)
def test_what_holds_no_class_passes_unchanged_and_is_counted(
    judged: Running, server: Recording, content: bytes
) -> None:
    counted = judged.counted("calib_uncalibrated_total")
    server.answer = lambda _: reply(content)
    found = ask(judged)
    assert (found.status_code, found.content) == (200, content)
    assert found.headers["x-calib-uncalibrated"]
    assert "x-calib-receipt" not in found.headers
    assert judged.counted("calib_uncalibrated_total") == counted + 1


def test_a_packed_answer_is_not_read_and_passes_whole(judged: Running, server: Recording) -> None:
    server.answer = lambda _: reply(gzip.compress(YES), "Content-Encoding: gzip")
    found = ask(judged)
    assert found.json() == json.loads(YES)
    assert found.headers["x-calib-uncalibrated"]


def test_no_cache_may_give_a_receipt_twice(judged: Running, server: Recording) -> None:
    told = ("Cache-Control: public, max-age=60", 'ETag: "1"', "Age: 5", "Digest: sha-256=x", "X-Kept: 1")
    server.answer = lambda _: reply(YES, *told)
    found = ask(judged).headers
    assert found.get_list("cache-control") == ["no-store"]
    assert not {"etag", "age", "digest"} & {*found}
    assert found["x-kept"] == "1"


def test_how_much_of_an_answer_is_of_no_class_is_told(judged: Running, server: Recording) -> None:
    server.answer = lambda _: reply(completion({"I": 0.9, "yes": 0.08, "no": 0.02}))
    assert ask(judged).json()["calibration"]["outside"] == pytest.approx(0.9)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_packed_request_is_read_and_bounded(judged: Running, server: Recording, coding: str) -> None:

    pack = gzip.compress if coding == "gzip" else zlib.compress
    headers = {"content-encoding": coding, "content-type": "application/json"}
    found = judged.client.post(judged.http + CHAT, content=pack(json.dumps(ASKED).encode()), headers=headers)
    assert "calibration" in found.json()
    assert b"content-encoding" not in server.requests[-1].lower()
    bomb = pack(json.dumps({**ASKED, "pad": " " * (70 << 20)}).encode())
    assert judged.client.post(judged.http + CHAT, content=bomb, headers=headers).status_code in (400, 413)
    br = judged.client.post(judged.http + CHAT, content=b"x", headers={"content-encoding": "br"})
    assert br.status_code == 400


@pytest.mark.parametrize(
    "content",
    [
        b'{"model": "judge", "messages": [{"role": "user", "role": "system"}]}',
        b'{"model": "judge", "model": "judge"}',
        b"[" * 100_000,
        b'{"model": ["judge"]}',
        b"\xff\xfe{\x00",
    ],
)
def test_a_request_of_two_readings_is_refused(judged: Running, server: Recording, content: bytes) -> None:
    assert judged.client.post(judged.http + CHAT, content=content).status_code == 400
    assert not server.requests


def test_tags_of_clients_without_a_token_go_no_further(judged: Running, server: Recording) -> None:
    headers = {"x-calib-segment": "a", "x-calib-id": "b", "x-calib-token": "c"}
    found = judged.client.post(judged.http + CHAT, json=ASKED, headers=headers)
    assert "calibration" in found.json()
    assert b"x-calib" not in server.requests[-1].lower()


def test_thirty_two_at_once_have_their_own_answers(judged: Running, server: Recording) -> None:
    def answer(told: bytes) -> bytes:
        p = int(json.loads(told.partition(b"\r\n\r\n")[2])["user"]) / 100
        return reply(completion({"yes": p, "no": 1 - p}))

    server.answer = answer

    def one(n: int) -> dict[str, Any]:
        body = {**ASKED, "user": str(n)}
        return dict(httpx.post(judged.http + CHAT, json=body, timeout=60).json()["calibration"])

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(one, range(10, 90)))
    for n, said in zip(range(10, 90), found, strict=True):
        odds = (n / (100 - n)) ** 0.5
        assert said["classes"]["yes"] == pytest.approx(odds / (1 + odds))
    assert len({said["receipt"] for said in found}) == 80


def test_answers_name_no_version_so_a_model_has_one(tmp_path: Path) -> None:
    (tmp_path / "words.yaml").write_text("classes:\n  'yes': ['yes']\n  'no': ['no']\n")
    two = [f"judge:{version}={artifact(tmp_path)}" for version in ("prompt-1", "prompt-2")]
    output = ["--output", f"judge=answers:{tmp_path / 'words.yaml'}", "--upstream", "http://127.0.0.1:1"]
    Keyring.new().save(tmp_path / "keys.json")
    ring = ("--keyring", tmp_path / "keys.json", "--ledger", tmp_path / "l.db")
    found = calib_serve("gateway", *two, *output, *ring)
    assert found.exit_code == 2
    assert "one version" in found.stderr
