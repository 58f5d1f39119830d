"""Clients of a ``calib-serve watch``: each exchange ends in time, and each answer has one meaning.

| what comes back | what becomes of the batch |
| --- | --- |
| 200, with an answer for each item | it is settled |
| nothing, less or something else within the time; 408, 425, 429, 5xx | it is kept, and sent again |
| 1xx to 3xx, 401, 403, 404: the address or the token is to be mended | it is kept, and may be sent again |
| another 4xx | it is given up: sending it again would change nothing |

Requests go to the address that is given alone: no redirect is followed, and no proxy asked. They are made by
httpcore, whose connections take a deadline for the whole answer.
"""

from __future__ import annotations

import functools
import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpcore

from calib_serve.core.errors import InputError, Rejected, Unanswered
from calib_serve.core.files import read_private

_AGAIN = (408, 425, 429)  # statuses after which the same request may pass
_TO_MEND = (401, 403, 404)  # and those after which somebody must change something first
_LARGEST = 16 << 20  # bytes of an answer
_PIECE = 1 << 16  # bytes that are written at once


class _Answer(NamedTuple):
    """The status of an answer, its content, and the seconds for which it asks to be left alone."""

    status: int
    content: bytes
    pause: float


class Settled(NamedTuple):
    """The watch's outcome of each item, and its ``sample_rate``, where it tells one."""

    items: list[dict[str, Any]]
    sample_rate: float | None


def post_batch(
    url: str,
    batch: Mapping[str, Any],
    *,
    token: str = "",
    tries: int = 7,
    sleep: Callable[[float], None] = time.sleep,
    seconds: float = 60.0,
    once: str = "",
    failed: Callable[[str], None] = lambda _why: None,
) -> Settled:
    """POST a batch and return the outcome of each item.

    Args:
        url: Address of the endpoint.
        batch: Plain values for JSON, the items under "items".
        token: Bearer token; empty: none.
        tries: Number of tries.
        sleep: Called with the seconds to wait before a further try.
        seconds: Time in which a whole answer must be there, each time.
        once: ``Idempotency-Key``, under which predictions count once; empty: none.
        failed: Called with the reason before each further try.

    Raises:
        Rejected: Where the batch is refused as a whole.
        Unanswered: Where each try fails, or something must be mended first.
    """
    body = json.dumps(batch).encode()
    headers = {"Content-Type": "application/json"} | _authorization(token.strip())
    if once:
        headers["Idempotency-Key"] = once
    why, pause = "", 0.0
    for attempt in range(tries):
        if attempt:
            failed(why)
            # Ever longer, so that a watch that comes back is not met by everything at once.
            sleep(max(min(0.5 * 2 ** min(attempt, 10), 60.0), pause))
        try:
            status, content, pause = exchange(url, body, headers, seconds=seconds)
        except Unanswered as error:
            why, pause = str(error), 0.0
            continue
        if status == 200 and (found := _settled(content, len(batch["items"]))) is not None:
            return found
        why = f"{status} {_shown(content, token.strip())}"
        if status == 200:
            why = "it did not answer for each item; is it an endpoint of calib-serve?"
        elif status in _TO_MEND or status < 400:
            raise Unanswered(f"{url} refused the batch: {why}")
        elif status not in _AGAIN and status < 500:
            raise Rejected(f"{url} refused the batch: {why}", status=status)
    raise Unanswered(
        f"{url} failed {tries} times, last with: {why}; send it again, what was counted is not counted twice"
    )


def read_token(path: str | Path) -> str:
    """Read the first token in a file; InputError if the file is not private, not readable or empty."""
    try:
        words = read_private(Path(path)).decode().split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token {path}: {error}") from error
    if not words:
        raise InputError(f"{path} holds no token; write one into it")
    return words[0]


def exchange(url: str, body: bytes, headers: Mapping[str, str], *, seconds: float) -> _Answer:
    """POST ``body`` to ``url`` once and return its answer.

    Raises Unanswered where that is not whole within ``seconds``, or is no HTTP, and InputError for an address
    that is none.
    """
    check_url(url)
    tls = _tls() if url.startswith("https:") else None
    # Moments, which _InTime takes for the time that is left; httpcore hands them on to it.
    until = dict.fromkeys(("connect", "write", "read"), time.monotonic() + seconds)
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        with (
            # Of one exchange: nothing is shared by threads, or with a forked process.
            httpcore.ConnectionPool(ssl_context=tls, network_backend=_InTime()) as pool,
            pool.stream("POST", url, headers=given, content=body, extensions={"timeout": until}) as answer,
        ):
            content = bytearray()
            for chunk in answer.iter_stream():
                content += chunk
                if len(content) > _LARGEST:
                    raise Unanswered(f"an answer has at most {_LARGEST >> 20} MiB")
    except httpcore.TimeoutException as error:
        raise Unanswered(f"no whole answer within {seconds:g} s") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        raise Unanswered(f"{type(error).__name__}: {error}") from error
    after = {name.lower(): value for name, value in answer.headers}.get(b"retry-after", b"")
    # A server that says when to come again is obeyed for ten minutes at most.
    return _Answer(answer.status, bytes(content), min(float(after), 600.0) if after.isdigit() else 0.0)


def check_url(url: str) -> None:
    """Raise InputError for a text that is no address of a watch."""
    parts = urlsplit(url)
    try:
        sound = bool(parts.hostname) and parts.port != 0 and parts.username is None
        sound = sound and url.isascii() and " " not in url
    except ValueError:  # of the port
        sound = False
    if parts.scheme not in ("http", "https") or not sound:
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # whoever logs it
        raise InputError(
            f"an address is http://HOST:PORT or https://HOST, in ASCII, without a user; got {shown!r}"
        )


def _settled(content: bytes, count: int) -> Settled | None:
    """The outcomes in an answer; None where it is no answer of a watch."""
    try:
        told = json.loads(content)
        found, rate = told.get("items", told.get("outcomes")), told.get("sample_rate")
        whole = len(found) == count and all(
            one["accepted"] is True or (one["accepted"] is False and isinstance(one["reason"], str))
            for one in found
        )
        whole = whole and (rate is None or 0 <= rate <= 1)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return None
    return Settled(list(found), rate) if whole else None


def _shown(content: bytes, token: str) -> str:
    """The beginning of an answer in one line, for people and logs, without a token that it repeats."""
    text = content[:4_000].decode("utf-8", "replace")
    if token:
        text = text.replace(token, "[token]")
    return "".join(one if one.isprintable() else " " for one in text[:300])


def _authorization(token: str) -> dict[str, str]:
    if not (token.isascii() and token.isprintable()):  # an error of the request itself would quote it
        raise InputError(
            "the token holds characters that a header cannot; check its file, or CALIB_SERVE_TOKEN"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _left(until: float | None) -> float | None:
    """The seconds left until a deadline; httpcore's error where none are left."""
    if until is None:
        return None
    left = until - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the time of the exchange is over")
    return left


class _InTime(httpcore.SyncBackend):
    """Connections whose timeouts are the moment at which the whole exchange ends, not each wait's.

    A peer that sends a byte now and then would be waited for without end.
    """

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(timeout)
        return _StreamInTime(super().connect_tcp(host, port, left, local_address, socket_options))


class _StreamInTime(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), _PIECE):
            self._stream.write(buffer[at : at + _PIECE], _left(timeout))

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return _StreamInTime(self._stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
