"""Receipts: signed records of served predictions, which clients cannot forge.

The client gets a receipt with each prediction and sends it back with the label, to any worker on any host. It
holds all that is needed to count the label, so no prediction has to be looked up.

On the wire, base64url without padding of::

    0x02 | flags | len key_id | key_id | len model | model | len version | version | len segment | segment
         | time ms u64 | nonce 10 bytes | predicted u32 | confidence f64
         | inclusion f64, with flag 1 | group u64, with flag 4 | HMAC-SHA256, first 16 bytes

Flag 2: no label is wanted. Lengths are one byte, integers and floats big-endian, names UTF-8. Receipts of
version 1, which have neither flags, segment, inclusion nor group and a nonce of 12 bytes, are still read.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import json
import secrets
import struct
import time as _time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from calib_serve.errors import InputError, KeyringError, Refused
from calib_serve.files import write_whole
from calib_serve.nonces import NONCE_BYTES, Nonces

__all__ = ["DAY", "VERSION", "Keyring", "Label", "Receipt", "SignedReceipt", "group_number"]

DAY = 86_400.0

VERSION = 2  # the first byte of every receipt
_MAC = 16
_KEY = 32
_DOMAIN = b"calib-serve receipt\x00"
_TAIL = struct.Struct(f">Q{NONCE_BYTES}sId")
_TAIL_1 = struct.Struct(">Q12sId")
_INCLUSION, _GROUP = struct.Struct(">d"), struct.Struct(">Q")
_GROUPS = 1 << 63
_SAMPLED, _UNWANTED, _GROUPED = 1, 2, 4
_LONGEST = base64.urlsafe_b64encode(bytes(2 + 4 * 256 + _TAIL.size + 16 + _MAC)).__len__()
_CLOCK_SKEW = 300.0  # how far a receipt's time may lie ahead of the verifier's clock, seconds


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
    """A receipt as it is sent; ``wanted``: whether its label is asked for."""

    wanted: bool

    def __new__(cls, token: str, *, wanted: bool = True) -> SignedReceipt:
        """Of a signed token."""
        made = super().__new__(cls, token)
        made.wanted = wanted
        return made


@dataclass(frozen=True)
class Label:
    """The true class of the prediction in ``receipt``."""

    receipt: Receipt
    label: int

    @property
    def correct(self) -> bool:
        """Whether the prediction was right."""
        return self.receipt.predicted == self.label


@dataclass(frozen=True, repr=False)
class Keyring:
    """Named signing keys: ``active`` signs, all of them verify.

    >>> ring = Keyring("k1", {"k1": bytes(32)})
    >>> token = ring.sign(model="digits", version="1.0", predicted=7, confidence=0.9, time=1000.0)
    >>> ring.verify(token, now=1001.0).predicted
    7
    """

    active: str
    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if self.active not in self.keys:
            raise KeyringError(f"the active key {self.active!r} is not in the keyring ({sorted(self.keys)})")
        for key_id, key in self.keys.items():
            if not 1 <= len(key_id.encode()) <= 255:
                raise KeyringError(f"key id {key_id!r} must be 1 to 255 bytes long")
            if len(key) < _KEY:
                raise KeyringError(f"key {key_id!r} has {len(key)} bytes; at least {_KEY} are needed")

    def __repr__(self) -> str:
        return f"Keyring(active={self.active!r}, keys={sorted(self.keys)})"  # never the secrets

    def sign(
        self,
        *,
        model: str,
        version: str,
        predicted: int,
        confidence: float,
        time: float | None = None,
        nonce: bytes | None = None,
        segment: str = "",
        inclusion: float = 1.0,
        wanted: bool = True,
        group: int = 0,
    ) -> SignedReceipt:
        """A signed receipt with these fields; ``time`` defaults to now, ``nonce`` to a new one."""
        if not 0 <= confidence <= 1:
            raise InputError(f"confidence must be in [0, 1], got {confidence}")
        if not 0 < inclusion <= 1:
            raise InputError(f"inclusion is a probability in (0, 1], got {inclusion}")
        if not 0 <= group < _GROUPS:
            raise InputError(f"group is a number in [0, 2**63), see group_number, got {group}")
        nonce = _NONCES.draw() if nonce is None else nonce
        if len(nonce) != NONCE_BYTES:
            raise InputError(f"nonce must be {NONCE_BYTES} bytes, got {len(nonce)}")
        when = _time.time() if time is None else time
        flags = _SAMPLED * (inclusion < 1) | _UNWANTED * (not wanted) | _GROUPED * (group > 0)
        body = _head(self.active, model, version, segment, flags)
        body += _TAIL.pack(round(when * 1000), nonce, predicted, confidence)
        body += _INCLUSION.pack(inclusion) if inclusion < 1 else b""
        body += _GROUP.pack(group) if group else b""
        return SignedReceipt(_encode(body + _mac(self.keys[self.active], body)), wanted=wanted)

    def verify(self, token: str, *, now: float | None = None, ttl: float = 30 * DAY) -> Receipt:
        """The receipt in ``token``; raises Refused with the reason.

        ``ttl``: how long labels are accepted, in seconds.
        """
        body, mac = _decode(token)
        receipt = _parse(body)
        key = self.keys.get(receipt.key_id)
        if key is None:
            raise Refused("unknown_key", f"no key {receipt.key_id!r} in the keyring; was it retired?")
        if not hmac.compare_digest(mac, _mac(key, body)):
            raise Refused("bad_signature", "the receipt's signature does not match its content")
        age = (_time.time() if now is None else now) - receipt.time
        if age > ttl:
            raise Refused("expired", f"the receipt is {age:.0f} s old; labels are accepted for {ttl:.0f} s")
        if age < -_CLOCK_SKEW:
            told = f"the receipt is dated {-age:.0f} s ahead; check the hosts' clocks"
            raise Refused("expired", told, ahead=-age)
        return receipt

    @classmethod
    def load(cls, path: str | Path) -> Keyring:
        """Read a keyring file; KeyringError for one that others may read or its group may write."""
        path = Path(path)
        try:
            mode = path.stat().st_mode
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise KeyringError(
                f"cannot read the keyring {path}: {error}; make one with: calib-serve keys new {path}"
            ) from error
        if mode & 0o027:
            raise KeyringError(f"{path} has mode {mode & 0o777:o}; run: chmod 600 {path}")
        try:
            content = json.loads(text)
            keys = {str(k): base64.b64decode(v, validate=True) for k, v in content["keys"].items()}
            return cls(str(content["active"]), keys)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise KeyringError(
                f'{path} is not a keyring; expected {{"active": ID, "keys": {{ID: base64}}}}'
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the keyring atomically, readable by its owner only."""
        path = Path(path)
        keys = {key_id: base64.b64encode(key).decode() for key_id, key in self.keys.items()}
        try:
            write_whole(path, json.dumps({"active": self.active, "keys": keys}, indent=2), mode=0o600)
        except OSError as error:
            raise KeyringError(f"cannot write the keyring {path}: {error}") from error

    @classmethod
    def new(cls, *, token_bytes: Callable[[int], bytes] = secrets.token_bytes) -> Keyring:
        """A keyring with one new random key."""
        key = token_bytes(_KEY)
        return cls(_name(key), {_name(key): key})

    def rotated(self, *, token_bytes: Callable[[int], bytes] = secrets.token_bytes) -> Keyring:
        """The same keys and a new, active one."""
        key = token_bytes(_KEY)
        return Keyring(_name(key), {**self.keys, _name(key): key})

    def without(self, key_id: str) -> Keyring:
        """The keyring without a retired key, whose receipts are then refused."""
        if key_id == self.active:
            raise KeyringError(f"{key_id!r} is the active key; rotate before retiring it")
        if key_id not in self.keys:
            raise KeyringError(f"no key {key_id!r} in the keyring ({sorted(self.keys)})")
        return Keyring(self.active, {k: v for k, v in self.keys.items() if k != key_id})


def _name(key: bytes) -> str:
    return hmac.digest(key, b"calib-serve key id", "sha256").hex()[:8]


def _mac(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, _DOMAIN + body, "sha256")[:_MAC]


@functools.lru_cache(maxsize=1024)
def _head(key_id: str, model: str, version: str, segment: str, flags: int) -> bytes:
    # Cached: a server signs for the same few models.
    names = _short(key_id, "key id") + _short(model, "model name") + _short(version, "model version")
    return bytes([VERSION, flags]) + names + _short(segment, "segment", least=0)


def _short(text: str, what: str, *, least: int = 1) -> bytes:
    raw = text.encode()
    if not least <= len(raw) <= 255:
        raise InputError(f"a {what} must be {least} to 255 bytes of UTF-8, got {len(raw)}")
    return bytes([len(raw)]) + raw


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(token: str) -> tuple[bytes, bytes]:
    """The signed body and its MAC."""
    if not isinstance(token, str) or len(token) > _LONGEST:
        raise Refused("malformed", f"a receipt is a string of at most {_LONGEST} characters")
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError) as error:
        raise Refused("malformed", "the receipt is not base64url") from error
    # base64 decoding ignores stray characters and bits; a receipt has one valid spelling.
    if _encode(raw) != token:
        raise Refused("malformed", "the receipt is not in canonical base64url")
    return raw[:-_MAC], raw[-_MAC:]


def _parse(body: bytes) -> Receipt:
    try:
        read = _READERS.get(body[0])
        if read is None:
            raise Refused("malformed", f"receipt version {body[0]} is not known (this is {VERSION})")
        receipt = read(body)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise Refused("malformed", "the receipt is cut off or not a receipt") from error
    # Also true for NaN.
    if not (0 <= receipt.confidence <= 1 and 0 < receipt.inclusion <= 1 and receipt.group < _GROUPS):
        raise Refused("malformed", "the receipt's confidence, inclusion or group is out of range")
    return receipt


def _read_1(body: bytes) -> Receipt:
    key_id, model, version = _names(body[: -_TAIL_1.size], 1, 3)
    milliseconds, nonce, predicted, confidence = _TAIL_1.unpack_from(body, len(body) - _TAIL_1.size)
    return Receipt(key_id, model, version, milliseconds / 1000, nonce, predicted, confidence)


def _read_2(body: bytes) -> Receipt:
    flags = body[1]
    sampled, grouped = flags & _SAMPLED, flags & _GROUPED
    after = _INCLUSION.size * bool(sampled) + _GROUP.size * bool(grouped)
    end = len(body) - after
    at = end - _TAIL.size
    if at < 2 or flags & ~(_SAMPLED | _UNWANTED | _GROUPED):
        raise IndexError("shorter than a receipt, or of unknown flags")
    key_id, model, version, segment = _names(body[:at], 2, 4)
    milliseconds, nonce, predicted, confidence = _TAIL.unpack_from(body, at)
    inclusion = _INCLUSION.unpack_from(body, end)[0] if sampled else 1.0
    group = _GROUP.unpack_from(body, len(body) - _GROUP.size)[0] if grouped else 0
    wanted = not flags & _UNWANTED
    return Receipt(
        key_id, model, version, milliseconds / 1000, nonce, predicted, confidence, segment, inclusion, wanted,
        group,
    )  # fmt: skip


_READERS = {1: _read_1, 2: _read_2}


@functools.lru_cache(maxsize=1024)
def _names(head: bytes, at: int, count: int) -> tuple[str, ...]:
    """Key id, model, version and segment; cached, as labels come for the same few models."""
    names = []
    for _ in range(count):
        end = at + 1 + head[at]
        names.append(head[at + 1 : end].decode())
        at = end
    if at != len(head):
        raise IndexError("names and tail do not meet")
    return tuple(names)


def group_number(name: str) -> int:
    """The number of a group's name, not 0; a hash, so that receipts do not carry the name.

    >>> group_number("") == 0 != group_number("patient 7") == group_number("patient 7")
    True
    """
    return (
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") % _GROUPS or 1
        if name
        else 0
    )


_NONCES = Nonces()
