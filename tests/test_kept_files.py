"""What earlier versions wrote is still read: files of every schema, kept as they were written.

They are never made again. A new schema or receipt format adds files of its own beside them, and these
tests ask for one of each number, so that raising a number without reading the older ones fails here.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from calib_serve import Keyring, receipts
from calib_serve.errors import Refused

DATA = Path(__file__).parent / "kept"


def test_a_receipt_with_a_shadow_is_verified() -> None:
    kept = json.loads((DATA / "receipt-version-2-shadow.json").read_text())
    ring = Keyring("k1", {"k1": base64.b64decode(kept["key"])})
    receipt = ring.verify(kept["token"], now=1_790_000_060.0)
    assert (receipt.confidence, receipt.segment, receipt.inclusion, receipt.group) == (
        0.875,
        "north",
        0.25,
        7,
    )
    assert receipt.shadow == receipts.Shadow(6, 0.6875, bytes.fromhex("0a1b2c3d"))


@pytest.mark.parametrize("version", range(1, receipts.VERSION + 1))
def test_a_receipt_of_every_version_is_verified(version: int) -> None:
    kept = json.loads((DATA / f"receipt-version-{version}.json").read_text())
    ring = Keyring("k1", {"k1": base64.b64decode(kept["key"])})
    receipt = ring.verify(kept["token"], now=1_790_000_060.0)
    assert (receipt.model, receipt.version, receipt.predicted) == ("digits", "1.0", 7)
    assert (receipt.confidence, receipt.time) == (0.875, 1_790_000_000.0)
    assert receipt.nonce == bytes(range(12 if version == 1 else 10))
    more = ("", 1.0, True, 0) if version == 1 else ("north", 0.25, False, 7)
    assert (receipt.segment, receipt.inclusion, receipt.wanted, receipt.group) == more
    assert receipt.shadow is None
    with pytest.raises(Refused, match="labels are accepted"):
        ring.verify(kept["token"], now=1_790_000_000.0 + 31 * receipts.DAY)
