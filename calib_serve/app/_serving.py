"""Options of the commands that serve by HTTP: models by name and version, tokens, keys, and addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from calib_serve.core.errors import InputError

if TYPE_CHECKING:
    from calib_serve.core.options.servers import WebOptions
    from calib_serve.receipts import LiveKeyring
    from calib_serve.web import TokenFile

Version = tuple[str, str]


class _Door(NamedTuple):
    """The tokens of a server's users, its host names, and the keys of its receipts."""

    tokens: TokenFile | None
    hosts: Sequence[str]
    keyring: LiveKeyring


@contextlib.contextmanager
def door(listen: WebOptions, keyring: Any) -> Iterator[_Door]:
    """Read the tokens and keys; inside the context they are read again on SIGHUP, and logs go to stderr."""
    from calib_serve.core.logs import logs
    from calib_serve.core.process import on_hangup
    from calib_serve.receipts import LiveKeyring
    from calib_serve.web import TokenFile, allowed_hosts

    tokens = None if listen.token_file is None else TokenFile(listen.token_file)
    # Without tokens a page in a browser on this host could reach the server by a name of its own.
    hosts = allowed_hosts(listen.host, guarded=tokens is not None, named=listen.allowed_hosts)
    found = _Door(tokens, hosts, LiveKeyring(keyring))

    def read_again() -> None:
        found.keyring.again()
        if tokens is not None:
            tokens.again()

    with logs(listen.log_format), contextlib.ExitStack() as running:
        running.callback(on_hangup(read_again))
        yield found


def watched_models(texts: Sequence[str], *, version: str = "") -> dict[Version, Path | int]:
    """Read NAME:VERSION=ARTIFACT (a folder) or =CLASSES (a number); ``version``: the default version.

    >>> watched_models(["digits:1.0=10"]), watched_models(["digits=10"], version="1")
    ({('digits', '1.0'): 10}, {('digits', '1'): 10})
    """
    found: dict[Version, Path | int] = {}
    for text in texts:
        name, _, what = text.partition("=")
        # At the last colon, so that a name may hold one.
        model, colon, said = name.rpartition(":")
        if not colon:
            model, said = name, version
        if not (model and said and what):
            asked = "NAME[:VERSION]" if version else "NAME:VERSION"
            raise InputError(f"a model is {asked}=ARTIFACT or {asked}=CLASSES, got {text!r}")
        if (model, said) in found:
            raise InputError(f"{model}:{said} is given twice")
        found[model, said] = int(what) if what.isdecimal() else Path(what)
    return found


def named_version(text: str) -> Version:
    """Read NAME:VERSION.

    >>> named_version("digits:1.0")
    ('digits', '1.0')
    """
    name, _, version = text.rpartition(":")
    if not (name and version):
        raise InputError(f"a model's version is NAME:VERSION, such as digits:1.0, got {text!r}")
    return name, version


def served_at(listen: WebOptions, port: int) -> str:
    """The base URL of a server that listens on ``port``."""
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"http{'s' if listen.tls_cert else ''}://{host}:{port}"
