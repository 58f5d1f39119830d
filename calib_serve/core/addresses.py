"""Addresses of servers and their passwords, which never stand in the address, as others may read it.

A command's arguments are there for every user of its host (``ps``), and addresses end up in logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl

from calib_serve.core.errors import InputError
from calib_serve.core.files import read_private

_SECRET = (
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "token",
    "secret",
    "private_key",
    "access_key",
    "api_key",
)


def holds_password(address: str) -> bool:
    """Whether ``scheme://user:password@host/?password=...`` holds a password, or another secret.

    >>> holds_password("postgres://ana@db:5432/logs"), holds_password("postgres://ana:x@db/logs")
    (False, True)
    >>> holds_password("postgres://db/logs?password=x")
    True
    """
    rest = address.partition("://")[2]
    # Up to the last @, as a password may hold any character that its writer forgot to quote.
    user, at, _ = rest.rpartition("@")
    if at and ":" in user:
        return True
    options = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
    return any(part in name.lower() for name, _ in options for part in _SECRET)


def redacted(address: str) -> str:
    """An address without the text before an @ or after a ?, where a password may be.

    >>> redacted("postgres://ana:x@db:5432/logs?sslmode=require")
    'postgres://db:5432/logs'
    """
    scheme, found, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if found else address


def password_of(whose: str, variable: str, environment: Mapping[str, str]) -> str | None:
    """The first line of the file in ``variable``_FILE, else ``variable``, else None.

    ``whose`` stands in errors. InputError for a file that cannot be read, that others may read, or without a
    password.

    >>> password_of("database", "DB_PASSWORD", {"DB_PASSWORD": "x"})
    'x'
    """
    named = environment.get(f"{variable}_FILE")
    if not named:
        return environment.get(variable) or None
    try:
        lines = read_private(Path(named)).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        # A decoding error would quote the file.
        why = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise InputError(f"cannot read the {whose} password {named}: {why}") from None
    if not lines or not lines[0]:
        raise InputError(f"{named} holds no password; write one into its first line")
    return lines[0]
