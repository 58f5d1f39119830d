"""Receipts: whatever is done to one, it is refused with a reason; and what is genuine always counts."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib_serve.core.errors import Refused
from calib_serve.receipts import DAY, Keyring
from calib_serve.receipts.nonces import NONCE_BYTES

NOW = 1_700_000_000.0
RING = Keyring("k1", {"k1": bytes(range(32)), "k0": bytes(32)})
names = st.text(min_size=1, max_size=60).filter(
    lambda t: t.isprintable() and len(t.encode("utf-8", "replace")) < 256
)


def token(ring: Keyring = RING, **changes: Any) -> str:
    facts = {"model": "digits", "version": "1.0", "predicted": 7, "confidence": 0.9, "time": NOW}
    return ring.sign(**{**facts, **changes})


def reason(text: Any, ring: Keyring = RING, *, now: float = NOW, ttl: float = 30 * DAY) -> str:
    with pytest.raises(Refused) as refused:
        ring.verify(text, now=now, ttl=ttl)
    return refused.value.reason


@given(
    model=names,
    version=names,
    predicted=st.integers(0, 2**32 - 1),
    confidence=st.floats(0, 1),
    when=st.floats(0, 4e9),
)
def test_what_is_signed_comes_back_whole(
    model: str, version: str, predicted: int, confidence: float, when: float
) -> None:
    text = RING.sign(model=model, version=version, predicted=predicted, confidence=confidence, time=when)
    receipt = RING.verify(text, now=when)
    assert (receipt.model, receipt.version, receipt.predicted) == (model, version, predicted)
    assert receipt.confidence == confidence
    assert abs(receipt.time - when) <= 0.001
    assert text.isascii()
    assert not set(text) & set("+/=\r\n ,:")


def test_every_change_of_one_byte_is_refused() -> None:
    raw = base64.urlsafe_b64decode(token() + "=" * (-len(token()) % 4))
    seen = set()
    for position in range(len(raw)):
        for bit in range(8):
            forged = bytearray(raw)
            forged[position] ^= 1 << bit
            seen.add(reason(base64.urlsafe_b64encode(bytes(forged)).rstrip(b"=").decode()))
    assert seen == {"malformed", "unknown_key", "bad_signature"}


def test_every_change_of_one_character_is_refused() -> None:
    text = token()
    for position in range(len(text)):
        for letter in "Aa0_-=+/ \n\x00é":
            forged = text[:position] + letter + text[position + 1 :]
            if forged != text:
                assert reason(forged) in ("malformed", "unknown_key", "bad_signature")


def test_every_beginning_and_every_lengthening_is_refused() -> None:
    text = token()
    for end in range(len(text)):
        assert reason(text[:end]) in ("malformed", "unknown_key", "bad_signature")
    for more in ("A", "AA", "AAAA", "=", "==", "\n", " ", text):
        assert reason(text + more) in ("malformed", "bad_signature")


@pytest.mark.server
def test_nonces_differ_over_processes_that_share_a_seed() -> None:
    read, write = os.pipe()
    for _ in range(4):
        if os.fork() == 0:
            os.write(write, b"".join(RING.verify(token(), now=NOW).nonce for _ in range(50)))
            os._exit(0)
    for _ in range(4):
        os.wait()
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        raw = pipe.read()
    nonces = {raw[i : i + NONCE_BYTES] for i in range(0, len(raw), NONCE_BYTES)}
    assert len(nonces) == 200
