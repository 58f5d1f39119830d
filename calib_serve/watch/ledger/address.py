"""Where a ledger is, and the password of its Redis: never in the address, which others may read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from calib_serve.addresses import holds_password, password_of
from calib_serve.errors import InputError

__all__ = ["REDIS_PASSWORD", "REDIS_PASSWORD_FILE", "check_address", "is_redis", "redis_password"]

REDIS_PASSWORD = "CALIB_SERVE_REDIS_PASSWORD"  # noqa: S105  the name of a variable
REDIS_PASSWORD_FILE = "CALIB_SERVE_REDIS_PASSWORD_FILE"  # noqa: S105  the name of a variable

_SCHEMES = ("redis://", "rediss://", "unix://")


def is_redis(where: str) -> bool:
    """Whether this is the address of a Redis, and not the name of a file."""
    return where.lower().startswith(_SCHEMES)


def check_address(where: str) -> None:
    """InputError for no address, and for one that holds a password, without telling it.

    >>> check_address("redis://counter@redis:6379/0")
    """
    if not where:
        raise InputError("a ledger is a file name or a redis:// address, got an empty name")
    if not is_redis(where):
        return
    if holds_password(where):
        raise InputError(
            "the ledger's address holds a password, which others could read; leave it out, and give it by "
            f"{REDIS_PASSWORD}, or in a file by --ledger-password-file or {REDIS_PASSWORD_FILE}"
        )


def redis_password(
    file: str | Path | None = None, *, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The first line of ``file``, else of the environment's file, else what the environment says, else None.

    InputError for a file that cannot be read, that others may read, or without a password.
    """
    return password_of("Redis", REDIS_PASSWORD, file, environment=environment)
