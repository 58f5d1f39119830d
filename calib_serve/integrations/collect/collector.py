"""A collector sends labels to the watch until each is settled: counted, refused, or a dead letter.

A label that is refused for something that may pass, such as an id that is not known yet, is held back and
tried again. A source is told that a piece is settled when all its labels are; whatever ends this process
before leads to labels that are sent again, which the watch counts once.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from calib_serve.core.errors import ServerError, Unanswered
from calib_serve.core.names import parse_duration
from calib_serve.core.options.base import changed
from calib_serve.core.options.label import CollectOptions
from calib_serve.integrations.collect.sending import of_batch, post_in_parts
from calib_serve.integrations.collect.source import DeadLetter, DeadLetters, Piece, Source
from calib_serve.receipts import in_batches, post_batch, row_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import CollectKeywords

log = logging.getLogger(__name__)

FOR_GOOD = frozenset({"duplicate", "not_wanted", "expired", "forgotten"})
"""Why a label is refused where nothing is left to do."""

LATER = frozenset({"unknown_id", "unknown_key", "unknown_version", "dated_ahead"})
"""Why a label is refused that may be counted later: its prediction, a key, a version or the time comes."""

_FIRST, _LONGEST = 1.0, 60.0  # seconds until a label that is held back is tried again
_IDLE = 1.0  # seconds to wait for more


@dataclass
class Totals:
    """Counts the fates of labels since this process began; safe to read at any time.

    Args:
        labels: By "accepted", "held" in the watch until their version is known, or the reason of the refusal
            that settled them.
        dead: Dead letters by reason.
        failures: By what failed, and was tried again.
        held: Labels that wait here to be tried again.
        sent_at: When the watch last answered, in seconds since 1970.
    """

    labels: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    held: int = 0
    sent_at: float = 0.0

    def __str__(self) -> str:
        """A summary for people."""
        taken = ("accepted", "held")
        refused = ", ".join(f"{n} {why}" for why, n in self.labels.most_common() if why not in taken)
        dead = ", ".join(f"{n} {why}" for why, n in self.dead.most_common())
        told = [f"{self.labels['accepted']} counted"]
        told += [f"{self.labels['held']} wait for their version to be watched"] * bool(self.labels["held"])
        told += [f"refused: {refused}"] * bool(refused) + [f"dead letters: {dead}"] * bool(dead)
        return "; ".join(told + [f"{self.held} wait"] * bool(self.held))


class _Item(NamedTuple):
    row: dict[str, Any]
    piece: Piece
    since: float | None = None  # when it was first refused
    pause: float = _FIRST


class _Stopped(Exception):
    pass


class Collector:
    """Sends labels of a source to a watch, and those that cannot be counted to the dead letters.

    A label that is held back for longer than ``wait`` is a dead letter. The source and the dead letters stay
    yours to close.

    Args:
        source: Where labels come from.
        url: Where labels are taken.
        dead: Where labels go that cannot be counted.
        options: A ``CollectOptions``; keywords replace its fields.
        token: Gives the bearer token, asked before each batch.
        most_held: Labels that are held back, beyond which nothing more is taken.
        stop: Set it to end.
        clock: Seconds that never go back.
        **keywords: Fields of ``CollectOptions``: ``batch``, ``by``, ``every``, ``id_column``,
            ``label_column``, ``receipt_column``, ``replaces``, ``settle``, ``state``, ``wait``.
    """

    def __init__(
        self,
        source: Source,
        url: str,
        dead: DeadLetters,
        options: CollectOptions | None = None,
        *,
        token: Callable[[], str] = str,
        most_held: int = 100_000,
        stop: threading.Event | None = None,
        clock: Callable[[], float] = time.monotonic,
        **keywords: Unpack[CollectKeywords],
    ) -> None:
        options = changed(options or CollectOptions(), keywords, Collector)
        wait = options.wait
        self._wait = parse_duration(wait, what="wait") if isinstance(wait, str) else float(wait)
        self.totals, self.sending = Totals(), False
        self._source, self._url, self._dead, self._token = source, url, dead, token
        self._batch, self._most_held, self._clock = options.batch, most_held, clock
        self._body = functools.partial(of_batch, options=options)
        self._stop = stop or threading.Event()
        self._held: list[tuple[float, int, _Item]] = []
        self._numbers = itertools.count()
        self._told = (clock(), "")

    def run(self, *, once: bool = False) -> Totals:
        """Collect until ``stop``.

        Args:
            once: Whether to end when every label at the source is settled.

        Raises:
            ServerError: Where what answers at the address is no watch.
        """
        try:
            while not self._stop.is_set():
                self._round()
                if once and not self._held and self._source.drained():
                    break
        except _Stopped:
            pass
        self._tell(at_once=True)
        return self.totals

    def _round(self) -> None:
        items = self._due()
        if len(self._held) < self._most_held:
            pieces = self._source.take(0.0 if items else self._idle())
            for piece in pieces:
                piece.stream.begin(piece.position, labels=len(piece.labels) + len(piece.dead))
            self._bury([(letter, piece) for piece in pieces for letter in piece.dead])
            items += [_Item(row, piece) for piece in pieces for row in piece.labels]
        elif not items:
            self._source.alive()
            self._stop.wait(self._idle())
        for batch in in_batches(items, lambda one: row_size(one.row), most=self._batch):
            self._settle(batch)
        self._source.commit()
        self._tell()

    def _idle(self) -> float:
        return min(_IDLE, max(self._held[0][0] - self._clock(), 0.0)) if self._held else _IDLE

    def _due(self) -> list[_Item]:
        """Take held labels whose time has come."""
        found: list[_Item] = []
        while self._held and self._held[0][0] <= self._clock() and len(found) < self._batch:
            found.append(heapq.heappop(self._held)[2])
        self.totals.held = len(self._held)
        return found

    def _settle(self, items: Sequence[_Item]) -> None:
        """Send labels, and settle or hold back each; labels of given-up streams are dropped."""
        items = [one for one in items if not one.piece.stream.given_up]
        if not items:
            return
        buried = []
        for item, outcome in zip(items, self._send([one.row for one in items]), strict=True):
            taken = "held" if outcome.get("held") else "accepted"
            reason = taken if outcome["accepted"] else str(outcome["reason"])
            if outcome["accepted"] or reason in FOR_GOOD:
                self.totals.labels[reason] += 1
                self._done(item.piece)
            elif reason in LATER and self._hold(item):
                pass
            else:
                told = str(outcome.get("message", ""))
                buried.append((DeadLetter(reason, told, item.piece.where, item=item.row), item.piece))
        self._bury(buried)

    def _hold(self, item: _Item) -> bool:
        """Hold a label back, unless its time is over."""
        now = self._clock()
        since = now if item.since is None else item.since
        if now - since >= self._wait:
            return False
        due = min(now + item.pause, since + self._wait)
        again = item._replace(since=since, pause=min(2 * item.pause, _LONGEST))
        heapq.heappush(self._held, (due, next(self._numbers), again))
        self.totals.held = len(self._held)
        return True

    def _done(self, piece: Piece) -> None:
        if not piece.stream.given_up:
            piece.stream.settle(piece.position)

    def _send(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        try:
            self.sending = True
            found = post_in_parts(self._post, rows)
        finally:
            self.sending = False
        self.totals.sent_at = time.time()
        return found

    def _post(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Post rows until the watch answers; return the outcome of each."""
        pause = _FIRST
        while True:
            try:
                # Tried for ever: labels are to be delivered, and there is nothing else to do with them.
                how: dict[str, Any] = {"tries": 10**9, "sleep": self._pause, "failed": self._failed}
                return post_batch(self._url, self._body(rows), token=self._token(), **how).items
            except Unanswered as error:  # a token that is not known, or no more
                self._failed(str(error))
                self._pause(pause)
                pause = min(2 * pause, _LONGEST)

    def _bury(self, letters: Sequence[tuple[DeadLetter, Piece]]) -> None:
        """Store dead letters, however long that takes: they settle their pieces."""
        pause = _FIRST
        while letters:
            try:
                self._dead.put([letter for letter, _ in letters])
                break
            except ServerError as error:
                self._failed(str(error), what="dead_letter")
                self._pause(pause)
                pause = min(2 * pause, _LONGEST)
        # After they are kept: a dead letter that is lost would be a label that is lost.
        for letter, piece in letters:
            self.totals.dead[letter.reason] += 1
            self._done(piece)

    def _failed(self, why: str, *, what: str = "watch") -> None:
        self.totals.failures[what] += 1
        log.warning("%s; it is tried again", why)

    def _pause(self, seconds: float) -> None:
        """Wait, and keep this process alive to the source."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            self._source.alive()
            if self._stop.wait(min(left, _IDLE)):
                raise _Stopped

    def stop(self) -> None:
        """Stop soon: labels sent but not answered are sent again by the next start."""
        self._stop.set()

    def interrupt(self) -> None:
        """Stop now, from a signal's handler: raises where a request waits for its answer."""
        if self.sending and self._stop.is_set():
            raise _Stopped

    def _tell(self, *, at_once: bool = False) -> None:
        at, before = self._told
        if (at_once or self._clock() - at > 60.0) and (told := str(self.totals)) != before:
            log.info("%s", told)
            self._told = (self._clock(), told)
