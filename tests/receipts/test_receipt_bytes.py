"""The bytes of receipts, written out with ``struct`` and ``hmac``, and every limit of what they hold."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from calib_serve.core.errors import InputError, KeyringError, Refused
from calib_serve.core.files import GROUP_READS
from calib_serve.receipts import DAY, Keyring, Receipt, Shadow
from calib_serve.receipts.keyring import SKEW
from calib_serve.receipts.wire import GROUPS, Signer, group_number

KEY = bytes(range(32))
RING = Keyring("k1", {"k1": KEY})
NONCE = b"0123456789"
WHEN = 1_700_000_000.123


def spelled(body: bytes, key: bytes = KEY) -> str:
    """A token of any body under a right signature."""
    whole = body + hmac.new(key, b"calib-serve receipt\x00" + body, hashlib.sha256).digest()[:16]
    return base64.urlsafe_b64encode(whole).decode().rstrip("=")


def text(value: str) -> bytes:
    return bytes([len(value.encode())]) + value.encode()


def body(
    flags: int = 0, *, names: tuple[str, ...] = ("k1", "digits", "1.0", ""), version: int = 1,
    confidence: float = 0.75, more: bytes = b"",
) -> bytes:  # fmt: skip
    head = bytes([version, flags]) + b"".join(map(text, names))
    return head + struct.pack(">Q10sId", 1_700_000_000_123, NONCE, 7, confidence) + more


def token(**changes: Any) -> str:
    facts = {
        "model": "digits",
        "version": "1.0",
        "predicted": 7,
        "confidence": 0.75,
        "time": WHEN,
        "nonce": NONCE,
    }
    return RING.sign(**(facts | changes))


def read(raw: bytes, **options: Any) -> Receipt:
    return RING.verify(spelled(raw), **({"now": WHEN} | options))


SHADOW = Shadow(3, 0.5, b"tag!")
F64 = struct.Struct(">d")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, body()),
        ({"segment": "nord"}, body(names=("k1", "digits", "1.0", "nord"))),
        ({"inclusion": 0.25}, body(1, more=F64.pack(0.25))),
        ({"wanted": False}, body(2)),
        ({"group": 9}, body(4, more=struct.pack(">Q", 9))),
        ({"shadow": SHADOW}, body(8, more=struct.pack(">fI4s", 0.5, 3, b"tag!"))),
        (
            {"inclusion": 0.25, "wanted": False, "group": GROUPS - 1, "shadow": SHADOW},
            body(15, more=F64.pack(0.25) + struct.pack(">QfI4s", GROUPS - 1, 0.5, 3, b"tag!")),
        ),
    ],
)
def test_a_receipt_is_these_bytes_and_comes_back_from_them(changes: dict[str, Any], expected: bytes) -> None:
    assert token(**changes) == spelled(expected)
    assert token(**changes).wanted is changes.get("wanted", True)
    facts: dict[str, Any] = {
        "key_id": "k1", "model": "digits", "version": "1.0", "time": WHEN, "nonce": NONCE, "predicted": 7,
        "confidence": 0.75,
    }  # fmt: skip
    assert read(expected) == Receipt(**(facts | changes))


def test_a_signer_signs_what_has_nothing_beyond_its_prediction_as_a_keyring_does() -> None:
    signer = Signer("k1", KEY, model="digits", version="1.0")
    for _ in range(2):
        assert signer.sign(7, 0.75, NONCE, 1_700_000_000_123) == spelled(body())


def test_where_no_hash_can_be_made_nothing_is_refused_as_forged(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = token()

    def fails(*_: object) -> bytes:
        raise ValueError("could not allocate")

    monkeypatch.setattr(hmac, "digest", fails)
    with pytest.raises(KeyringError, match="is memory short"):
        RING.verify(signed, now=WHEN)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\x01", bytes([1, 0]), body(16), body(32), body(128), body(version=0), body(version=2),
        body(confidence=-0.1), body(confidence=1.1), body(confidence=math.nan), body()[:-1], body() + b"x",
        body(1, more=F64.pack(0.0)), body(1, more=F64.pack(1.5)), body(1, more=F64.pack(-0.5)),
        body(1, more=F64.pack(math.nan)), body(4, more=struct.pack(">Q", GROUPS)), body(1), body(4), body(8),
        body(8, more=struct.pack(">fI4s", 1.5, 3, b"tag!")),
        body(8, more=struct.pack(">fI4s", -0.5, 3, b"tag!")),
        body(names=("k1", "digits", "1.0")), body(names=("k1", "digits", "1.0", "", "")), body(0)[:30],
    ],
)  # fmt: skip
def test_what_is_no_receipt_is_malformed_even_under_a_right_signature(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read(raw)
    assert refused.value.reason == "malformed"


def test_limits_belong_to_what_a_receipt_holds() -> None:
    assert read(body(1, more=F64.pack(1.0))).inclusion == 1.0
    assert read(body(confidence=0.0)).confidence == 0.0
    assert read(body(confidence=1.0)).confidence == 1.0
    long = "é" * 127 + "x"  # 255 bytes
    assert read(body(names=("k1", long, long, long))).segment == long
    assert RING.verify(token(model=long, version=long, segment=long), now=WHEN).model == long
    for changes in (
        {"model": long + "x"}, {"version": ""}, {"model": ""}, {"segment": long + "x"}, {"confidence": 1.01},
        {"confidence": -0.01}, {"confidence": math.nan}, {"nonce": b"short"}, {"nonce": NONCE + b"x"},
        {"inclusion": 0.0}, {"inclusion": 1.01}, {"inclusion": math.nan}, {"group": -1}, {"group": GROUPS},
        {"predicted": -1}, {"predicted": 2**32}, {"time": -1.0}, {"shadow": Shadow(-1, 0.5, b"tag!")},
        {"shadow": Shadow(2**32, 0.5, b"tag!")}, {"shadow": Shadow(1, 1.01, b"tag!")},
        {"shadow": Shadow(1, -0.01, b"tag!")}, {"shadow": Shadow(1, 0.5, b"tag")},
    ):  # fmt: skip
        with pytest.raises(InputError):
            token(**changes)
    most = token(predicted=2**32 - 1, group=GROUPS - 1, inclusion=0.5, shadow=Shadow(2**32 - 1, 1.0, b"tag!"))
    assert RING.verify(most, now=WHEN).shadow == Shadow(2**32 - 1, 1.0, b"tag!")


def test_the_longest_receipt_is_read_and_a_longer_text_is_not_even_looked_at() -> None:
    long = "x" * 255
    ring = Keyring(long, {long: KEY})
    most = ring.sign(
        model=long, version=long, segment=long, predicted=1, confidence=0.5, time=WHEN, group=1,
        inclusion=0.5, shadow=SHADOW,
    )  # fmt: skip
    assert ring.verify(most, now=WHEN).segment == long
    longest = 4 * math.ceil((2 + 4 * 256 + 30 + 16 + 12 + 16) / 3)
    for length, told in ((longest, "base64url|not known|cut off"), (longest + 1, f"at most {longest} char")):
        with pytest.raises(Refused, match=told):
            RING.verify("A" * length, now=WHEN)
    for odd in (None, 5, b"abc", ["x"]):
        with pytest.raises(Refused, match="at most"):
            RING.verify(odd, now=WHEN)  # type: ignore[arg-type]


def test_times_are_refused_on_either_side_of_what_is_allowed() -> None:
    assert (SKEW, DAY) == (300.0, 86_400.0)
    kept = read(body()).time
    for now in (kept, kept + 30 * DAY, kept - SKEW):
        assert read(body(), now=now)
    with pytest.raises(Refused, match="is 2592001 s old; labels are accepted for 2592000 s") as expired:
        read(body(), now=kept + 30 * DAY + 1)
    assert (expired.value.reason, expired.value.ahead) == ("expired", 0.0)
    with pytest.raises(Refused, match="dated 301 s ahead") as ahead:
        read(body(), now=kept - SKEW - 1)
    assert ahead.value.reason == "dated_ahead"
    assert ahead.value.ahead == pytest.approx(SKEW + 1)
    with pytest.raises(Refused, match="accepted for 10 s"):
        read(body(), now=kept + 11, ttl=10)
    assert read(body(), now=kept + 10, ttl=10)


def test_a_group_is_a_number_of_its_name_alone() -> None:
    for name in ("patient 7", "ü", "x" * 1000):
        digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
        assert group_number(name) == digest % 2**63
        assert 0 < group_number(name) < GROUPS == 2**63
    assert group_number("") == 0


# Keyrings and their files


@pytest.mark.parametrize("group", [False, True], ids=["owner", "group reads"])
def test_of_all_modes_of_a_file_those_that_let_others_in_are_refused(
    group: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    RING.save(path)
    monkeypatch.delenv(GROUP_READS, raising=False)
    if group:
        monkeypatch.setenv(GROUP_READS, "1")
    for digits in itertools.product((4, 6, 7), range(8), range(8)):
        mode = int("".join(map(str, digits)), 8)
        path.chmod(mode)
        allowed = digits[2] == 0 and digits[1] in ((0, 4) if group else (0,))
        if allowed:
            assert Keyring.load(path) == RING
            continue
        with pytest.raises(KeyringError, match=f"mode {mode:o}; run: chmod 600"):
            Keyring.load(path)
    monkeypatch.setenv(GROUP_READS, "0")  # only 1 says so
    path.chmod(0o640)
    with pytest.raises(KeyringError, match="let the group read it"):
        Keyring.load(path)


@pytest.mark.parametrize("size", [32, 63, 64, 65, 300])
def test_a_key_of_any_length_signs_as_hmac_says(size: int) -> None:
    key = bytes(i % 251 for i in range(size))
    signed = Keyring("k1", {"k1": key}).sign(
        model="digits", version="1.0", predicted=7, confidence=0.75, time=WHEN, nonce=NONCE
    )
    assert signed == spelled(body(), key)
