"""What binds a user's own prediction id to its receipt, and what a label that names an id is counted by."""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from calib_serve.errors import Refused
from calib_serve.names import shown
from calib_serve.receipts import SignedReceipt
from calib_serve.receipts.wire import decoded, encoded, parsed
from calib_serve.watch.checks import Check

__all__ = [
    "FATES", "LONGEST_ID", "MOST_IDS", "Binder", "Binding", "ReceiptIds", "UnboundReceipt", "hashed",
    "is_id", "packed", "receipt_of", "unpacked",
]  # fmt: skip

LONGEST_ID = 255
"""Characters of an id."""

MOST_IDS = 1_000_000
"""Ids that are held unless told otherwise."""


class Binding(NamedTuple):
    """An id, and the receipt of the prediction of ``model`` that it names from now on."""

    model: str
    id: str
    receipt: str


class UnboundReceipt(SignedReceipt):
    """A receipt that its prediction's id does not stand for: another one's, or the id could not be kept."""

    wanted: bool

    def __new__(cls, receipt: SignedReceipt) -> UnboundReceipt:
        """Of the receipt."""
        made = super().__new__(cls, receipt)
        made.wanted = receipt.wanted
        return made


class ReceiptIds(Protocol):
    """A bounded store of receipts by id; safe to use from threads and by several processes.

    Of each (model, id) the first binding stays. A binding leaves when labels of its time are not accepted
    any more, or when there are too many: then the oldest, which ``evicted`` counts since this object was
    made. All methods raise LedgerError where the store cannot be used.
    """

    evicted: int

    def bind(self, bindings: Sequence[Binding]) -> list[str]:
        """Keep those whose id is free; the receipt that each id stands for from now on, in order."""

    def find(self, ids: Sequence[str]) -> list[dict[str, str]]:
        """Of each id, its receipts by model; empty where it is not known."""

    def size(self) -> int:
        """About how many ids are held."""

    def trouble(self) -> str | None:
        """What is wrong with the store, if anything: a short reason for people."""

    def close(self) -> None:
        """Close it."""


def is_id(value: object) -> bool:
    r"""Whether this can be an id: a text of 1 to 255 characters that has UTF-8.

    >>> is_id("order-17"), is_id(""), is_id(17), is_id("\ud800")
    (True, False, False, False)
    """
    if not (isinstance(value, str) and 0 < len(value) <= LONGEST_ID):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def receipt_of(found: Mapping[str, str], *, id: str, model: object = None) -> str:
    """The receipt that a label means which names ``id``, and ``model`` if any.

    ``found``: the receipts of the id by model. Refused where there is none, or more than one.

    >>> receipt_of({"m": "AgA"}, id="order-17")
    'AgA'
    """
    if model is not None and not isinstance(model, str):
        raise Refused("malformed", "a model is called by a text")
    if model is None and len(found) > 1:
        raise Refused(
            "malformed", f'id {shown(id)} is of predictions of {len(found)} models; name one by "model"'
        )
    receipt = next(iter(found.values()), None) if model is None else found.get(model)
    if receipt is None:
        raise Refused(
            "unknown_id",
            f"no prediction of id {shown(id)} is known here: it has not come yet, came without its id, or is "
            "so old that ids of newer ones took its place",
        )
    return receipt


def hashed(id: str) -> bytes:
    """What is kept of an id: 16 bytes, as it may name a person."""
    return hashlib.blake2b(id.encode(), digest_size=16, person=b"prediction id").digest()


def packed(receipt: str) -> bytes:
    """A receipt as it is kept; Refused for what is none."""
    return b"".join(decoded(receipt))


def unpacked(kept: bytes) -> str:
    """The receipt behind ``packed``."""
    return encoded(bytes(kept))


Fate = Literal["bound", "conflict", "evicted", "failed"]

FATES: tuple[Fate, ...] = ("bound", "conflict", "evicted", "failed")
"""What became of an id: it names its prediction, names another one, gave way to newer ones, or was lost."""

_LATELY = 900.0  # seconds for which a label is told whose id had to give way


class Binder:
    """Binds ids in ``store`` and counts what becomes of them since this object was made.

    ``unknown``: how many labels were refused so far as their id is not known.
    """

    def __init__(self, store: ReceiptIds, *, unknown: Callable[[], int]) -> None:
        self.store, self._unknown = store, unknown
        self._counts: Counter[Fate] = Counter()
        self._seen, self._refused_at = (0, 0), -math.inf
        self.check = Check("ids", self._trouble)

    def bind(self, bindings: Sequence[Binding]) -> list[bool]:
        """Whether each id names this prediction from now on; LedgerError where that cannot be kept."""
        try:
            kept = self.store.bind(bindings)
        except BaseException:
            self._counts["failed"] += len(bindings)
            raise
        bound = [_same(one.receipt, other) for one, other in zip(bindings, kept, strict=True)]
        self._counts["bound"] += sum(bound)
        self._counts["conflict"] += len(bound) - sum(bound)
        return bound

    def fates(self) -> dict[Fate, int]:
        """How many ids had which fate."""
        return {fate: self._counts[fate] for fate in FATES} | {"evicted": self.store.evicted}

    def _trouble(self) -> str | None:
        seen = (self._unknown(), self.store.evicted)
        # An id that gives way is no trouble before a label names it.
        if seen[0] > self._seen[0] and seen[1]:
            self._refused_at = time.monotonic()
        self._seen = seen
        if time.monotonic() - self._refused_at < _LATELY:
            return (
                "labels came whose ids are not known, and ids had to give way to newer ones: raise "
                "--max-ids, or send receipts"
            )
        return self.store.trouble()


def _same(one: str, other: str) -> bool:
    """Whether two receipts are of one prediction: signed again by a newer key, it has the same nonce."""
    return one == other or parsed(decoded(one)[0]).nonce == parsed(decoded(other)[0]).nonce
