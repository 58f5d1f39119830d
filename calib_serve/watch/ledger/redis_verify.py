"""What can be seen of a Redis ledger that is not as it was written.

Redis keeps no checksums of what it holds: values that cannot be read show, sums that are missing against the
bits of the receipts that were counted, and bits that are missing against their number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from calib_serve.errors import LedgerError, MissingDependency
from calib_serve.nonces import PER_EPOCH
from calib_serve.watch.ledger.redis_scripts import FEW
from calib_serve.watch.ledger.redis_wire import bits_of, escaped, unpacked
from calib_serve.watch.ledger.sums import Key, Sums, Version, merge_slices

try:
    from redis import ResponseError
except ImportError as error:
    raise MissingDependency("redis", "watch") from error

__all__ = ["verify"]


def verify(
    redis: Any,
    root: str,
    *,
    bins: int,
    sums: Callable[[], dict[Key, Sums]],
    taken_out: Callable[[], int],
) -> list[str]:
    """What is wrong under ``root``; usable while others write.

    ``sums`` reads those over all time, and ``taken_out`` how many labels were taken out of them, whose
    receipts are remembered still, perhaps.
    """
    found = [*_bits(redis, root)]
    # First the bits, then the sums: labels that come in between make the sums larger alone.
    bits = _remembered(redis, root)
    found += [*_numbers(redis, root, bins=bins), *_labels(redis, root)]
    if found:
        return found
    try:
        counted: dict[Version, Sums] = merge_slices(sums())
        # After the sums: what is taken out in between is in both.
        taken = taken_out()
    except (LedgerError, ValueError, TypeError) as error:
        return [f"sums cannot be read: {error}"]
    labels = sum(float(one.labels.sum()) for one in counted.values())
    if labels + taken < bits:
        out = f", and {taken} were taken out" if taken else ""
        found.append(
            f"totals: {bits} receipts are remembered, and only {labels:.0f} labels are in the sums{out}"
        )
    return found


def _bits(redis: Any, root: str) -> Iterator[str]:
    counted = {name: int(n) for name, n in redis.hgetall(f"{root}:bits").items()}
    for name, n in counted.items():
        key = f"{root}:epoch:{name.decode()}"
        left = redis.zscore(f"{root}:epochs", name)
        seconds, micro = redis.time()
        if n < 0:
            yield f"epoch {name.decode()}: its bits were lost; its receipts are refused as forgotten"
        elif left is not None and left > 1000 * seconds + micro / 1000 and _set(redis, key) < n:
            yield f"epoch {name.decode()}: {n} receipts were counted, and fewer are remembered"


def _set(redis: Any, key: str) -> int:
    """How many bits of an epoch are set, of one moment."""
    bitmap, few = redis.mget(key, key + FEW.decode())
    return max(bits_of(key.encode(), bitmap or b""), bits_of(FEW, few or b""))


def _remembered(redis: Any, root: str) -> int:
    """How many receipts are remembered as counted."""
    total = 0
    for key in redis.scan_iter(f"{escaped(root)}:epoch:*", count=1000):
        # It may be a bitmap by now: then it is read under its other name, now or later.
        total += bits_of(key, redis.get(key) or b"") if 8 * redis.strlen(key) <= PER_EPOCH else 0
    return total


def _numbers(redis: Any, root: str, *, bins: int) -> Iterator[str]:
    """Of the sums that cannot be read."""
    size = len(Sums.zeros(bins).vector)
    totals = [("total", name, 5) for name in redis.smembers(f"{root}:totals")]
    spans = [("span", name, 6) for name in redis.zrange(f"{root}:spans", 0, -1)]
    for what, name, parts in (*totals, *spans):
        shown = name.decode(errors="replace")
        try:
            if len(json.loads(name)) != parts:
                raise ValueError("its name has other parts")
            for field, value in redis.hgetall(f"{root}:{what}:{name.decode()}").items():
                if not (0 <= int(field) < size and math.isfinite(float(value))):
                    raise ValueError(f"its number {int(field)} reads {value!r}")
        except (ValueError, TypeError, ResponseError) as error:
            yield f"{what} {shown}: {error}"


def _labels(redis: Any, root: str) -> Iterator[str]:
    """Of the labels that cannot be read."""
    waiting = [f"{root}:waiting:{name.decode()}" for name in redis.smembers(f"{root}:waiting")]
    for key in (f"{root}:journal", *waiting):
        try:
            rows = redis.lrange(key, 0, -1) if key == f"{root}:journal" else redis.zrange(key, 0, -1)
            for row in rows:
                unpacked(row)
        except (ValueError, TypeError, ResponseError) as error:
            yield f"{key.removeprefix(root + ':')}: {error}"
