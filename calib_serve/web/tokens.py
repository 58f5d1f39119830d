"""Tokens of a watch: who may do what, read from a private file.

A file of tokens holds one a line, ``NAME SCOPE[,SCOPE] TOKEN`` or ``NAME SCOPE[,SCOPE] sha256:HEX``; the
latter keeps no secret. A line that is a token alone may do everything; it is named by the first 8 digits of
its sha256. Lines of one name are one client, such as while its token is replaced. ``#`` begins a comment.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from calib_serve.core.errors import InputError
from calib_serve.core.files import FollowedFile, read_private
from calib_serve.receipts import OTHER, is_source
from calib_serve.web.limits import Limits

Scope = Literal["predict", "label", "ids", "correct", "scrape", "admin"]
"""What a token may be used for: to send predictions; to send labels, by receipts and by ids of predictions
that it sent; with ``label``, by ids of any; with ``label``, in the place of other labels; to read metrics,
page and incidents; to read page and incidents and close these."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Token:
    """A token's owner, scopes and digest: the token itself is not kept.

    Args:
        name: Name of its owner.
        scopes: What it may be used for.
        digest: Its SHA-256.

    >>> Token.of("a-token-that-is-long").name
    '009cd681'
    """

    name: str
    scopes: frozenset[Scope]
    digest: bytes

    @classmethod
    def of(cls, token: str) -> Token:
        """A token for all scopes, named by its digest."""
        digest = _sha256(token)
        return cls(digest.hex()[:8], frozenset(SCOPES), digest)

    @classmethod
    def read(cls, line: str) -> Token:
        """Read the token on a line; InputError, which does not repeat the secret."""
        fields = line.split()
        if len(fields) == 1 and not fields[0].startswith("sha256:"):
            return cls.of(_long_enough(fields[0]))
        if len(fields) != 3:
            raise InputError(f"a line is NAME SCOPES TOKEN or a token alone, got {len(fields)} words")
        name, scopes, token = fields
        if not is_source(name):
            raise InputError(
                f"a name is up to 63 letters, digits, '.', '_' and '-', and not {OTHER!r}, got {name[:80]!r}"
            )
        if token.startswith("sha256:"):
            if not _DIGEST.fullmatch(token):
                raise InputError(f"the digest of {name} must be sha256: and 64 digits of 0-9a-f")
            return cls(name, _parse_scopes(scopes), bytes.fromhex(token.removeprefix("sha256:")))
        return cls(name, _parse_scopes(scopes), _sha256(_long_enough(token)))


def _parse_scopes(text: str) -> frozenset[Scope]:
    """Read scopes separated by commas; InputError for any other text.

    >>> sorted(_parse_scopes("label,predict"))
    ['label', 'predict']
    """
    named = text.split(",")
    found = frozenset(one for one in SCOPES if one in named)
    if len(found) != len(set(named)):
        raise InputError(f"scopes are some of {','.join(SCOPES)} with commas between, got {text[:80]!r}")
    if {"ids", "correct"} & found and "label" not in found:
        raise InputError("the scopes ids and correct say which labels may be sent: give label as well")
    return found


def new_token(name: str, scopes: str) -> tuple[str, str]:
    """A fresh token of 256 random bits, and its line for the file of tokens.

    Args:
        name: Name of its owner.
        scopes: Scopes, with commas between.
    """
    token = secrets.token_urlsafe(32)
    line = f"{name} {scopes} sha256:{_sha256(token).hex()}"
    Token.read(line)
    return token, line


def find(tokens: Iterable[Token], given: str) -> Token | None:
    """Find the token with this secret; all digests are compared, so that the time reveals none of them."""
    digest, found = _sha256(given), None
    for one in tokens:
        if hmac.compare_digest(digest, one.digest):
            found = one
    return found


def read_tokens(path: Path) -> list[Token]:
    """Read the tokens in a file; InputError if others may read it, or a line is no token."""
    try:
        text = read_private(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the tokens {path}: {error}") from error
    found: dict[bytes, Token] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        try:
            one = Token.read(line)
        except InputError as error:
            raise InputError(f"line {number} of {path}: {error}") from error
        if one.digest in found:
            raise InputError(
                f"line {number} of {path} holds a token of another line: nobody could tell whose"
            )
        found[one.digest] = one
    if not found:
        raise InputError(f"{path} holds no token; make one with: calib-serve keys token NAME --scopes label")
    return list(found.values())


class TokenFile(FollowedFile[Sequence[Token]]):
    """The tokens of a file, read again when it changes; while it is broken, the last valid ones.

    Args:
        path: The file, which others may not read.
        failed: Called at each try to read it while it is broken.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        path: Path,
        *,
        failed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(path, read_tokens, failed=failed, clock=clock)


def _sha256(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _long_enough(token: str) -> str:
    if len(token) < Limits.SHORTEST_TOKEN:
        raise InputError(f"a token has at least {Limits.SHORTEST_TOKEN} characters, got {len(token)}")
    return token


Tokens = Sequence[str | Token] | TokenFile
"""Tokens that may do everything, those with scopes, or a file of them, which may change."""
