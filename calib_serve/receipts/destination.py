"""Destinations of batches and labels: a ``calib-serve watch``, or a Watch of this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union, runtime_checkable

import numpy as np

from calib_serve.core.errors import InputError, LedgerError, Refused, ServerError, Unanswered
from calib_serve.receipts.batch import Item, Outcome, ServedReceipt, ServedSums
from calib_serve.receipts.items import in_batches, row_size

if TYPE_CHECKING:
    from calib_serve.receipts.policy import LabelPolicy
    from calib_serve.receipts.sums import Version
    from calib_serve.receipts.wire import SignedReceipt


class Served(NamedTuple):
    """One prediction to count: its receipt, the caller's own id of it, and its logits (K,) in float16."""

    receipt: str
    id: str = ""
    logits: bytes = b""

    @classmethod
    def of(cls, receipt: str, id: str, logits: Sequence[float] | None) -> Served:
        """Read a prediction from its form on disk."""
        return cls(receipt, id, b"" if logits is None else np.array(logits, np.float16).tobytes())

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The logits as numbers, or None."""
        return tuple(np.frombuffer(self.logits, np.float16).tolist()) if self.logits else None

    def as_item(self) -> dict[str, Any]:
        """The prediction as the watch takes it."""
        item: dict[str, Any] = {"receipt": self.receipt}
        if self.id:
            item["id"] = self.id
        return {**item, "logits": self.numbers} if self.logits else item


def wire_size(one: Served | ServedSums) -> int:
    """The most bytes that an item takes over the wire, whatever its numbers are."""
    if isinstance(one, ServedSums):
        return 250 + len(json.dumps([one.model, one.version, one.segment]))
    # A letter takes 12 characters at most, and a number of two bytes 24.
    return 50 + len(one.receipt) + 12 * (len(one.id) + len(one.logits))


class Batch(NamedTuple):
    """Predictions, or sums of them, that are sent under one name until they are settled.

    ``time``: when the first of them was made, about, in seconds since 1970.
    """

    name: str
    time: float
    items: Union[tuple[Served, ...], tuple[ServedSums, ...]]

    @property
    def counts(self) -> list[int]:
        """The number of predictions in each item."""
        return [one.count if isinstance(one, ServedSums) else 1 for one in self.items]

    def halves(self) -> Iterator[Batch]:
        """Both halves of its items, whose names are always the same."""
        middle = len(self.items) // 2
        for at, items in enumerate((self.items[:middle], self.items[middle:])):
            yield self._replace(name=f"{self.name}.{at}", items=items)

    def json(self) -> bytes:
        """Its form on disk, without its name."""
        rows = [
            astuple(one) if isinstance(one, ServedSums) else (one.receipt, one.id, one.numbers)
            for one in self.items
        ]
        return json.dumps([self.time, rows]).encode()

    @classmethod
    def read(cls, name: str, body: bytes) -> Batch:
        """Read a batch from its form on disk; ValueError, or TypeError, for any other form."""
        try:
            told, rows = json.loads(body)
            items: Any = tuple(Served.of(*row) if len(row) == 3 else _sums(row) for row in rows)
            texts = [text for one in items if isinstance(one, Served) for text in (one.receipt, one.id)]
            if len({type(one) for one in items}) != 1 or not all(isinstance(one, str) for one in texts):
                raise ValueError("they are no predictions")
            return cls(name, float(told), items)
        except (OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from error


def _sums(row: list[Any]) -> ServedSums:
    found = ServedSums(*row)
    texts = (found.model, found.version, found.segment)
    numbers = (found.predicted, found.low, found.high, found.count, found.confidence)
    if not all(isinstance(one, str) for one in texts) or not all(
        type(one) in (int, float) for one in numbers
    ):
        raise TypeError("they are no sums of predictions")
    return found


class Remote:
    """A ``calib-serve watch`` at ``url``, with a token of the scopes ``predict`` and ``label``.

    ``sample_rate``: the share of predictions whose logits are kept there; 1 until the watch has said it.
    """

    def __init__(self, url: str, token: str = "") -> None:
        from calib_serve.receipts.client import check_url, post_batch  # noqa: PLC0415 - not where no watch is asked

        check_url(url)
        self._url, self._token, self._post = url.rstrip("/"), token, post_batch
        self.sample_rate = 1.0

    def count(self, batch: Batch) -> list[str]:
        """Count a batch, once under its name; why each item was refused, or nothing.

        Raises Unanswered where the batch may be sent again, else ServerError.
        """
        sums = [one for one in batch.items if isinstance(one, ServedSums)]
        if sums:
            told = {"time": batch.time, "items": [asdict(one) for one in sums]}
        else:
            told = {"items": [one.as_item() for one in batch.items if isinstance(one, Served)]}
        found = self._sent("sums" if sums else "predictions", told, once=batch.name, tries=1)
        return ["" if one.accepted else one.message or str(one.reason) for one in found]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels; return the outcome of each. ServerError where that failed: send them again."""
        batches = in_batches(items, row_size)
        return [one for some in batches for one in self._sent("labels", {"items": some}, tries=3)]

    def _sent(self, what: str, told: Mapping[str, Any], **how: Any) -> list[Outcome]:
        # Seconds in which the whole answer is there, or the batch is sent again.
        found = self._post(f"{self._url}/v1/{what}", told, token=self._token, seconds=10.0, **how)
        if found.sample_rate is not None:
            self.sample_rate = found.sample_rate
        names = {one.name for one in fields(Outcome)}
        return [Outcome(**{name: told for name, told in one.items() if name in names}) for one in found.items]


@runtime_checkable
class LocalWatch(Protocol):
    """Watch of this process, as far as a reporter needs it."""

    @property
    def sample_rate(self) -> float:
        """Return the share of predictions whose logits are kept."""

    def label_policy(self, version: Version) -> LabelPolicy | None:
        """Return the policy by which labels are asked for; None: every label is wanted."""

    def predictions(self, items: Sequence[Item], *, once: bytes | None) -> list[SignedReceipt | Refused]:
        """Count them, once under this name; the receipt of each, or why it was not counted."""

    def served(self, sums: Sequence[ServedSums], *, time: float, once: bytes) -> list[Refused | None]:
        """Count predictions that were added up, once under this name; why each was not counted."""

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels; what became of each."""


class Within:
    """A Watch of this process, with the methods of ``Remote``."""

    def __init__(self, watch: LocalWatch) -> None:
        self._watch = watch

    @property
    def sample_rate(self) -> float:
        """The share of predictions whose logits are kept."""
        return self._watch.sample_rate

    def count(self, batch: Batch) -> list[str]:
        """Count a batch, as ``Remote`` does."""
        sums = [one for one in batch.items if isinstance(one, ServedSums)]
        ones = [ServedReceipt(o.receipt, o.id, o.numbers) for o in batch.items if isinstance(o, Served)]
        once = batch.name.encode()
        found: Sequence[object]
        try:
            if sums:
                found = self._watch.served(sums, time=batch.time, once=once)
            else:
                found = self._watch.predictions(ones, once=once)
        except LedgerError as error:
            raise Unanswered(f"the ledger cannot keep the predictions: {error}") from error
        return [str(one) if isinstance(one, Refused) else "" for one in found]

    def labels(self, items: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """Count labels, as ``Remote`` does."""
        try:
            return self._watch.labels(items)
        except LedgerError as error:
            raise ServerError(f"the ledger cannot keep the labels: {error}; send them again") from error


Destination = Union[Remote, Within]
"""Predictions and labels are in a ledger there once they are acknowledged."""


def destination_of(watch: str | LocalWatch, token: str = "") -> Destination:
    """Return the destination at a URL, or in this process; InputError for what is neither."""
    if isinstance(watch, str):
        return Remote(watch, token)
    if not isinstance(watch, LocalWatch):
        raise InputError(
            "watch is the address of a calib-serve watch, or a Watch of this process, got "
            f"{type(watch).__name__}: give watch=URL or watch=Watch.open(...)"
        )
    return Within(watch)
