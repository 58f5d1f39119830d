"""Who may use the app: tokens, and the host names that it answers to."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from calib_serve.errors import InputError, MissingDependency
from calib_serve.files import read_private

try:
    from fastapi import HTTPException, Request
except ImportError as error:
    raise MissingDependency("fastapi", "watch") from error

__all__ = ["LOOPBACK", "Guard", "allowed_hosts", "read_tokens"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_SHORTEST = 16  # characters of a token


class Guard:
    """Lets in who has a token; compares digests, so that the time it takes reveals nothing about them."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    def __call__(self, request: Request) -> None:
        """Raise HTTP 401 unless the request holds one of the tokens."""
        if not self._digests:
            return
        given = hashlib.sha256(_token(request.headers.get("authorization", "")).encode()).digest()
        if not any(hmac.compare_digest(given, digest) for digest in self._digests):
            raise HTTPException(
                401, "send Authorization: Bearer TOKEN", {"WWW-Authenticate": 'Basic realm="watch"'}
            )


def _token(header: str) -> str:
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def allowed_hosts(host: str, tokens: Sequence[str]) -> tuple[str, ...]:
    """The host names to answer to, listening on ``host``; InputError where others could use it freely.

    Without tokens only loopback names, which a page of another site cannot use (DNS rebinding).

    >>> allowed_hosts("127.0.0.1", ())
    ('127.0.0.1', 'localhost', '::1')
    """
    if tokens:
        return ("*",)
    if host not in LOOPBACK:
        raise InputError(f"{host} can be reached by others; give --token-file, or listen on 127.0.0.1")
    return LOOPBACK


def read_tokens(path: Path) -> list[str]:
    """The tokens in a file, one a line; InputError if others may read it or a token is short."""
    try:
        text = read_private(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the tokens {path}: {error}") from error
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if not tokens or min(map(len, tokens)) < _SHORTEST:
        raise InputError(f"{path} must hold tokens of at least {_SHORTEST} characters, one a line")
    return tokens
