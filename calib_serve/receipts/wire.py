"""A receipt: the signed record of a served prediction, as fields, bytes and a token.

On the wire, base64url without padding of::

    0x01 | flags | len key_id | key_id | len model | model | len version | version | len segment | segment
         | time ms u64 | nonce 10 bytes | predicted u32 | confidence f64
         | inclusion f64, with flag 1 | group u64, with flag 4
         | shadow's confidence f32, its predicted u32, its tag 4 bytes, with flag 8
         | HMAC-SHA256, first 16 bytes

Flag 2: no label is wanted. Lengths are one byte, integers and floats big-endian, names UTF-8.
"""

from __future__ import annotations

import binascii
import functools
import hashlib
import re
import struct
from typing import NamedTuple

from calib_serve.core.errors import InputError, KeyringError, Refused
from calib_serve.receipts.nonces import NONCE_BYTES

DAY = 86_400.0
"""Seconds of a day."""

GROUPS = 1 << 63
"""Groups are numbers below this one."""

TAG = 4
"""Bytes that name a shadow."""

VERSION = 1
"""The first byte of every receipt."""

MAC = 16
"""Bytes of a signature."""

DOMAIN = b"calib-serve receipt\x00"
"""What is signed before each receipt, so that a signature of it is one of nothing else."""

_TAIL = struct.Struct(f">Q{NONCE_BYTES}sId")
_INCLUSION, _GROUP = struct.Struct(">d"), struct.Struct(">Q")
_SHADOW = struct.Struct(f">fI{TAG}s")
_SAMPLED, _UNWANTED, _GROUPED, _SHADOWED = 1, 2, 4, 8
_base64 = binascii.b2a_base64
_URL_SAFE, _STANDARD = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")
_BLOCK = hashlib.sha256().block_size
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_LONGEST = len(_base64(bytes(2 + 4 * 256 + _TAIL.size + 16 + _SHADOW.size + MAC), newline=False))


class Shadow(NamedTuple):
    """Prediction of a shadow for the same input.

    Args:
        predicted: Its class id.
        confidence: In [0, 1]; receipts keep it in single precision.
        tag: ``shadow_tag`` of the shadow's artifact.
    """

    predicted: int
    confidence: float
    tag: bytes


class Receipt(NamedTuple):
    """One served prediction.

    Args:
        key_id: Id of the key that signed it.
        model: Name of the model.
        version: Its version.
        time: Seconds since 1970.
        nonce: 10 bytes that no other receipt has.
        predicted: Predicted class id.
        confidence: Confidence in [0, 1].
        segment: Segment of the traffic that it is counted in.
        inclusion: Chance in (0, 1] with which its label was asked for.
        wanted: Whether its label was asked for.
        group: Number below 2**63 that predictions share whose outcomes depend on one another; 0 for none.
        shadow: Prediction of a shadow of the served artifact for the same input, if one ran.
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
    """A receipt as it is sent: a signed token; ``wanted``: whether its label is asked for."""

    __slots__ = ()
    wanted = True


class UnwantedReceipt(SignedReceipt):
    """A signed receipt whose label is not asked for."""

    __slots__ = ()
    wanted = False


class Label(NamedTuple):
    """The true class of a served prediction.

    Args:
        receipt: Verified receipt of the prediction.
        label: Class id.
    """

    receipt: Receipt
    label: int

    @property
    def correct(self) -> bool:
        """Tell whether the prediction was right."""
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
    # Any text has a number, also one with half a surrogate pair, which UTF-8 cannot encode.
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % GROUPS or 1


class Mark(NamedTuple):
    """Fields of a receipt beyond its prediction: the last five of a ``Receipt``."""

    segment: str = ""
    inclusion: float = 1.0
    wanted: bool = True
    group: int = 0
    shadow: Shadow | None = None


PLAIN = Mark()


def _packed_shadow(shadow: Shadow) -> bytes:
    predicted, confidence, tag = shadow
    if not 0 <= confidence <= 1:  # also NaN
        raise InputError(f"a shadow's confidence must be in [0, 1], got {confidence}")
    if len(tag) != TAG:
        raise InputError(f"a shadow's tag is {TAG} bytes, see shadow_tag, got {len(tag)}")
    try:
        return _SHADOW.pack(confidence, predicted, tag)
    except struct.error as error:
        raise InputError(f"no receipt holds a shadow's class {predicted}") from error


def _short(text: str, what: str, *, least: int = 1) -> bytes:
    raw = text.encode()
    if not least <= len(raw) <= 255:
        raise InputError(f"a {what} must be {least} to 255 bytes of UTF-8, got {len(raw)}")
    return bytes([len(raw)]) + raw


def encoded(raw: bytes) -> str:
    """Encode as base64url, without padding."""
    return _base64(raw).translate(_URL_SAFE, b"=\n").decode()


def decoded(token: str) -> tuple[bytes, bytes]:
    """Decode a token into its signed body and MAC; Refused for a text that is no receipt."""
    if not isinstance(token, str) or len(token) > _LONGEST:
        raise Refused("malformed", f"a receipt is a string of at most {_LONGEST} characters")
    try:
        raw = binascii.a2b_base64(token.encode("ascii").translate(_STANDARD) + b"==")
    except (binascii.Error, ValueError) as error:
        raise Refused("malformed", "the receipt is not base64url") from error
    # base64 decoding ignores stray characters and bits; a receipt has one valid spelling.
    if encoded(raw) != token:
        raise Refused("malformed", "the receipt is not in canonical base64url")
    return raw[:-MAC], raw[-MAC:]


def parsed(body: bytes) -> Receipt:
    """Parse a signed body; Refused for bytes that are no receipt, or of another version."""
    try:
        if body[0] != VERSION:
            raise Refused("malformed", f"receipt version {body[0]} is not known (this is {VERSION})")
        receipt = _read(body)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise Refused("malformed", "the receipt is cut off or not a receipt") from error
    # Also true for NaN.
    if not (0 <= receipt.confidence <= 1 and 0 < receipt.inclusion <= 1 and receipt.group < GROUPS):
        raise Refused("malformed", "the receipt's confidence, inclusion or group is out of range")
    if receipt.shadow is not None and not 0 <= receipt.shadow.confidence <= 1:
        raise Refused("malformed", "the confidence of the receipt's shadow is out of range")
    return receipt


def nonce_of(token: str) -> bytes:
    """A receipt's nonce, with its signature unchecked; Refused for a text that is no receipt."""
    return parsed(decoded(token)[0]).nonce


def _read(body: bytes) -> Receipt:
    flags = body[1]
    sampled, grouped, shadowed = flags & _SAMPLED, flags & _GROUPED, flags & _SHADOWED
    after = _INCLUSION.size * bool(sampled) + _GROUP.size * bool(grouped) + _SHADOW.size * bool(shadowed)
    end = len(body) - after
    at = end - _TAIL.size
    if at < 2 or flags & ~(_SAMPLED | _UNWANTED | _GROUPED | _SHADOWED):
        raise IndexError("shorter than a receipt, or of unknown flags")
    key_id, model, version, segment = _names(body[:at])
    milliseconds, nonce, predicted, confidence = _TAIL.unpack_from(body, at)
    inclusion = _INCLUSION.unpack_from(body, end)[0] if sampled else 1.0
    group = _GROUP.unpack_from(body, end + _INCLUSION.size * bool(sampled))[0] if grouped else 0
    shadow = None
    if shadowed:
        beside, instead, tag = _SHADOW.unpack_from(body, len(body) - _SHADOW.size)
        shadow = Shadow(instead, beside, tag)
    wanted = not flags & _UNWANTED
    return Receipt(
        key_id, model, version, milliseconds / 1000, nonce, predicted, confidence, segment, inclusion, wanted,
        group, shadow,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _names(head: bytes) -> tuple[str, ...]:
    """Key id, model, version and segment; cached, as labels come for the same few models."""
    names, at = [], 2  # behind version and flags
    for _ in range(4):
        end = at + 1 + head[at]
        names.append(head[at + 1 : end].decode())
        at = end
    if at != len(head):
        raise IndexError("names and tail do not meet")
    return tuple(names)


class Signer:
    """Signs for ``model`` and ``version`` with ``key``; safe to use from threads.

    InputError for names that a receipt cannot hold.
    """

    def __init__(self, key_id: str, key: bytes, *, model: str, version: str) -> None:
        self._names = (
            _short(key_id, "key id") + _short(model, "model name") + _short(version, "model version")
        )
        self._heads: dict[tuple[int, str], bytes] = {}
        self._plain = self._head(0, ""), b"", SignedReceipt
        try:
            # HMAC (RFC 2104) as its two hashes, each begun with the key and copied for each receipt: hashing
            # the key anew takes as long as hashing the receipt, and copying hmac's own object as one of both.
            block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
            self._inner = hashlib.sha256(block.translate(_INNER) + DOMAIN)
            self._outer = hashlib.sha256(block.translate(_OUTER))
        except ValueError as error:  # so OpenSSL says that it could not allocate
            raise no_memory(error) from error

    def sign(
        self, predicted: int, confidence: float, nonce: bytes, milliseconds: int, mark: Mark = PLAIN
    ) -> SignedReceipt:
        """Sign a receipt of a prediction made at a time since 1970; InputError for what none can hold.

        ``nonce``: of ``NONCE_BYTES``, which is not looked at here.
        """
        if not 0 <= confidence <= 1:  # also NaN
            raise InputError(f"confidence must be in [0, 1], got {confidence}")
        head, more, kind = self._plain if mark is PLAIN else self._around(*mark)
        try:
            body = head + _TAIL.pack(milliseconds, nonce, predicted, confidence) + more
            hashed, mac = self._inner.copy(), self._outer.copy()
            hashed.update(body)
            mac.update(hashed.digest())
        except struct.error as error:
            raise InputError(f"no receipt holds class {predicted} at {milliseconds} ms") from error
        except ValueError as error:
            raise no_memory(error) from error
        # As ``encoded``, without a call: this runs for every prediction that is served.
        return kind(_base64(body + mac.digest()[:MAC]).translate(_URL_SAFE, b"=\n").decode())

    def _around(
        self, segment: str, inclusion: float, wanted: bool, group: int, shadow: Shadow | None
    ) -> tuple[bytes, bytes, type[SignedReceipt]]:
        if not 0 < inclusion <= 1:
            raise InputError(f"inclusion is a probability in (0, 1], got {inclusion}")
        if not 0 <= group < GROUPS:
            raise InputError(f"group is a number in [0, 2**63), see group_number, got {group}")
        flags = _SAMPLED * (inclusion < 1) | _UNWANTED * (not wanted) | _GROUPED * (group > 0)
        flags |= _SHADOWED * (shadow is not None)
        head = self._heads.get((flags, segment)) or self._head(flags, segment)
        more = _INCLUSION.pack(inclusion) if inclusion < 1 else b""
        if group:
            more += _GROUP.pack(group)
        if shadow is not None:
            more += _packed_shadow(shadow)
        return head, more, SignedReceipt if wanted else UnwantedReceipt

    def _head(self, flags: int, segment: str) -> bytes:
        if len(self._heads) >= 1024:  # a server signs for the same few segments
            self._heads.clear()  # segments may be anybody's texts
        head = bytes([VERSION, flags]) + self._names + _short(segment, "segment", least=0)
        self._heads[flags, segment] = head
        return head


def no_memory(error: Exception) -> KeyringError:
    """The error to raise where an HMAC could not be computed."""
    return KeyringError(f"nothing can be signed or verified: {error}; is memory short?")
