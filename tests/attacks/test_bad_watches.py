"""Watches that hang, drip, lie or send clients elsewhere: nobody waits for them, and what is lost is said."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time

import pytest
from bad_watch import GOOD, HEAD, Way, bad_watch, drips, hangs, no_tls, pours, says, sends
from prometheus_client import CollectorRegistry
from sizes import sized

from calib_serve import Keyring, Reporter
from calib_serve.core.errors import InputError, Rejected, ServerError, Unanswered
from calib_serve.receipts.client import exchange, post_batch

pytestmark = pytest.mark.server

ITEMS = [{"receipt": "x", "label": 1}] * 3
PASSING: dict[str, Way] = {
    "cut off": sends(HEAD + b'{"items": ['),
    "no HTTP": sends(b"\x16\x03\x01\x02 hello\r\n\r\n"),
    "nothing": sends(b""),
    "an endless head": sends(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 100_000),
    "another JSON": says([1, 2, 3]),
    "null": says(None),
    "no JSON": says(b"<html>"),
    "a JSON too deep to read": says(b'{"items": ' + b"[" * 200_000),
    "too few answers": says({"items": [{"accepted": True}]}),
    "answers without a word": says(lambda n: {"items": [{}] * n}),
    "a text for a truth": says(lambda n: {"items": [{"accepted": "true"}] * n}),
    "a refusal without a reason": says(lambda n: {"items": [{"accepted": False}] * n}),
    **{
        f"a sample rate of {rate}": says(
            lambda n, rate=rate: {"items": [{"accepted": True}] * n, "sample_rate": rate}
        )
        for rate in (-0.1, 2, float("nan"), "all", [1])
    },
    "a compressed answer that nobody asked for": says(
        b"\x1f\x8b\x08" + b"\0" * 30, more="Content-Encoding: gzip\r\n"
    ),
    **{
        f"{status}": says({"detail": "x"}, status=f"{status} Some")
        for status in (204, 401, 403, 404, 408, 425, 429, 500, 502, 503, 504, 520, 599)
    },
}


@pytest.mark.parametrize("way", PASSING.values(), ids=PASSING)
def test_a_batch_that_was_not_answered_for_may_be_sent_again(way: Way) -> None:
    with bad_watch(way) as watch, pytest.raises(Unanswered):
        post_batch(f"{watch.url}/v1/labels", {"items": ITEMS}, tries=2, sleep=lambda _: None, seconds=30)


@pytest.mark.parametrize("status", [400, 405, 409, 410, 413, 415, 422, 451])
def test_a_batch_that_is_refused_is_not_sent_again(status: int) -> None:
    with bad_watch(says({"detail": "x"}, status=f"{status} No")) as watch:
        with pytest.raises(Rejected) as error:
            post_batch(f"{watch.url}/v1/labels", {"items": ITEMS}, tries=5, sleep=lambda _: None)
        assert error.value.status == status
        assert len(watch.heads) == 1


def test_an_answer_that_repeats_the_token_or_begins_a_line_brings_neither_into_an_error_or_a_log() -> None:
    token = "a-token-that-is-long"
    way = says(f"you sent {token}\nERROR all is lost\u2028x".encode(), status="400 No")
    with bad_watch(way) as watch, pytest.raises(Rejected) as error:
        post_batch(f"{watch.url}/v1/labels", {"items": ITEMS}, token=f" {token}\n")
    assert "all is lost" in str(error.value)
    assert token not in str(error.value)
    assert str(error.value).isprintable()


SLOW: dict[str, Way] = {
    "hangs": hangs,
    "drips its status line": drips(b"", b"H"),
    "drips its head": drips(b"HTTP/1.1 200 OK\r\nX-A: ", b"b"),
    "drips heads without end": drips(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
    "drips its body": drips(HEAD, b" "),
    "drips chunks": drips(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "drips that it goes on": drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.parametrize("way", SLOW.values(), ids=SLOW)
def test_an_answer_that_is_not_whole_in_time_is_none(way: Way) -> None:
    with bad_watch(way) as watch:
        began = time.monotonic()
        with pytest.raises(Unanswered):
            post_batch(f"{watch.url}/v1/labels", {"items": ITEMS}, tries=1, seconds=1.0)
        assert time.monotonic() - began < 20


def test_a_peer_that_does_not_speak_tls_is_waited_for_as_long_as_any_other() -> None:
    with bad_watch(hangs) as watch:
        began = time.monotonic()
        with pytest.raises(Unanswered):
            post_batch(f"{no_tls(watch.url)}/v1/labels", {"items": ITEMS}, tries=1, seconds=1.0)
        assert time.monotonic() - began < 20


def test_an_answer_without_an_end_is_read_up_to_a_bound() -> None:
    with bad_watch(pours) as watch:
        began = time.monotonic()
        with pytest.raises(Unanswered, match="16 MiB"):
            exchange(watch.url, b'{"items": []}', {}, seconds=60)
        assert time.monotonic() - began < 30


def test_a_server_that_wants_to_be_left_alone_for_years_is_asked_again_in_minutes() -> None:
    pauses: list[float] = []
    way = says({}, status="503 Later", more="Retry-After: 999999999\r\n")
    with bad_watch(way) as watch, pytest.raises(Unanswered):
        post_batch(watch.url, {"items": []}, tries=3, sleep=pauses.append)
    assert pauses == [600.0, 600.0]


@pytest.mark.parametrize("status", ["301 A", "302 A", "303 A", "307 A", "308 A"])
def test_a_redirect_is_not_followed_with_what_is_secret(status: str) -> None:
    with bad_watch(GOOD) as other:
        way = says({}, status=status, more=f"Location: http://localhost:{other.port}/v1/labels\r\n")
        with bad_watch(way) as watch, pytest.raises(Unanswered):
            post_batch(f"{watch.url}/v1/labels", {"items": ITEMS}, token="a-token-that-is-long")
        assert other.heads == []


@pytest.mark.parametrize(
    "url", ["watch:9300", "ftp://watch", "http://", "http://a:b@watch", "http://watch:99999", "http://wätch"]
)
def test_an_address_that_is_none_is_refused_when_the_reporter_is_made_and_shows_no_password(url: str) -> None:
    with pytest.raises(InputError) as error:
        Reporter(3, model="m", version="1", keyring=Keyring.new(), registry=CollectorRegistry(), watch=url)
    assert "a:b" not in str(error.value)


# All of PASSING are one to it: each is an Unanswered, see above.
@pytest.mark.parametrize(
    "way", sized([hangs], [hangs, drips(HEAD, b" "), PASSING["cut off"], PASSING["520"]])
)
def test_a_reporter_closes_in_time_and_says_what_was_lost(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    with bad_watch(way) as watch, caplog.at_level(logging.WARNING):
        reporter = Reporter(
            3, model="m", version="1", keyring=Keyring.new(), registry=registry, watch=watch.url
        )
        reporter.served([[0.7, 0.2, 0.1]] * 50)
        reporter.served([[0.7, 0.2, 0.1]] * 5, id=list("abcde"))
        time.sleep(0.7)  # the thread waits for an answer
        began = time.monotonic()
        reporter.close()
        assert time.monotonic() - began < 20
    assert registry.get_sample_value("calib_monitor_errors_total", {"stage": "lost"}) == 55
    assert "55 predictions were never counted" in caplog.text


def test_a_label_that_was_not_answered_for_is_an_error_of_ours() -> None:
    with bad_watch(PASSING["cut off"]) as watch:
        reporter = Reporter(
            3, model="m", version="1", keyring=Keyring.new(), registry=CollectorRegistry(), watch=watch.url
        )
        with pytest.raises(ServerError):
            reporter.label("receipt", 1)


ENDS = """
import sys, time
from calib_serve import Reporter, Keyring
from prometheus_client import CollectorRegistry
for name in "abc":
    own = {"keyring": Keyring.new(), "registry": CollectorRegistry(), "watch": sys.argv[1]}
    r = Reporter(3, model=name, version="1", **own)
    r.served([[0.7, 0.2, 0.1]] * 5)
    globals()[name] = r
time.sleep(1.5)
print("main ends", flush=True)
"""


def test_a_process_with_reporters_of_many_models_ends_in_time() -> None:
    with bad_watch(hangs) as watch:
        command = [sys.executable, "-c", textwrap.dedent(ENDS), watch.url]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            assert child.stdout.readline() == "main ends\n"
            began = time.monotonic()
            child.wait(60)
            assert (
                time.monotonic() - began < 14
            )  # five for all, not for each, and what Python's own end takes
            assert child.stderr.read().count("5 predictions were never counted") == 3
