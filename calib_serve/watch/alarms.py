"""The latest drift alarms, kept in the ledger over restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from calib_serve.watch.drift import Alarm
from calib_serve.watch.ledger import Ledger, Version

__all__ = ["AlarmLog"]

_KEY = "watch/alarms"


class AlarmLog:
    """The last ``most`` alarms of all model versions."""

    def __init__(self, ledger: Ledger, *, most: int = 200, clock: Callable[[], float] = time.time) -> None:
        self.most, self._ledger, self._clock = most, ledger, clock

    def add(self, version: Version, alarm: Alarm) -> None:
        """Keep an alarm; LedgerError where the ledger cannot."""
        model, name = version
        said = {"model": model, "version": name, "at": self._clock(), **asdict(alarm)}
        with self._ledger.transaction():
            kept = [*self.latest(), said]
            self._ledger.store(_KEY, json.dumps(kept[-self.most :]).encode())

    def latest(self) -> list[dict[str, Any]]:
        """Oldest first: the fields of an ``Alarm``, its ``model`` and ``version``, and when (``at``)."""
        kept = self._ledger.load(_KEY)
        try:
            return [] if kept is None else list(json.loads(kept))
        except (ValueError, TypeError):
            return []  # damaged: the list starts again, and nothing is counted from it
