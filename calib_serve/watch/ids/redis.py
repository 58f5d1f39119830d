"""Receipts by id in a Redis, or a Redis Cluster, that all replicas share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from calib_serve.errors import LedgerError, MissingDependency
from calib_serve.watch.ids.bindings import Binding, hashed, packed, unpacked
from calib_serve.watch.ledger.address import Place
from calib_serve.watch.ledger.redis_store import connected

try:
    import redis
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["RedisIds"]

# Ids stand in a list in the order in which they came. Those at its front whose keys expired leave first.
_BIND = """
local root, ttl, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local order, of = root .. ':order', root .. ':id:'
for _ = 1, #ARGV do
  local head = redis.call('LINDEX', order, 0)
  if not head or redis.call('EXISTS', of .. head) == 1 then break end
  redis.call('LPOP', order)
end
local kept = {}
for i = 3, #ARGV, 3 do
  local key, model = of .. ARGV[i], ARGV[i + 1]
  local new = redis.call('EXISTS', key) == 0
  if redis.call('HSETNX', key, model, ARGV[i + 2]) == 1 then
    redis.call('PEXPIRE', key, ttl)
    if new then redis.call('RPUSH', order, ARGV[i]) end
  end
  kept[#kept + 1] = redis.call('HGET', key, model)
end
local evicted = 0
for _ = 1, redis.call('LLEN', order) - most do
  evicted = evicted + redis.call('DEL', of .. redis.call('LPOP', order))
end
return {evicted, kept}
"""


class RedisIds:
    """A ``ReceiptIds`` in the Redis at ``url``, in one slot of a cluster.

    ``most``: how many ids are held. ``ttl``: seconds after which one leaves. ``password``: that of Redis.
    """

    def __init__(
        self,
        url: str,
        *,
        most: int,
        ttl: float,
        prefix: str = "calib-serve:ids",
        timeout: float = 10.0,
        password: str | None = None,
    ) -> None:
        self.evicted = 0
        self._most, self._ttl, self._root = most, ttl, Place(url, prefix).root
        with self._errors():
            self._redis = connected(url, self._root, timeout=timeout, password=password)
        self._bind = self._redis.register_script(_BIND)

    def bind(self, bindings: Sequence[Binding]) -> list[str]:
        """Keep those whose id is free; the receipt that each id stands for from now on."""
        if not bindings:
            return []
        told: list[object] = [int(self._ttl * 1000), self._most]
        for model, name, receipt in bindings:
            told += [hashed(name), model, packed(receipt)]
        with self._errors():
            evicted, kept = self._bind(keys=[self._root], args=told)
        self.evicted += evicted
        return [unpacked(one) for one in kept]

    def find(self, ids: Sequence[str]) -> list[dict[str, str]]:
        """Of each id, its receipts by model."""
        with self._errors(), self._redis.pipeline(transaction=False) as pipe:
            for name in ids:
                pipe.hgetall(self._root.encode() + b":id:" + hashed(name))
            found = pipe.execute()
        return [{model.decode(): unpacked(kept) for model, kept in one.items()} for one in found]

    def size(self) -> int:
        """How many ids are held, and some that expired."""
        with self._errors():
            return int(self._redis.llen(f"{self._root}:order"))

    def trouble(self) -> str | None:
        """Nothing, or LedgerError where Redis does not answer."""
        self.size()
        return None

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise LedgerError(f"the ids in Redis cannot be used: {error}") from error
