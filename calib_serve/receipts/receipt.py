"""What a served prediction is remembered by, and the label that comes back with it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NamedTuple

from calib_serve.errors import InputError

__all__ = [
    "DAY", "GROUPS", "TAG", "Label", "Receipt", "Shadow", "SignedReceipt", "UnwantedReceipt", "group_number",
    "shadow_tag",
]  # fmt: skip

DAY = 86_400.0

GROUPS = 1 << 63
"""Groups are numbers below this one."""

TAG = 4
"""Bytes that name a shadow."""


class Shadow(NamedTuple):
    """What a shadow would have said of the same input: its class, its confidence in [0, 1], and its tag.

    Receipts keep the confidence in single precision. ``tag``: ``shadow_tag`` of the shadow's artifact.
    """

    predicted: int
    confidence: float
    tag: bytes


@dataclass(frozen=True)
class Receipt:
    """One served prediction: ``time`` in seconds since 1970, ``confidence`` in [0, 1].

    ``inclusion``: the chance in (0, 1] with which its label was asked for, and ``wanted`` whether it was.
    ``group``: a number below 2**63 that predictions share whose outcomes depend on one another, 0 for none.
    ``shadow``: what a shadow of the served artifact said of the same input, if one ran.
    """

    key_id: str
    model: str
    version: str
    time: float
    nonce: bytes
    predicted: int
    confidence: float
    segment: str = ""
    inclusion: float = 1.0
    wanted: bool = True
    group: int = 0
    shadow: Shadow | None = None


class SignedReceipt(str):
    """A receipt as it is sent, of a signed token; ``wanted``: whether its label is asked for."""

    __slots__ = ()
    wanted = True


class UnwantedReceipt(SignedReceipt):
    """One whose label is not asked for."""

    __slots__ = ()
    wanted = False


@dataclass(frozen=True)
class Label:
    """The true class of the prediction in ``receipt``."""

    receipt: Receipt
    label: int

    @property
    def correct(self) -> bool:
        """Whether the prediction was right."""
        return self.receipt.predicted == self.label


def shadow_tag(fingerprint: str) -> bytes:
    """The four bytes that name a shadow in receipts: the first of its artifact's fingerprint.

    InputError for what is no fingerprint.

    >>> shadow_tag("sha256:0a1b2c3d" + 56 * "0").hex()
    '0a1b2c3d'
    """
    digits = fingerprint.removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise InputError(f"a fingerprint is the SHA-256 of an artifact, 64 hex digits, got {fingerprint!r}")
    return bytes.fromhex(digits[: 2 * TAG])


def group_number(name: str) -> int:
    """The number of a group's name, not 0; a hash, so that receipts do not carry the name.

    >>> group_number("") == 0 != group_number("patient 7") == group_number("patient 7")
    True
    """
    if not name:
        return 0
    # Any text has a number: half of a character pair, which UTF-8 has not, as well.
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % GROUPS or 1
