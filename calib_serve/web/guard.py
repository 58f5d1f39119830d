"""The guard of every route: allowed hosts, pages of this origin, and tokens of the right scope."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.security import (
    HTTPAuthorizationCredentials,
    HTTPBasic,
    HTTPBasicCredentials,
    HTTPBearer,
    SecurityScopes,
)
from starlette.responses import JSONResponse

from calib_serve.core.errors import InputError
from calib_serve.web.tokens import Scope, Token, TokenFile, Tokens, find

LOOPBACK = ("127.0.0.1", "localhost", "::1")

NDJSON = "application/x-ndjson"

NO_CORRECTIONS = "replaces=no"
"""The query of labels by which a proxy with tokens of its own says that the client may not correct any."""

_KINDS = ("application/json", NDJSON)  # a page of another site cannot send these without preflight
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?")
_SAFE = ("GET", "HEAD", "OPTIONS")
_OWN = (b"same-origin", b"none")  # Sec-Fetch-Site of the server's own pages, or of a typed address

_TOKEN = HTTPBearer(scheme_name="token", auto_error=False)
_PASSWORD = HTTPBasic(
    scheme_name="password", realm="watch", description="The token is the password.", auto_error=False
)

App = Callable[[Any, Any, Any], Awaitable[None]]


class Guard:
    """Admits requests under known host names, from no other site's page, with a known token.

    Args:
        tokens: Tokens, or a file of them; none: everybody who reaches it is let in.
        hosts: Names without a port, "*.example.com" for all below it, "*" for any: without it, a page whose
            name is made to lead here reads as if it were ours (DNS rebinding).
    """

    def __init__(self, tokens: Tokens = (), hosts: Sequence[str] = ("*",)) -> None:
        if isinstance(tokens, TokenFile):
            self._tokens: Callable[[], Sequence[Token]] = tokens.current
        else:
            given = [Token.of(one) if isinstance(one, str) else one for one in tokens]
            self._tokens = lambda: given
        self.hosts = tuple(host.strip("[]").lower() for host in hosts)
        self.is_open = "*" in self.hosts

    def around(self, app: App) -> App:
        """Apply the checks that need no token to every request of ``app``."""

        async def guarded(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            wrong = self.refusal(scope) if scope["type"] == "http" else None
            answer = app if wrong is None else JSONResponse({"detail": wrong[1]}, wrong[0])
            await answer(scope, receive, send)

        return guarded

    def refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        """The status and reason to refuse a request by its host or origin; None to let it pass."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if not self.is_open and not (len(hosts) == 1 and self._is_named(hosts[0])):
            told = ", ".join(hosts)[:80]
            return 400, (
                f"this server does not answer to the host {told!r}: name it by --allowed-hosts (hosts=), or "
                "let the proxy in front set one of its own"
            )
        if scope["method"] in _SAFE:
            return None
        # Browsers send Sec-Fetch-Site, older ones Origin; programs send neither, and are no page.
        sites = [value for name, value in headers if name == b"sec-fetch-site"]
        origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
        if sites:
            own = all(site in _OWN for site in sites)
        else:
            own = all(self._is_own(origin, hosts) for origin in origins)
        return None if own else (403, "a page of another site may not send this")

    def _is_named(self, host: str) -> bool:
        name = _name(host)
        return name in self.hosts or any(
            one.startswith("*.") and name.endswith(one[1:]) for one in self.hosts if name
        )

    def _is_own(self, origin: str, hosts: Sequence[str]) -> bool:
        """Whether a page is of this server: another port of a loopback name is another program."""
        place = origin.lower().partition("://")[2]
        name = _name(place)
        return bool(place) and (
            place in map(str.lower, hosts) or (self._is_named(place) and name not in LOOPBACK)
        )

    def allows(self, token: str, scope: Scope) -> bool:
        """Whether a token is known, and has the scope.

        Args:
            token: The token as it was sent.
            scope: What it is used for.
        """
        one = find(self._tokens(), token)
        return one is not None and scope in one.scopes

    async def check(
        self,
        request: Request,
        wanted: SecurityScopes,
        bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_TOKEN)],
        basic: Annotated[HTTPBasicCredentials | None, Depends(_PASSWORD)],
    ) -> None:
        """Require a token of one of these scopes; HTTP 401 without a known token, else 403.

        What is posted must be JSON, or 415.

        Args:
            request: The request.
            wanted: The scopes, as ``Security`` names them.
            bearer: The token that was sent by itself.
            basic: The token that was sent as a password.
        """
        if tokens := self._tokens():
            secret = bearer.credentials if bearer else basic.password if basic else ""
            request.state.token = _token_of(tokens, secret, wanted.scopes)
        if request.method == "POST" and media_type(request) not in _KINDS:
            raise HTTPException(415, f"send {' or '.join(_KINDS)}")

    async def needs(self, request: Request, *scopes: Scope) -> None:
        """Check a request as ``check`` does, outside of FastAPI.

        Args:
            request: The request.
            *scopes: Scopes of which its token must have one.
        """
        sent = await _TOKEN(request), await _PASSWORD(request)
        await self.check(request, SecurityScopes([*scopes]), *sent)


def _token_of(tokens: Sequence[Token], secret: str, scopes: Sequence[str]) -> Token:
    """The token of this secret; HTTP 401 or 403 where there is none with one of the scopes."""
    one = find(tokens, secret)
    if one is None:
        told = {"WWW-Authenticate": 'Basic realm="watch"'}
        raise HTTPException(401, "send Authorization: Bearer TOKEN", told)
    if not one.scopes & {*scopes}:
        has = ",".join(sorted(one.scopes))
        raise HTTPException(
            403, f"this needs a token of scope {' or '.join(scopes)}; that of {one.name} has {has}"
        )
    return one


def media_type(request: Request) -> str:
    """The content type of a request, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _token(request: Request) -> Token | None:
    """The token of a request; None where the server asks for none."""
    token: Token | None = getattr(request.state, "token", None)
    return token


def source_of(request: Request) -> str:
    """The name of the request's token; "" where the server asks for none."""
    token = _token(request)
    return "" if token is None else token.name


def id_source(request: Request) -> str | None:
    """The source of predictions that a request may label by their ids; None: any source."""
    token = _token(request)
    return None if token is None or "ids" in token.scopes else token.name


def may_correct(request: Request) -> bool:
    """Whether a request may put labels in the place of others."""
    token = _token(request)
    return (token is None or "correct" in token.scopes) and request.url.query != NO_CORRECTIONS


def _name(place: str) -> str:
    """The name in HOST:PORT, "" for any other text."""
    found = _PLACE.fullmatch(place.lower())
    return found[1].strip("[]") if found else ""


def allowed_hosts(host: str, *, guarded: bool, named: Sequence[str] = ()) -> tuple[str, ...]:
    """The host names to answer to.

    Args:
        host: Name or address to listen on.
        guarded: Whether tokens guard it; else only loopback names, which a page of another site cannot use,
            and named ones are answered to.
        named: Further names, such as that of a proxy in front; guarded, these alone, or any where none is
            named.

    Raises:
        InputError: Where others could use it freely, or a name has a port.

    >>> allowed_hosts("127.0.0.1", guarded=False, named=["ml.example.com"])
    ('127.0.0.1', 'localhost', '::1', 'ml.example.com')
    """
    if not guarded and host not in LOOPBACK:
        raise InputError(f"{host} can be reached by others; give --token-file, or listen on 127.0.0.1")
    for one in named:
        plain = one.removeprefix("*.").lower()
        if one != "*" and (not plain or plain not in (_name(plain), _name(f"[{plain}]"))):
            raise InputError(f"a host is a name without a port, such as ml.example.com, got {one[:80]!r}")
    return ("*",) if guarded and not named else (*LOOPBACK, *named)
