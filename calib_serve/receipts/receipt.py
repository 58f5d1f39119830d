"""What a served prediction is remembered by, and the label that comes back with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ["DAY", "GROUPS", "Label", "Receipt", "SignedReceipt", "UnwantedReceipt", "group_number"]

DAY = 86_400.0

GROUPS = 1 << 63
"""Groups are numbers below this one."""


@dataclass(frozen=True)
class Receipt:
    """One served prediction: ``time`` in seconds since 1970, ``confidence`` in [0, 1].

    ``inclusion``: the chance in (0, 1] with which its label was asked for, and ``wanted`` whether it was.
    ``group``: a number below 2**63 that predictions share whose outcomes depend on one another, 0 for none.
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


def group_number(name: str) -> int:
    """The number of a group's name, not 0; a hash, so that receipts do not carry the name.

    >>> group_number("") == 0 != group_number("patient 7") == group_number("patient 7")
    True
    """
    return (
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % GROUPS or 1
        if name
        else 0
    )
