"""Bind the ids that requests name to the receipts of their predictions, in the host's ledger."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from calib_serve.errors import CalibServeError
from calib_serve.fuse.mar_options import LEDGER
from calib_serve.receipts import SignedReceipt
from calib_serve.reporter.recorder import Tag

if TYPE_CHECKING:
    from calib_serve.watch.ids import Binding, PredictionIds

__all__ = ["IdWriter"]

log = logging.getLogger(__name__)

_MOST = 100_000  # ids that wait for the ledger
_AT_ONCE = 500
_PATIENCE = 0.25  # seconds that one prediction waits for a ledger which others write to


class IdWriter:
    """Binds the ids of one model's predictions in the ledger ``where``; None: there is none.

    An id is bound before its prediction is answered, so that its label may come at once. While the ledger is
    away predictions do not wait for it, and their ids do. ``failed`` is called with a number of ids that name
    no prediction, or cannot yet.
    """

    def __init__(self, where: str | None, *, model: str, failed: Callable[[int], None]) -> None:
        self._where, self._model, self._failed = where, model, failed
        self._waiting: deque[Binding] = deque()
        self._ids: PredictionIds | None = None
        self._said, self._away = False, False
        self._turn = threading.Lock()

    def put(self, tags: Sequence[Tag], receipts: Sequence[SignedReceipt | None]) -> None:
        """Bind the ids among ``tags``, with the next ``flush`` where the ledger was away at the last one."""
        from calib_serve.watch.ids import Binding, is_id  # noqa: PLC0415 - only where ids come

        named = [(tag.id, receipt) for tag, receipt in zip(tags, receipts, strict=True) if tag.id]
        if self._where is None and named and not self._said:
            self._said = True
            log.warning(
                "requests name ids, and %s names no ledger to keep them: labels need receipts", LEDGER
            )
        room = 0 if self._where is None else _MOST - len(self._waiting)
        made = [Binding(self._model, id, str(one)) for id, one in named if one is not None and is_id(id)]
        self._waiting.extend(made[:room])
        if lost := len(named) - len(made[:room]):
            self._failed(lost)
        if not self._away:
            self.flush()

    def flush(self) -> None:
        """Bind what waits, durable on return; it goes on to wait where the ledger fails."""
        with self._turn:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
            try:
                bound = self._opened().bind(some, now=time.time())
            except (CalibServeError, OSError) as error:
                log.error("ids cannot be kept yet: %s", error)
                self._waiting.extendleft(reversed(some))
                self._failed(len(some))
                self._away = True
                return
            self._away = False
            if lost := len(bound) - sum(bound):  # another prediction has the id
                self._failed(lost)

    def _opened(self) -> PredictionIds:
        if self._ids is None:
            from calib_serve.watch.ids import PredictionIds  # noqa: PLC0415 - SQLAlchemy takes a while
            from calib_serve.watch.ledger import Ledger  # noqa: PLC0415

            self._ids = PredictionIds(Ledger(str(self._where), timeout=_PATIENCE))
        return self._ids
