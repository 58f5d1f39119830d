"""Send a batch to a watch, safely: what was counted before is a duplicate, so all may be sent again."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calib_serve.errors import InputError, ServerError
from calib_serve.files import read_private
from calib_serve.options import SendLimits

__all__ = ["Rejected", "Unanswered", "post_body", "post_items", "read_token"]

_RETRY = (429, 500, 502, 503, 504)
_NOT_LET_IN = (401, 403, 404)  # until somebody mends the token or the address
_LONGEST_PAUSE = 60.0  # seconds between two tries
_LONGEST_ASKED = 600.0  # the longest that a server is obeyed which says when to come again


class Unanswered(ServerError):
    """A batch that was not answered for; it may be sent again."""


class Rejected(ServerError):
    """A batch that the server will not take however often it comes; ``status``: its HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


def read_token(path: str | Path) -> str:
    """The first token in a file; InputError if it cannot be read, others may read it, or it holds none."""
    try:
        words = read_private(Path(path)).decode().split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token {path}: {error}") from error
    if not words:
        raise InputError(f"{path} holds no token; write one into it")
    return words[0]


def _authorization(token: str) -> dict[str, str]:
    if not (token.isascii() and token.isprintable()):  # an error of the request itself would quote it
        raise InputError(
            "the token holds characters that a header cannot; check its file, or CALIB_SERVE_TOKEN"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def post_items(url: str, items: Sequence[Mapping[str, Any]], **how: Any) -> list[dict[str, Any]]:
    """POST one batch to ``url`` and return what it says of each item; ``how``: see ``post_body``."""
    return post_body(url, json.dumps({"items": list(items)}).encode(), count=len(items), **how)


def post_body(
    url: str,
    body: bytes,
    *,
    count: int,
    token: str = "",
    tries: int = SendLimits.tries,
    sleep: Callable[[float], None] = time.sleep,
    seconds: float = 60.0,
    once: str = "",
    failed: Callable[[str], None] = lambda _why: None,
) -> list[dict[str, Any]]:
    """POST ``body``, the JSON of a batch of ``count`` items, and return what is said of each.

    ``seconds``: to wait for an answer, each time. ``once``: the ``Idempotency-Key``, under which predictions
    count once. ``failed`` is told why before each further try. Raises Unanswered where it failed ``tries``
    times, Rejected where it was refused as a whole, and ServerError where the answer is none of calib-serve.
    """
    headers = _headers(token, once)
    answer = _post(url, body, headers=headers, tries=tries, sleep=sleep, seconds=seconds, failed=failed)
    outcomes = answer.get("items", answer.get("outcomes"))
    if not isinstance(outcomes, list) or len(outcomes) != count:
        raise ServerError(f"{url} did not answer for each item; is it an endpoint of calib-serve?")
    return outcomes


def _headers(token: str, once: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json"} | _authorization(token.strip())
    return {**headers, "Idempotency-Key": once} if once else headers


def _post(
    url: str,
    body: bytes,
    *,
    headers: dict[str, str],
    tries: int,
    sleep: Callable[[float], None],
    seconds: float,
    failed: Callable[[str], None],
) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"the address must start with http:// or https://, got {url!r}")
    request = urllib.request.Request(url, body, headers)  # noqa: S310  checked above
    why, asked = "", 0.0
    for attempt in range(tries):
        if attempt:
            failed(why)
            sleep(max(min(0.5 * 2 ** min(attempt, 10), _LONGEST_PAUSE), asked))
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.read(300).decode('utf-8', 'replace')}"
            after = error.headers.get("Retry-After") or ""
            asked = min(float(after), _LONGEST_ASKED) if after.isdecimal() else 0.0
            if error.code not in _RETRY:
                told = f"{url} refused the batch: {why}"
                if error.code in _NOT_LET_IN:
                    raise Unanswered(told) from error
                raise Rejected(told, status=error.code) from error
        except (OSError, ValueError) as error:
            why = str(error)
    raise Unanswered(
        f"{url} failed {tries} times, last with: {why}; send it again, what was counted is not counted twice"
    )
