"""A batch of served predictions: the name under which it may be sent again, and its receipts.

A batch that is sent again gets the receipts of the first time: each nonce is made of the batch's name, and
the chances of a label policy, which may move, are noted with it in the ledger.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

import numpy as np

from calib_serve.core.errors import LedgerError, Reason, Refused
from calib_serve.receipts.keyring import Keyring
from calib_serve.receipts.wire import DAY, Receipt, Shadow, SignedReceipt, group_number

if TYPE_CHECKING:
    from calib_serve.receipts.policy import LabelPolicy
    from calib_serve.receipts.sums import Version

OTHER = "other"
"""The slice that counts what has none of its own."""

LONGEST_SEGMENT = 63
"""Characters of a segment's name, which fit a receipt in any script."""

LONGEST_ID = 255
"""Characters of a user's own id of a prediction."""

BATCH_LIFE = 30 * DAY
"""Seconds for which a batch is known by its name: as long as anybody may send it again."""

_PER_EPOCH = 1 << 16  # nonces that differ in their last two bytes alone
_NUMBERED = re.compile(rb"([0-9a-f]{32})-([1-9][0-9]{0,15})")

Fate = Literal["bound", "conflict", "failed"]

FATES: tuple[Fate, ...] = ("bound", "conflict", "failed")
"""What became of an id: it names its prediction, names another one, or was lost."""


def is_segment(name: object) -> bool:
    """Whether a segment may have this name: a short text that any store can hold."""
    return isinstance(name, str) and len(name) <= LONGEST_SEGMENT and _has_utf8(name)


def is_id(value: object) -> bool:
    r"""Whether a text can be an id of a prediction: 1 to 255 characters that UTF-8 can encode.

    >>> is_id("order-17"), is_id(""), is_id(17), is_id("\ud800")
    (True, False, False, False)
    """
    return isinstance(value, str) and 0 < len(value) <= LONGEST_ID and _has_utf8(value)


def _has_utf8(text: str) -> bool:
    # Half of a character pair is a text in Python, and bytes nowhere.
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


@dataclass(frozen=True)
class ServedPrediction:
    """One served prediction, or one choice of a label, as ``count_choices`` has it, without logits.

    Args:
        model: Name of the model.
        version: Its version.
        predicted: Predicted class id.
        confidence: Top-1 confidence in [0, 1].
        segment: Segment of the traffic that it is counted in.
        group: Name that predictions share whose outcomes depend on one another, such as a patient's, a
            match's or a session's; only a hash of it is kept.
        logits: What the calibration was applied to (K,).
        id: The user's own name of the prediction, by which its label may come.
        shadow: What a shadow of the served artifact said of the same input.
    """

    model: str
    version: str
    predicted: int
    confidence: float
    segment: str = ""
    group: str = ""
    logits: tuple[float, ...] | None = None
    id: str = field(default="", repr=False)  # not part of what a batch that is sent again is known by
    shadow: Shadow | None = None


@dataclass(frozen=True)
class ServedSums:
    """Predictions of one class and segment, counted.

    Both ends lie in one bin of confidence, so that nothing is lost by adding up.

    Args:
        model: Name of the model.
        version: Its version.
        predicted: Predicted class id.
        segment: Segment of the traffic; empty: none.
        low: Lowest confidence, in [0, 1].
        high: Highest confidence, in [0, 1].
        count: Number of predictions.
        confidence: Sum of their confidences.
    """

    model: str
    version: str
    predicted: int
    segment: str
    low: float
    high: float
    count: int
    confidence: float

    @classmethod
    def of(cls, one: ServedPrediction) -> ServedSums:
        """The sums of a single prediction."""
        c = one.confidence
        return cls(one.model, one.version, one.predicted, one.segment, c, c, 1, c)


@dataclass(frozen=True)
class ServedReceipt:
    """A prediction that was signed elsewhere: its receipt holds its class and confidence.

    Args:
        receipt: Receipt as it was signed, in base64.
        id: The user's own name of the prediction; empty: none.
        logits: What the calibration was applied to (K,).
    """

    receipt: str
    id: str = ""
    logits: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Carried:
    """A prediction that came with its receipt.

    Args:
        item: Class, confidence and tags that the receipt holds.
        receipt: Its verified receipt.
        nonce: The receipt's nonce, ten bytes.
        time: When it was predicted, in seconds since 1970.
    """

    item: ServedPrediction
    receipt: SignedReceipt
    nonce: bytes
    time: float


Item = Union[ServedPrediction, ServedReceipt, Refused]
"""What a batch holds: what is to be signed, what was, and what is refused already."""


def carried(item: ServedReceipt, receipt: Receipt) -> Carried:
    """The prediction in a receipt, with the logits and id of the item that brought it.

    Args:
        item: Receipt as it came, with the caller's own logits and id.
        receipt: Its verified receipt.
    """
    served = ServedPrediction(
        receipt.model,
        receipt.version,
        receipt.predicted,
        receipt.confidence,
        receipt.segment,
        logits=item.logits,
        id=item.id,
    )
    return Carried(served, SignedReceipt(item.receipt), receipt.nonce, receipt.time)


class UnboundReceipt(SignedReceipt):
    """A receipt without its prediction's id, which names another prediction, or could not be stored.

    Args:
        receipt: The receipt as it was signed.
    """

    wanted: bool

    def __new__(cls, receipt: SignedReceipt) -> UnboundReceipt:
        """Make one from a receipt."""
        made = super().__new__(cls, receipt)
        made.wanted = receipt.wanted
        return made


class BatchKey(NamedTuple):
    """A batch by the name that its sender gave it.

    Args:
        name: Hash of the sender and the name.
        content: Hash of the items.
        time: When it was sent first, in seconds since 1970.
        expires: When it is forgotten, in seconds since 1970.
        note: Bytes that its sender is to know again when it is sent again.
        sender: Hash of who numbers its batches; empty: nobody.
        number: The batch's number, from 1; 0: none.
    """

    name: bytes
    content: bytes
    time: float
    expires: float
    note: bytes = b""
    sender: bytes = b""
    number: int = 0

    @classmethod
    def of(cls, name: bytes, content: bytes = b"", *, time: float, note: bytes = b"") -> BatchKey:
        """The key of a batch that is known for ``BATCH_LIFE``.

        Args:
            name: Hash of the sender and the name.
            content: Hash of the items.
            time: When it was sent first, in seconds since 1970.
            note: Bytes that its sender is to know again when it is sent again.
        """
        return cls(name, content, time, time + BATCH_LIFE, note)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one item of a batch.

    Args:
        accepted: Whether it was counted, or will be.
        reason: Why it was refused; None where it was not.
        message: The same in words.
        held: Whether it is counted only when its version is known here.
        corrected: Whether it took the place of a label that was counted before.
    """

    accepted: bool
    reason: Reason | None = None
    message: str = ""
    held: bool = False
    corrected: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        if self.accepted:
            return {"accepted": True} | {name: True for name in ("held", "corrected") if getattr(self, name)}
        return {"accepted": False, "reason": self.reason, "message": self.message}


def chances_of(items: Sequence[Item | Carried], policies: Mapping[Version, LabelPolicy]) -> list[float]:
    """The chance that each item's label is asked for; 1 without a policy.

    Args:
        items: Items of a batch.
        policies: Label policy of each model version that has one.
    """
    chances = [1.0] * len(items)
    for version, policy in policies.items():
        of = {
            i: item.confidence
            for i, item in enumerate(items)
            if isinstance(item, ServedPrediction) and (item.model, item.version) == version
        }
        for i, chance in zip(of, policy.chances(list(of.values())).tolist(), strict=True):
            chances[i] = chance
    return chances


def named_batch(
    once: bytes, items: Sequence[Item | ServedSums], chances: Sequence[float], *, source: str, time: float
) -> BatchKey:
    """The batch under its sender's own name, apart from other senders', with its chances noted.

    Args:
        once: Name that the sender gave it.
        items: Items of the batch.
        chances: Chance that each item's label is asked for.
        source: Name of the sender.
        time: When it came, in seconds since 1970.
    """
    # By source: what one client calls its batches must not stand for those of another. Reporters number
    # theirs under a name that nobody else has, whatever token they have by then. What is signed again here
    # needs the time and the chances of this one batch.
    found = _NUMBERED.fullmatch(once)
    numbered = None if any(isinstance(one, ServedPrediction) for one in items) else found
    name = _named(once if found else repr((source, once)).encode())
    content = hashlib.blake2b(repr(list(items)).encode(), digest_size=32).digest()
    # Where every label is wanted, as is usual, there is nothing to note.
    chosen = any(chance != 1 for chance in chances)
    note = zlib.compress(np.array(chances, "<f8").tobytes()) if chosen else b""
    key = BatchKey.of(name, content, time=time, note=note)
    return key._replace(sender=_named(numbered[1]), number=int(numbered[2])) if numbered else key


def _named(name: bytes) -> bytes:
    return hashlib.blake2b(name, digest_size=32, person=b"batch name").digest()


def noted_chances(batch: BatchKey, count: int) -> list[float]:
    """The chances of the items of a named batch, as noted when it first came.

    Args:
        batch: The batch, as the ledger has it.
        count: Number of items.

    Raises:
        LedgerError: Where the note is damaged.
    """
    if not batch.note:
        return [1.0] * count
    try:
        chances = np.frombuffer(zlib.decompress(batch.note), "<f8")
    except (zlib.error, ValueError) as error:
        raise LedgerError(f"what the ledger notes of this batch is damaged: {error}") from error
    if len(chances) != count:
        raise LedgerError(f"the ledger notes {len(chances)} chances of this batch of {count}: it is damaged")
    return [float(chance) for chance in chances]


def nonces_of(batch: str, places: Sequence[int]) -> list[bytes]:
    """Derive nonces of ten bytes, so that a retry gets the same ones.

    Args:
        batch: Hash of the batch.
        places: Index of each item in the batch.
    """
    named = hashlib.blake2b(batch.encode(), digest_size=32).digest()
    epochs = [
        hashlib.blake2b(named, digest_size=8, salt=part.to_bytes(8, "big")).digest()
        for part in range(max(places, default=0) // _PER_EPOCH + 1)
    ]
    return [epochs[i // _PER_EPOCH] + (i % _PER_EPOCH).to_bytes(2, "big") for i in places]


def signed(
    items: Sequence[ServedPrediction],
    nonces: Sequence[bytes],
    chances: Sequence[float],
    *,
    ring: Keyring,
    time: float,
) -> Iterator[SignedReceipt]:
    """Sign the predictions' receipts; chance and nonce alone decide whether a label is asked for.

    Args:
        items: Predictions.
        nonces: Nonce of each, ten bytes.
        chances: Chance that each one's label is asked for, above 0.
        ring: Keys.
        time: When they were predicted, in seconds since 1970.
    """
    for item, nonce, chance in zip(items, nonces, chances, strict=True):
        yield ring.sign(
            model=item.model,
            version=item.version,
            predicted=item.predicted,
            confidence=item.confidence,
            time=time,
            nonce=nonce,
            segment=item.segment,
            inclusion=chance,
            wanted=chance == 1 or _uniform(nonce) < chance,
            group=group_number(item.group),
            shadow=item.shadow,
        )


def _uniform(nonce: bytes) -> float:
    """A number in [0, 1) that the nonce alone determines."""
    return int.from_bytes(hashlib.blake2b(nonce, digest_size=6).digest(), "big") / 2.0**48
