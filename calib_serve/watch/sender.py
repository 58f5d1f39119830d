"""Send labels in bulk, safely: what was counted before is a duplicate, so all may be sent again."""

from __future__ import annotations

import csv
import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from calib_serve.errors import InputError, MissingDependency, ServerError

__all__ = ["Sent", "read_labels", "read_token", "send_label_file", "send_labels"]

_RETRY = (429, 500, 502, 503, 504)
_LONGEST_PAUSE = 60.0  # seconds between two tries
_LONGEST_ASKED = 600.0  # the longest that a server is obeyed which says when to come again


@dataclass
class Sent:
    """What became of the labels: how many were counted, and refusals by reason."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def send_label_file(
    path: str | Path,
    url: str = "http://127.0.0.1:9300/v1/labels",
    *,
    token: str = "",
    batch: int = 1000,
    tries: int = 8,
    receipt_column: str = "receipt",
    label_column: str = "label",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Sent:
    """Send the labels of a CSV or Parquet file to ``url``; safe to repeat.

    The file has a column of receipts, one of labels (class ids or names) and, if wanted, ``segment``.
    ``batch``: labels a request; ``tries``: how often a request is tried. ``progress`` is called with
    (done, total). Raises InputError where a row cannot be read, before anything is sent, and
    ServerError where a request failed or was refused as a whole.
    """

    def rows() -> Iterator[dict[str, Any]]:
        return read_labels(Path(path), receipt=receipt_column, label=label_column)

    total, done = sum(1 for _ in rows()), 0
    progress(done, total)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return send_labels(rows(), url, token=token, batch=batch, tries=tries, progress=advance)


def read_token(path: str | Path) -> str:
    """The first token in a file; InputError if it cannot be read or holds none."""
    try:
        words = Path(path).read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token {path}: {error}") from error
    if not words:
        raise InputError(f"{path} holds no token; write one into it")
    return words[0]


def read_labels(path: Path, *, receipt: str = "receipt", label: str = "label") -> Iterator[dict[str, Any]]:
    """The labels in a CSV or Parquet file with columns ``receipt``, ``label`` and, if there, ``segment``.

    In CSV a label of digits alone is a class id; anything else is a class name.
    """
    rows = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    for number, row in enumerate(rows, 1):
        if receipt not in row or label not in row:
            raise InputError(
                f"{path} row {number} needs columns {receipt!r} and {label!r}, got {sorted(map(str, row))}"
            )
        segment = {"segment": row["segment"]} if row.get("segment") else {}
        yield {"receipt": row[receipt], "label": _label(row[label]), **segment}


def _label(value: Any) -> Any:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.DictReader(file)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415  an optional extra
    except ImportError as error:
        raise MissingDependency("pyarrow", "fit") from error
    try:
        for batch in pq.ParquetFile(path).iter_batches(10_000):
            yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def send_labels(
    items: Iterable[dict[str, Any]],
    url: str,
    *,
    token: str = "",
    batch: int = 1000,
    tries: int = 8,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[int], None] = lambda _count: None,
) -> Sent:
    """POST labels to ``url`` in batches and wait for each; a batch that fails is sent again, later.

    ``progress`` is called with the size of each batch that was answered. Raises ServerError when a batch
    failed ``tries`` times, or was refused as a whole.
    """
    sent, rest = Sent(), iter(items)
    while rows := list(islice(rest, batch)):
        answer = _post(url, rows, token=token, tries=tries, sleep=sleep)
        outcomes = answer.get("items", answer.get("outcomes"))
        if not isinstance(outcomes, list) or len(outcomes) != len(rows):
            raise ServerError(f"{url} did not answer for each label; is it a label endpoint of calib-serve?")
        sent.accepted += sum(bool(one["accepted"]) for one in outcomes)
        sent.refused.update(one["reason"] for one in outcomes if not one["accepted"])
        progress(len(rows))
    return sent


def _post(
    url: str, rows: list[dict[str, Any]], *, token: str, tries: int, sleep: Callable[[float], None]
) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"the address must start with http:// or https://, got {url!r}")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, json.dumps({"items": rows}).encode(), headers)  # noqa: S310  checked above
    why, asked = "", 0.0
    for attempt in range(tries):
        if attempt:
            sleep(max(min(0.5 * 2**attempt, _LONGEST_PAUSE), asked))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.read(300).decode('utf-8', 'replace')}"
            after = error.headers.get("Retry-After") or ""
            asked = min(float(after), _LONGEST_ASKED) if after.isdecimal() else 0.0
            if error.code not in _RETRY:
                raise ServerError(f"{url} refused the batch: {why}") from error
        except (OSError, ValueError) as error:
            why = str(error)
    raise ServerError(f"{url} failed {tries} times, last with: {why}; run the command again to continue")
