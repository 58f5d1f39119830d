"""Connections to whichever node of a Redis Cluster holds the keys of a ledger.

All keys of a ledger share one slot of the cluster, so that scripts reach them. A connection asks the cluster
who serves that slot when it is made, and is given up when the slot moves: the next one finds its new node.
"""

# mypy: allow-untyped-calls
# The methods of connections that are overridden here have no types.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calib_serve.errors import MissingDependency

try:
    import redis
    from redis.connection import Connection, SSLConnection, parse_url
    from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["cluster_pool"]

_SCHEME = "+cluster://"


def cluster_pool(url: str, key: str, **options: Any) -> redis.ConnectionPool:
    """A pool of connections to the node that serves the slot of ``key``.

    ``url``: ``redis+cluster://host:port`` of any node, or ``rediss+cluster://``; ``options`` as of a
    connection. ValueError for an address that is none.
    """
    asked = {**options, **parse_url(url.replace(_SCHEME, "://", 1))}
    secure = asked.pop("connection_class", Connection) is SSLConnection
    if asked.get("db"):
        raise ValueError("a cluster has one database: give no number of one")
    seed = (asked.pop("host", "localhost"), asked.pop("port", 6379))
    made = _SecureToOwner if secure else _ToOwner
    return redis.ConnectionPool(connection_class=made, seed=seed, key=key, **asked)


class _Owner:
    """Who serves the slot of ``key``; asked of the nodes that were heard of."""

    def __init__(self, seed: tuple[str, int], key: str, options: dict[str, Any], *, secure: bool) -> None:
        self._nodes: list[tuple[str, int]] = [seed]
        self._key, self._secure = key, secure
        self._options = {name: value for name, value in options.items() if name in _ASKING}

    def find(self) -> tuple[str, int]:
        """Its host and port; redis.ConnectionError where no node tells."""
        trouble: Exception = redis.ConnectionError("no node is known")
        for host, port in self._nodes:
            try:
                with redis.Redis(host=host, port=port, ssl=self._secure, **self._options) as node:
                    slot = node.execute_command("CLUSTER KEYSLOT", self._key)
                    return self._owner(node.execute_command("CLUSTER SLOTS"), slot, host)
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                trouble = error
        raise redis.ConnectionError(f"no node of the cluster answers: {trouble}")

    def _owner(self, ranges: Any, slot: int, asked: str) -> tuple[str, int]:
        # A node that does not know its own name is where it was asked.
        primaries = {
            span: (_text(first[0]) or asked, int(first[1])) for span, first in _primaries(ranges).items()
        }
        found = next((node for (low, high), node in primaries.items() if low <= slot <= high), None)
        if found is None:
            raise redis.ConnectionError(f"no node of the cluster serves slot {slot}")
        self._nodes = [found, *dict.fromkeys([*primaries.values(), *self._nodes])]
        return found


_ASKING = (
    "username",
    "password",
    "socket_timeout",
    "ssl_ca_certs",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_keyfile",
)


def _primaries(ranges: Any) -> dict[tuple[int, int], Sequence[Any]]:
    """By range of slots, the host and port of its primary; as RESP2 and RESP3 tell them."""
    if isinstance(ranges, dict):
        return {(int(low), int(high)): told["primary"] for (low, high), told in ranges.items()}
    return {(int(low), int(high)): primary for low, high, primary, *_ in ranges}


def _text(name: bytes | str | None) -> str:
    return name.decode() if isinstance(name, bytes) else name or ""


def _elsewhere(error: ResponseError) -> bool:
    """Whether the node says that the keys are not, or not only, with it; redis 5 has no classes for that."""
    told = str(error).startswith(("MOVED ", "ASK ", "CLUSTERDOWN "))
    return told or isinstance(error, (MovedError, AskError, ClusterDownError))


class _ToOwner(Connection):
    """A connection that goes where its slot is."""

    _is_secure = False

    def __init__(self, *, seed: tuple[str, int], key: str, **options: Any) -> None:
        self._owner = _Owner(seed, key, options, secure=self._is_secure)
        super().__init__(host=seed[0], port=seed[1], **options)

    def connect(self) -> None:
        """Connect to the node that serves the slot now."""
        if self._sock is None:  # redis 5 has no name for that
            self.host, self.port = self._owner.find()
            super().connect()

    def read_response(self, *args: Any, **options: Any) -> Any:
        """The next answer; ConnectionError where the slot has moved."""
        try:
            return super().read_response(*args, **options)
        except ResponseError as error:
            if not _elsewhere(error):
                raise
            self.disconnect()
            raise redis.ConnectionError(f"the cluster changes: {error}") from error


class _SecureToOwner(_ToOwner, SSLConnection):
    """The same, by TLS."""

    _is_secure = True
