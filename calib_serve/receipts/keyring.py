"""Keyrings: one key signs receipts, and all keys verify them.

They are kept in a file of JSON that its owner alone may use::

    {"format": 1, "active": ID, "keys": {ID: base64}, "times": {ID: {"demoted": 1.7e9}}}
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import secrets
import time as _time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from calib_serve.core.errors import InputError, KeyringError, Refused, of_a_newer
from calib_serve.core.files import FollowedFile, lock, private_folder, read_private, write_whole
from calib_serve.core.text import when
from calib_serve.receipts.nonces import NONCE_BYTES, draw_nonces
from calib_serve.receipts.wire import (
    DAY,
    DOMAIN,
    MAC,
    Mark,
    Receipt,
    Shadow,
    SignedReceipt,
    Signer,
    decoded,
    no_memory,
    parsed,
)

SKEW = 300.0
"""How far a receipt's time may lie ahead of the verifier's clock, seconds."""

_KEY = 32  # bytes
_FORMAT = 1


@dataclass(frozen=True, repr=False)
class Keyring:
    """Named signing keys: one signs, all of them verify.

    Args:
        active: Id of the key that signs.
        keys: Secret of each key by its id, at least 32 bytes.
        demoted: When keys ceased to sign, in seconds since 1970, where that is known.

    >>> ring = Keyring("k1", {"k1": bytes(32)})
    >>> token = ring.sign(model="digits", version="1.0", predicted=7, confidence=0.9, time=1000.0)
    >>> ring.verify(token, now=1001.0).predicted
    7
    """

    active: str
    keys: Mapping[str, bytes]
    demoted: Mapping[str, float] = field(default_factory=dict)
    _signers: dict[tuple[str, str], Signer] = field(
        default_factory=dict, init=False, compare=False, repr=False, hash=False
    )

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

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the keyring's fields, for copies and other processes."""
        return Keyring, (self.active, dict(self.keys), dict(self.demoted))

    def current(self) -> Keyring:
        """Return the keyring itself, as a ``LiveKeyring`` returns the one in its file."""
        return self

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
        shadow: Shadow | None = None,
    ) -> SignedReceipt:
        """Sign a receipt with these fields.

        Args:
            model: Name of the model.
            version: Its version.
            predicted: Predicted class id.
            confidence: Confidence in [0, 1].
            time: Seconds since 1970; now by default.
            nonce: 10 bytes that no other receipt has; drawn by default.
            segment: Segment of the traffic that it is counted in.
            inclusion: Chance in (0, 1] with which its label was asked for.
            wanted: Whether its label is asked for.
            group: Number below 2**63 that dependent predictions share; 0 for none.
            shadow: Prediction of a shadow for the same input.
        """
        if nonce is not None and len(nonce) != NONCE_BYTES:
            raise InputError(f"nonce must be {NONCE_BYTES} bytes, got {len(nonce)}")
        return self.signer(model, version).sign(
            predicted,
            confidence,
            draw_nonces(1)[0] if nonce is None else nonce,
            round(1000 * (_time.time() if time is None else time)),
            Mark(segment, inclusion, wanted, group, shadow),
        )

    def signer(self, model: str, version: str) -> Signer:
        """Return the signer of a model version, with the active key.

        Args:
            model: Name of the model.
            version: Its version.
        """
        found = self._signers.get((model, version))
        if found is None:
            if len(self._signers) >= 1024:  # model versions
                self._signers.clear()
            found = Signer(self.active, self.keys[self.active], model=model, version=version)
            self._signers[model, version] = found
        return found

    def verify(self, token: str, *, now: float | None = None, ttl: float = 30 * DAY) -> Receipt:
        """Verify a receipt and return it.

        Args:
            token: Receipt as it was sent.
            now: Seconds since 1970; the present by default.
            ttl: Seconds after its time for which labels are accepted; 30 days by default.

        Raises:
            Refused: Where it is not ours, too old or dated ahead; ``reason`` says which.
            KeyringError: Where it could not be verified, as memory is short.
        """
        body, mac = decoded(token)
        receipt = parsed(body)
        # The signature first: a forged token learns nothing of ages and clocks.
        key = self.keys.get(receipt.key_id)
        if key is None:
            raise Refused("unknown_key", f"no key {receipt.key_id!r} in the keyring; was it retired?")
        if not hmac.compare_digest(mac, _mac(key, body)):
            raise Refused("bad_signature", "the receipt's signature does not match its content")
        age = (_time.time() if now is None else now) - receipt.time
        if age > ttl:
            raise Refused("expired", f"the receipt is {age:.0f} s old; labels are accepted for {ttl:.0f} s")
        if age < -SKEW:
            told = f"the receipt is dated {-age:.0f} s ahead; check the hosts' clocks"
            raise Refused("dated_ahead", told, ahead=-age)
        return receipt

    @classmethod
    def load(cls, path: str | Path) -> Keyring:
        """Read a keyring file; KeyringError for one that others may use, or that is no keyring."""
        try:
            text = read_private(Path(path)).decode()
        except (OSError, UnicodeDecodeError) as error:
            gone = (
                "; put its copy back: with other keys, labels of what it signed are refused as unknown_key. "
                f"Where nothing was signed yet: calib-serve keys new {path}"
            )
            more = gone if isinstance(error, FileNotFoundError) else ""
            raise KeyringError(f"cannot read the keyring {path}: {error}{more}") from error
        try:
            content = json.loads(text)
            kept = content["format"]
            if isinstance(kept, int) and kept > _FORMAT:
                raise KeyringError(f"{path} is a keyring {of_a_newer(kept, reads=_FORMAT)}")
            keys = {str(k): base64.b64decode(v, validate=True) for k, v in content["keys"].items()}
            times = {str(k): known.get("demoted") for k, known in content.get("times", {}).items()}
            demoted = {k: _era(float(at)) for k, at in times.items() if at is not None}
            if kept == _FORMAT:
                return cls(str(content["active"]), keys, demoted)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            wanted = f'{{"format": {_FORMAT}, "active": ID, "keys": {{ID: base64}}}}'
            raise KeyringError(f"{path} is not a keyring; expected {wanted}") from error
        raise KeyringError(f"{path} is a keyring of format {kept!r}; this program reads {_FORMAT}")

    def save(self, path: str | Path) -> None:
        """Write the keyring atomically, readable by its owner only; to change one there is ``edit``."""
        content = {
            "format": _FORMAT,
            "active": self.active,
            "keys": {key_id: base64.b64encode(key).decode() for key_id, key in self.keys.items()},
            "times": {key_id: {"demoted": at} for key_id, at in self.demoted.items()},
        }
        try:
            write_whole(Path(path), json.dumps(content, indent=2), mode=0o600)
        except OSError as error:
            raise KeyringError(f"cannot write the keyring {path}: {error}") from error

    @classmethod
    def create(cls, path: str | Path) -> Keyring:
        """Write a keyring with a first key; KeyringError where there is a file."""
        path = Path(path)
        with _lock(path, make=True):
            if path.exists():
                raise KeyringError(f"{path} exists and its receipts would be lost; use: calib-serve keys add")
            ring = cls.new()
            ring.save(path)
        return ring

    @classmethod
    def edit(cls, path: str | Path, change: Callable[[Keyring], Keyring]) -> Keyring:
        """Change the keyring in a file under a lock, so that no other change is lost.

        Args:
            path: File of the keyring.
            change: Function from the keyring to its replacement.
        """
        cls.load(path)  # what is no keyring is not locked either
        with _lock(Path(path)):
            ring = change(cls.load(path))
            ring.save(path)
        return ring

    @classmethod
    def new(cls) -> Keyring:
        """Make a keyring with one new random key."""
        key = secrets.token_bytes(_KEY)
        return cls(_name(key), {_name(key): key})

    def extended(self, other: Keyring | None = None) -> Keyring:
        """Add the keys of another keyring, or one new key, which verify and do not sign; they are the last.

        KeyringError where one id has two secrets.
        """
        keys = dict(self.keys)
        for key_id, key in (Keyring.new() if other is None else other).keys.items():
            if not hmac.compare_digest(keys.setdefault(key_id, key), key):
                raise KeyringError(f"key {key_id!r} is another one in each keyring; retire it in one of them")
        return Keyring(self.active, keys, self.demoted)

    def promoted(self, key_id: str, *, clock: Callable[[], float] = _time.time) -> Keyring:
        """Let a key sign from now on.

        Args:
            key_id: Id of the key.
            clock: Time in seconds since 1970.
        """
        self._check_known(key_id)
        if key_id == self.active:
            return self
        return Keyring(key_id, self.keys, {**self.demoted, self.active: clock()})

    def rotated(self, *, clock: Callable[[], float] = _time.time) -> Keyring:
        """Add a new key, which signs from now on; ``clock``: seconds since 1970."""
        ring = self.extended()
        return ring.promoted([*ring.keys][-1], clock=clock)

    def unneeded_from(self, key_id: str, *, ttl: float = 30 * DAY) -> float | None:
        """Return when the last receipt of a key expires, seconds since 1970; None where that is not known.

        A host whose clock is ahead dates receipts ahead, by ``SKEW`` at most, or they are refused.

        Args:
            key_id: Id of the key.
            ttl: Seconds for which labels are accepted; 30 days by default.
        """
        demoted = self.demoted.get(key_id)
        return None if key_id == self.active or demoted is None else demoted + ttl + SKEW

    def retired(
        self,
        key_id: str,
        *,
        ttl: float = 30 * DAY,
        early: bool = False,
        clock: Callable[[], float] = _time.time,
    ) -> Keyring:
        """Remove a key that nobody needs; its receipts are refused from then on.

        Args:
            key_id: Id of a key other than the active one.
            ttl: Seconds for which labels are accepted; 30 days by default.
            early: Whether it goes though its receipts may be out.
            clock: Time in seconds since 1970.

        Raises:
            KeyringError: While its receipts may be out, and for the active key.
        """
        self._check_known(key_id)
        if key_id == self.active:
            raise KeyringError(f"{key_id!r} is the active key; promote another before retiring it")
        until = self.unneeded_from(key_id, ttl=ttl)
        if until is None and not early:
            raise KeyringError(
                f"it is not known when {key_id!r} last signed: it was never promoted here, and may sign on "
                "another host; use --early where no label of its receipts is awaited"
            )
        if until is not None and not early and clock() <= until:
            raise KeyringError(
                f"labels for receipts of {key_id!r} are accepted until {when(until + 60)}; retire it then, "
                "or use --early to refuse them"
            )
        keys = {k: v for k, v in self.keys.items() if k != key_id}
        return Keyring(self.active, keys, {k: v for k, v in self.demoted.items() if k != key_id})

    def _check_known(self, key_id: str) -> None:
        if key_id not in self.keys:
            raise KeyringError(f"no key {key_id!r} in the keyring ({sorted(self.keys)})")


@contextlib.contextmanager
def _lock(path: Path, *, make: bool = False) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            if make:
                private_folder(path.parent)
            stack.enter_context(lock(path))
        except OSError as error:
            raise KeyringError(f"cannot write the keyring {path}: {error}") from error
        yield


def _era(seconds: float) -> float:
    # Until the year 10000, beyond which no calendar goes.
    if not 0 <= seconds < 253_402_300_800.0:
        raise ValueError("a time is none of this era")
    return seconds


def _name(key: bytes) -> str:
    return _hmac(key, b"calib-serve key id").hex()[:8]


def _mac(key: bytes, body: bytes) -> bytes:
    return _hmac(key, DOMAIN + body)[:MAC]


def _hmac(key: bytes, message: bytes) -> bytes:
    try:
        return hmac.digest(key, message, "sha256")
    except ValueError as error:  # so OpenSSL says that it could not allocate
        raise no_memory(error) from error


class LiveKeyring(FollowedFile[Keyring]):
    """The keyring in a file, read again when it has changed; take ``current`` once for a batch.

    Args:
        path: File of the keyring, in JSON.
        clock: Seconds that never go back.
        failed: Called where the changed file cannot be read; the ring stays as it was.

    Raises:
        KeyringError: Where the file cannot be read to begin with.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = _time.monotonic,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(path, Keyring.load, clock=clock, failed=failed)

    def verify(self, token: str, *, now: float | None = None, ttl: float = 30 * DAY) -> Receipt:
        """Verify a receipt; for an unknown key the file is read again first.

        Args:
            token: Receipt as it was sent.
            now: Seconds since 1970; None: the clock's.
            ttl: Longest age of a receipt, in seconds.

        Raises:
            Refused: As ``Keyring.verify``.
        """
        ring = self.current()
        try:
            return ring.verify(token, now=now, ttl=ttl)
        except Refused as refusal:
            if refusal.reason != "unknown_key" or (changed := self.changed()) is ring:
                raise
        return changed.verify(token, now=now, ttl=ttl)
