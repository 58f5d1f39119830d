"""Who may use the app, and for what: tokens with scopes, and the host names that it answers to."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from calib_serve.errors import InputError, MissingDependency
from calib_serve.watch.http.tokens import Scope, Token, TokenFile, find

try:
    from fastapi import HTTPException, Request
except ImportError as error:
    raise MissingDependency("fastapi", "watch") from error

__all__ = ["LOOPBACK", "SCHEMES", "Guard", "Tokens", "allowed_hosts", "secured", "source_of"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")

Tokens = Sequence[str | Token] | TokenFile
"""Tokens that may do everything, those with scopes, or a file of them, which may change."""

SCHEMES: dict[str, Any] = {
    "token": {"type": "http", "scheme": "bearer"},
    "password": {"type": "http", "scheme": "basic", "description": "The token is the password."},
}
"""How a token is sent, as OpenAPI says it."""


class Guard:
    """Lets in who has a token of the right scope; without tokens, everybody."""

    def __init__(self, tokens: Tokens) -> None:
        if isinstance(tokens, TokenFile):
            self._tokens: Callable[[], Sequence[Token]] = tokens.current
        else:
            given = [Token.of(one) if isinstance(one, str) else one for one in tokens]
            self._tokens = lambda: given

    def needs(self, *scopes: Scope) -> Callable[[Request], Awaitable[None]]:
        """Lets a request in that has one of these scopes; HTTP 401 without a known token, else 403."""

        async def check(request: Request) -> None:
            tokens = self._tokens()
            if not tokens:
                return
            one = find(tokens, _token(request.headers.get("authorization", "")))
            if one is None:
                raise HTTPException(
                    401, "send Authorization: Bearer TOKEN", {"WWW-Authenticate": 'Basic realm="watch"'}
                )
            if not one.scopes & {*scopes}:
                raise HTTPException(
                    403,
                    f"this needs a token of scope {' or '.join(scopes)}; that of {one.name} has "
                    f"{','.join(sorted(one.scopes))}",
                )
            request.state.source = one.name

        return check


def secured(*scopes: Scope) -> dict[str, Any]:
    """What OpenAPI says of an operation that needs one of these scopes."""
    return {"security": [{scheme: [scope]} for scope in scopes for scheme in SCHEMES]}


def source_of(request: Request) -> str:
    """The name of the token that a request came with; "" where none is asked for."""
    return str(getattr(request.state, "source", ""))


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


def allowed_hosts(host: str, *, guarded: bool) -> tuple[str, ...]:
    """The host names to answer to, listening on ``host``; InputError where others could use it freely.

    Unless ``guarded`` by tokens only loopback names, which a page of another site cannot use (DNS rebinding).

    >>> allowed_hosts("127.0.0.1", guarded=False)
    ('127.0.0.1', 'localhost', '::1')
    """
    if guarded:
        return ("*",)
    if host not in LOOPBACK:
        raise InputError(f"{host} can be reached by others; give --token-file, or listen on 127.0.0.1")
    return LOOPBACK
