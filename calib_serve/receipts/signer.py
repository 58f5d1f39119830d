"""Signs the receipts of one model version with one key: what is the same for all of them is made once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import repeat

from calib_serve.errors import KeyringError
from calib_serve.receipts.receipt import SignedReceipt, UnwantedReceipt
from calib_serve.receipts.wire import DOMAIN, MAC, PLAIN, Mark, Packer, encoded

__all__ = ["Signer", "no_memory"]

_BLOCK = 64  # bytes of a block of SHA-256


class Signer:
    """Signs for ``model`` and ``version`` with ``key``; safe to use from threads.

    Its HMAC (RFC 2104) goes on from the states of SHA-256 after the padded key, in less than half the time of
    one that begins with the key.
    """

    def __init__(self, key_id: str, key: bytes, *, model: str, version: str) -> None:
        self._packer = Packer(key_id, model, version)
        try:
            padded = (key if len(key) <= _BLOCK else hashlib.sha256(key).digest()).ljust(_BLOCK, b"\0")
            self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + DOMAIN)
            self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))
        except ValueError as error:  # so OpenSSL says that it could not allocate
            raise no_memory(error) from error

    def sign(
        self,
        predictions: Sequence[tuple[int, float]],
        nonces: Sequence[bytes],
        *,
        time: float,
        marks: Sequence[Mark] = (),
    ) -> list[SignedReceipt]:
        """A receipt for each (predicted class, confidence) of ``predictions``, made at ``time``.

        ``nonces`` and ``marks``: one each; without marks every one is ``PLAIN``. InputError for what a
        receipt cannot hold.
        """
        body_of, inner, outer = self._packer.body, self._inner, self._outer
        signed: list[SignedReceipt] = []
        milliseconds = round(time * 1000)
        each = zip(predictions, nonces, marks or repeat(PLAIN))  # noqa: B905 - a repeat goes on
        for (predicted, confidence), nonce, mark in each:
            body = body_of(milliseconds, nonce, predicted, confidence, mark)
            try:
                first, last = inner.copy(), outer.copy()
            except ValueError as error:
                raise no_memory(error) from error
            first.update(body)
            last.update(first.digest())
            signed.append(SignedReceipt(encoded(body + last.digest()[:MAC])))
        if not marks:
            return signed
        return [one if mark.wanted else UnwantedReceipt(one) for one, mark in zip(signed, marks, strict=True)]


def no_memory(error: Exception) -> KeyringError:
    """What is raised where an HMAC could not be computed."""
    return KeyringError(f"nothing can be signed or verified: {error}; is memory short?")
