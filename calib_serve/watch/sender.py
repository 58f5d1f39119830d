"""Send labels in bulk, safely: what was counted before is a duplicate, so all may be sent again."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from calib_serve.columns import csv_rows, open_parquet
from calib_serve.errors import InputError, ServerError
from calib_serve.files import read_private
from calib_serve.naming import By

__all__ = ["Sent", "read_labels", "read_token", "send_label_file", "send_labels"]

_RETRY = (429, 500, 502, 503, 504)
_ROWS = 1_000  # of Parquet, read at once
_LONGEST = 1 << 16  # bytes of a text in it
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
    by: By | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Sent:
    """Send the labels of a CSV or Parquet file to ``url``; safe to repeat.

    The file has a column of receipts, one of labels (class ids or names) and, if wanted, ``segment``.
    ``by`` says that labels are ids, or names, where a text of digits may be both. ``batch``: labels a
    request; ``tries``: how often a request is tried. ``progress`` is called with (done, total). Raises
    InputError where a row cannot be read, before anything is sent, and ServerError where a request failed or
    was refused as a whole.
    """

    def rows() -> Iterator[dict[str, Any]]:
        return read_labels(Path(path), receipt=receipt_column, label=label_column, by=by)

    total, done = sum(1 for _ in rows()), 0
    progress(done, total)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return send_labels(rows(), url, token=token, batch=batch, tries=tries, progress=advance)


def read_token(path: str | Path) -> str:
    """The first token in a file; InputError if it cannot be read, others may read it, or it holds none."""
    try:
        words = read_private(Path(path)).decode().split()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token {path}: {error}") from error
    if not words:
        raise InputError(f"{path} holds no token; write one into it")
    return words[0]


def read_labels(
    path: Path, *, receipt: str = "receipt", label: str = "label", by: By | None = None
) -> Iterator[dict[str, Any]]:
    """The labels in a CSV or Parquet file with columns ``receipt``, ``label`` and, if there, ``segment``.

    ``by``: whether labels are ids or names. Where it is not said, a number of Parquet is an id, and a text,
    which is all that CSV has, a name, else the digits of an id; the server refuses what may be both.
    """
    columns = (receipt, label, "segment")
    names, rows = _parquet(path, columns) if path.suffix.lower() == ".parquet" else csv_rows(path)
    if not {receipt, label} <= set(names):
        raise InputError(f"{path} needs columns {receipt!r} and {label!r}, got {sorted(names)}"[:500])
    for number, row in enumerate(rows, 1):
        segment = {"segment": row["segment"]} if row.get("segment") else {}
        yield {"receipt": row[receipt], **_label(row[label], by, f"{path} row {number}"), **segment}


def _label(value: Any, by: By | None, where: str) -> dict[str, Any]:
    if by == "name":
        return {"label": str(value), "by": "name"}
    if by == "id" and isinstance(value, str):
        if not (value.isascii() and value.isdecimal() and len(value) < 19):
            raise InputError(f"{where}: {value[:40]!r} is no class id; leave --by id out, or say --by name")
        return {"label": int(value)}
    return {"label": value}


def _parquet(path: Path, columns: Sequence[str]) -> tuple[tuple[str, ...], Iterator[dict[str, Any]]]:
    # As a dictionary, a long text that is named in every row stays one text.
    file = open_parquet(path, texts=columns)
    names = tuple(file.schema_arrow.names)
    return names, _rows(path, file, [name for name in columns if name in names])


def _rows(path: Path, file: Any, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    from pyarrow import ArrowException, compute, types  # noqa: PLC0415 - an optional extra

    try:
        with file:
            for batch in file.iter_batches(_ROWS, columns=columns):
                for column in (one for one in batch.columns if types.is_dictionary(one.type)):
                    if (compute.max(compute.binary_length(column.dictionary)).as_py() or 0) > _LONGEST:
                        raise InputError(f"{path} holds a text of more than {_LONGEST} bytes")
                yield from batch.to_pylist()
    except (ArrowException, OSError, ValueError) as error:
        raise (
            error if isinstance(error, InputError) else InputError(f"cannot read {path}: {error}")
        ) from error


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


def _authorization(token: str) -> dict[str, str]:
    if not (token.isascii() and token.isprintable()):  # an error of the request itself would quote it
        raise InputError(
            "the token holds characters that a header cannot; check its file, or CALIB_SERVE_TOKEN"
        )
    return {"Authorization": f"Bearer {token}"} if token else {}


def _post(
    url: str, rows: list[dict[str, Any]], *, token: str, tries: int, sleep: Callable[[float], None]
) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise InputError(f"the address must start with http:// or https://, got {url!r}")
    headers = {"Content-Type": "application/json"} | _authorization(token.strip())
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
