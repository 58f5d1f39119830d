"""Send labels in bulk, safely: what was counted before is a duplicate, so all may be sent again."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from calib_serve.errors import InputError, ServerError
from calib_serve.files import csv_rows, open_parquet, read_private
from calib_serve.names import By
from calib_serve.options import LabelColumns, LabelOptions, SendLimits, changed

__all__ = [
    "LABEL_COLUMNS", "Rejected", "Sent", "Unanswered", "post_body", "post_items", "read_labels", "read_token",
    "send_label_file", "send_labels",
]  # fmt: skip

LABEL_COLUMNS = ("receipt", "id", "model", "label", "by", "segment")
"""What may be said of a label: its prediction's receipt, or its id (and model); the class; a segment."""

_RETRY = (429, 500, 502, 503, 504)
_NOT_LET_IN = (401, 403, 404)  # until somebody mends the token or the address
_ROWS = 1_000  # of Parquet, read at once
_LONGEST = 1 << 16  # bytes of a text in it
_LONGEST_PAUSE = 60.0  # seconds between two tries
_LONGEST_ASKED = 600.0  # the longest that a server is obeyed which says when to come again


class Unanswered(ServerError):
    """A batch that was not answered for; it may be sent again."""


class Rejected(ServerError):
    """A batch that the server will not take however often it comes; ``status``: its HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Sent:
    """What became of the labels: how many were counted, and refusals by reason."""

    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)


def send_label_file(
    path: str | Path,
    options: LabelOptions | None = None,
    *,
    token: str = "",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    **given: Any,
) -> Sent:
    """Send the labels of a CSV or Parquet file; safe to repeat.

    The file has a column of receipts, or one of ``id``, the user's own of predictions (and ``model``, where
    those of two models have one id), one of labels (class ids or names) and, if wanted, ``segment``.
    ``options``, or ``given`` one by one: see ``LabelOptions``; ``by`` is for texts of digits, which may be
    ids or names. ``progress`` is called with (done, total). Raises InputError where a row cannot be read,
    before anything is sent, and ServerError where a request failed or was refused as a whole.
    """
    options = changed(options or LabelOptions(), given)

    def rows() -> Iterator[dict[str, Any]]:
        return read_labels(
            Path(path), receipt=options.receipt_column, label=options.label_column, by=options.by
        )

    total, done = sum(1 for _ in rows()), 0
    progress(done, total)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    batch, tries = options.batch, options.tries
    return send_labels(rows(), options.url, token=token, batch=batch, tries=tries, progress=advance)


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
    path: Path,
    *,
    receipt: str = LabelColumns.receipt_column,
    label: str = LabelColumns.label_column,
    by: By | None = None,
) -> Iterator[dict[str, Any]]:
    """The labels in a CSV or Parquet file: ``receipt`` or ``id``, ``label``, and more of ``LABEL_COLUMNS``.

    A row without a receipt goes by its id, of which a whole number becomes a text. ``by``: whether labels are
    class ids or names. Where it is not said, by the column ``by`` if there is one; else a number of Parquet
    is an id, and a text, which is all that CSV has, a name, else the digits of an id; the server refuses
    what may be both.
    """
    columns = (receipt, label, *(one for one in LABEL_COLUMNS if one not in ("receipt", "label")))
    names, rows = _parquet(path, columns) if path.suffix.lower() == ".parquet" else csv_rows(path)
    if label not in names or not {receipt, "id"} & set(names):
        told = f"{path} needs columns {receipt!r} and {label!r}, or 'id' for the first, got {sorted(names)}"
        raise InputError(told[:500])
    for number, row in enumerate(rows, 1):
        more = {"segment": row["segment"]} if row.get("segment") else {}
        if row.get("by") in ("id", "name"):  # a column of that name may also say who labelled
            more["by"] = row["by"]
        yield {**_named(row, receipt), **more, **_label(row[label], by, f"{path} row {number}")}


def _named(row: dict[str, Any], receipt: str) -> dict[str, Any]:
    """What says of which prediction a label is."""
    if row.get(receipt) or row.get("id") in (None, ""):
        return {"receipt": row.get(receipt)}
    name = row["id"]
    whole = isinstance(name, int) and not isinstance(name, bool)
    return {"id": str(name) if whole else name, **({"model": row["model"]} if row.get("model") else {})}


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
    batch: int = SendLimits.batch,
    tries: int = SendLimits.tries,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[int], None] = lambda _count: None,
) -> Sent:
    """POST labels to ``url`` in batches and wait for each; a batch that fails is sent again, later.

    ``progress`` is called with the size of each batch that was answered. Raises ServerError when a batch
    failed ``tries`` times, or was refused as a whole.
    """
    sent, rest = Sent(), iter(items)
    while rows := list(islice(rest, batch)):
        outcomes = post_items(url, rows, token=token, tries=tries, sleep=sleep)
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
