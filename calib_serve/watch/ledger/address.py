"""Where a ledger is, and of how many partitions; the password of its Redis, which is never in the address."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from calib_serve.addresses import holds_password, password_of
from calib_serve.errors import InputError

__all__ = [
    "REDIS_PASSWORD", "REDIS_PASSWORD_FILE", "Place", "check_address", "is_cluster", "is_redis", "places_of",
    "redis_password",
]  # fmt: skip

REDIS_PASSWORD = "CALIB_SERVE_REDIS_PASSWORD"  # noqa: S105  the name of a variable
REDIS_PASSWORD_FILE = "CALIB_SERVE_REDIS_PASSWORD_FILE"  # noqa: S105  the name of a variable

_CLUSTERS = ("redis+cluster://", "rediss+cluster://")
_SCHEMES = ("redis://", "rediss://", "unix://", *_CLUSTERS)
_PREFIX = "calib-serve"
_OF_CLUSTER = 16  # partitions of a ledger in a Redis Cluster, by default: more than it will have nodes
_MOST = 256
_PARTS = re.compile(r"([?&])parts=([^&]*)(&|$)")


class Place(NamedTuple):
    """Where a ledger without partitions is, or one partition: a file, or a Redis and its keys' prefix."""

    where: str
    prefix: str = _PREFIX

    @property
    def root(self) -> str:
        """What the names of its keys in a Redis begin with."""
        # The braces keep all keys on one node of a cluster, where scripts can reach them.
        return f"{{{self.prefix}}}"


def is_redis(where: str) -> bool:
    """Whether this is the address of a Redis, and not the name of a file."""
    return where.lower().startswith(_SCHEMES)


def is_cluster(where: str) -> bool:
    """Whether this is the address of a Redis Cluster."""
    return where.lower().startswith(_CLUSTERS)


def places_of(where: str) -> list[Place]:
    """The places of the partitions that an address names; one for a ledger without.

    InputError for a number of partitions that cannot be.

    >>> [place.where for place in places_of("ledger.db?parts=2")]
    ['ledger.db.1', 'ledger.db.2']
    >>> places_of("redis://redis:6379/0?parts=2")[1]
    Place(where='redis://redis:6379/0', prefix='calib-serve:2')
    """
    found = _PARTS.search(where)
    told = found[2] if found else str(_OF_CLUSTER if is_cluster(where) else 1)
    if not (told.isascii() and told.isdigit() and 1 <= int(told) <= _MOST):
        raise InputError(f"a ledger has 1 to {_MOST} partitions, got parts={told}")
    if found:
        where = where[: found.start()] + (found[1] + where[found.end() :] if found[3] else "")
    if int(told) == 1:
        return [Place(where)]
    numbers = range(1, int(told) + 1)
    if is_redis(where):
        return [Place(where, f"{_PREFIX}:{number}") for number in numbers]
    return [Place(f"{where}.{number}") for number in numbers]


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
