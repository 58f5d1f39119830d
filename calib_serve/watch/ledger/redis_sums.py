"""The sums of a Redis ledger, over all time and by span, and the journal of labels that is folded in."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from calib_serve.errors import LedgerError
from calib_serve.watch.ledger.entries import SPANS, Dated, Place, coarser, journal_sums
from calib_serve.watch.ledger.redis_scripts import FOLD, MERGE
from calib_serve.watch.ledger.redis_wire import rows_and_sums, unpacked
from calib_serve.watch.ledger.sums import Key, Kind, Sums, Version, add_at

__all__ = ["RedisSums"]

_MERGE_EVERY = 300.0  # seconds between rounds of looks for spans that have grown old
_LOOK_EVERY, _LOOK = 5.0, 0.02  # seconds between looks of a round, and of one look, so that no label waits
_INDEXED = 60.0  # seconds for which names are not read again, for each second that it takes, at least one
_NAMES = 500  # spans that are asked for at once
_AT_MOST = 10_000  # labels of one fold
_FOLD_AT = 1_000  # labels in the journal that nobody has made sums of

_Names = Callable[[], dict[str, tuple[Place, str]]]


class RedisSums:
    """The sums under ``root``, in so many ``bins``; ``errors``: turns those of Redis into LedgerError."""

    def __init__(
        self, server: Any, root: str, *, bins: int, errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._redis, self._root, self._bins, self._errors = server, root, bins, errors
        self._fold, self._merge = (server.register_script(script) for script in (FOLD, MERGE))
        self._next_merge = -math.inf
        self._looked = 0
        self._index: dict[Version, list[bytes]] = {}
        self._indexed, self._index_until = -1, -math.inf

    def tidy(self) -> None:
        """What keeps the journal short and spans wide; its failure takes nothing back that was counted."""
        with contextlib.suppress(LedgerError), self._errors():
            if self._redis.llen(f"{self._root}:journal") > _FOLD_AT:
                self.fold()
            self.merge_sometimes()

    def fold(self) -> None:
        """Add the labels in the journal to the sums, unless another process does so at this moment."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.get(f"{self._root}:folds")
        pipe.lrange(f"{self._root}:journal", 0, _AT_MOST - 1)
        folds, rows = pipe.execute()
        if rows:
            batch: dict[str, Any] = {"rows": [], "sums": []}
            for writer, sums in journal_sums([unpacked(row) for row in rows], bins=self._bins).items():
                more = rows_and_sums(sums, writer=writer)
                batch = {"rows": batch["rows"] + more["rows"], "sums": batch["sums"] + more["sums"]}
            self._fold(keys=[self._root], args=[json.dumps(batch), folds or "0", len(rows)])

    def merge_sometimes(self, *, now: bool = False) -> None:
        """Move what has grown old into wider spans, and drop what is older than any.

        A little at each call, and once in a while; ``now``: all of it at once.
        """
        began = time.monotonic()
        if not now and began < self._next_merge:
            return
        with self._errors():
            self.fold()
            at = self._merge_from(0 if now else self._looked)
            while at is not None and (now or time.monotonic() - began < _LOOK):
                at = self._merge_from(at)
        self._looked = at or 0
        self._next_merge = time.monotonic() + (_MERGE_EVERY if at is None else _LOOK_EVERY)

    def _merge_from(self, at: int) -> int | None:
        """Look at some spans from this one on, oldest first; where the next one is, None behind the last."""
        seconds = int(self._redis.time()[0])
        old = seconds - SPANS[0][1]
        names = self._redis.zrangebyscore(f"{self._root}:spans", "-inf", old, at, _NAMES)
        moved = 0
        for name in names:
            *key, start, width = json.loads(name)
            to = coarser(start, width, now=seconds)
            if to != (start, width):
                self._move(name.decode(), None if to is None else json.dumps([*key, *to]))
                moved += 1
        # What was moved is no longer before the next one. Wider spans that it made may be: they stay.
        return at + len(names) - moved if len(names) == _NAMES else None

    def _move(self, name: str, to: str | None) -> None:
        start = json.loads(to)[-2] if to else 0
        self._merge(keys=[self._root], args=[name, to or "", start])

    def slices(self, kind: Kind, *, writer: str | None, version: Version | None = None) -> dict[Key, Sums]:
        """The sums over all time by slice of this kind, of one writer or all, of one version or all."""
        found: dict[Key, Sums] = {}
        asked = lambda: self.totals(kind, writer=writer, version=version)  # noqa: E731
        for place, of, sums in self._kept(f"{self._root}:total:", asked):
            mine = writer in (None, of) and version in (None, place.key.of)
            if place.key.kind == kind and not place.width and mine:
                add_at(found, place.key, sums)
        return found

    def totals(
        self, kind: Kind, *, writer: str | None, version: Version | None = None
    ) -> dict[str, tuple[Place, str]]:
        """The names of the sums over all time, with what they are of, and whose."""
        found = {}
        for name in self._names(version):
            by, model, of_version, of, slice_ = json.loads(name)
            if of == kind and writer in (None, by):
                found[name.decode()] = (Place(Key(model, of_version, slice_, of)), by)
        return found

    def _names(self, version: Version | None) -> list[bytes]:
        """The names of the sums of all versions, or of one: then by an index, as there may be very many.

        It is made again where there are more or fewer, and after a while: others may have dropped some.
        """
        key = f"{self._root}:totals"
        if version is None:
            return sorted(self._redis.smembers(key))
        if self._redis.scard(key) != self._indexed or time.monotonic() > self._index_until:
            began = time.monotonic()
            names, self._index = sorted(self._redis.smembers(key)), {}
            for name in names:
                _, model, of_version, *_ = json.loads(name)
                self._index.setdefault((model, of_version), []).append(name)
            took = time.monotonic() - began
            self._indexed, self._index_until = len(names), began + max(_INDEXED, _INDEXED * took)
        return self._index.get(version, [])

    def forget_names(self) -> None:
        """Read the names again, as some were dropped."""
        self._indexed = -1

    def _kept(self, prefix: str, names: _Names) -> Iterator[tuple[Place, str, Sums]]:
        """The sums under these names and those of the journal, of one moment, with their writers."""
        with self._errors():
            self.fold()
            while True:
                folds = self._redis.get(f"{self._root}:folds")
                asked = names()
                pipe = self._redis.pipeline(transaction=True)
                pipe.get(f"{self._root}:folds")
                pipe.lrange(f"{self._root}:journal", 0, -1)
                for name in asked:
                    pipe.hgetall(prefix + name)
                now, rows, *hashes = pipe.execute()
                if now == folds:  # else labels have gone from the journal to sums whose names are not here
                    break
        for (place, writer), kept in zip(asked.values(), hashes, strict=True):
            yield place, writer, self._sums_of(kept)
        for writer, sums in journal_sums([unpacked(row) for row in rows], bins=self._bins).items():
            for place, more in sums.items():
                yield place, writer, more

    def _sums_of(self, kept: Mapping[bytes, bytes]) -> Sums:
        vector = np.zeros_like(Sums.zeros(self._bins).vector)
        try:
            for field, value in kept.items():
                vector[int(field)] = float(value)
        except (ValueError, IndexError) as error:
            raise LedgerError(f"sums of the Redis ledger are damaged: {error}; restore a copy") from error
        if not np.isfinite(vector).all():
            raise LedgerError("sums of the Redis ledger are damaged: not finite; restore a copy")
        return Sums(self._bins, vector)

    def dated(self, since: float, until: float, *, version: Version | None, kind: Kind | None) -> list[Dated]:
        """The sums of predictions made in [since, until), by slice and span; spans that lie inside whole."""

        def wanted(place: Place) -> bool:
            key, start, width = place
            inside = bool(width) and since <= start and start + width <= until
            return inside and version in (None, key.of) and kind in (None, key.kind)

        def names() -> dict[str, tuple[Place, str]]:
            found = {}
            for name in self._redis.zrangebyscore(f"{self._root}:spans", since, f"({until}"):
                model, of_version, of, slice_, start, width = json.loads(name)
                place = Place(Key(model, of_version, slice_, of), start, width)
                if wanted(place):
                    found[name.decode()] = (place, "")
            return found

        found: dict[Place, Sums] = {}
        for place, _, sums in self._kept(f"{self._root}:span:", names):
            if wanted(place):
                add_at(found, place, sums)
        return [Dated(*place, sums) for place, sums in sorted(found.items(), key=lambda one: one[0].start)]
