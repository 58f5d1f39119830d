"""Predictions and labels of versions that nobody told of: held for a day, and counted when somebody does."""

from __future__ import annotations

import functools
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import astuple
from typing import Any

from calib_serve.core.errors import InputError, Refused
from calib_serve.ledger import Held, Intake, Ledger
from calib_serve.monitor.feed import ITEMS_A_TRANSACTION
from calib_serve.receipts import Carried, Key, ServedSums, Sums, Version

log = logging.getLogger(__name__)


class HeldVersions:
    """Holds what is served of unknown versions; labels of these the intake holds.

    ``count`` sums predictions by slice once their version is known; ``errors["held"]`` counts what was lost.
    """

    def __init__(
        self,
        ledger: Ledger,
        intake: Intake,
        *,
        count: Callable[[Iterable[ServedSums]], dict[Key, Sums]],
        errors: Counter[str],
    ) -> None:
        self._ledger, self._intake, self._count, self._errors = ledger, intake, count, errors

    def refuse_without_room(self, found: list[Any], models: Collection[Version]) -> None:
        """Refuse, in place, predictions of unknown versions where too many wait already."""
        items = {i: _item(one) for i, one in enumerate(found) if not isinstance(one, Refused)}
        unknown = {i: one for i, one in items.items() if (one.model, one.version) not in models}
        if unknown and not self._intake.has_room(len(unknown)):
            for i, one in unknown.items():
                told = f"no model {one.model!r} version {one.version!r} here, and too much waits for others"
                found[i] = Refused("unknown_version", told)

    def hold(self, served: Sequence[tuple[str, ServedSums, float]]) -> None:
        """Store predictions until their versions are known, each with its name and time."""
        now = self._ledger.time.now()
        self._ledger.held.add(
            [
                Held("prediction", name, (one.model, one.version), _content(one, made), "", now)
                for name, one, made in served
            ]
        )

    def release(self, models: Collection[Version]) -> None:
        """Count what waits for versions that are known by now, as when it came."""
        for version in self._ledger.held.counts():
            release = functools.partial(self._released, version)
            while version in models and self._ledger.database.again(release):
                pass

    def _released(self, version: Version) -> bool:
        """Count some of the items that wait for a version; whether more may wait."""
        with self._ledger.transaction():
            # Taken out and counted in one transaction: a crash leaves it waiting.
            rows = self._ledger.held.take(version, most=ITEMS_A_TRANSACTION)
            told = [json.loads(row.content) for row in rows]
            of_labels = [i for i, row in enumerate(rows) if row.kind == "label"]
            served: dict[float, list[ServedSums]] = defaultdict(list)
            for row, one in zip(rows, told, strict=True):
                if row.kind == "prediction":
                    served[one["time"]].append(ServedSums(*version, *one["served"]))
            # All labels, then all sums, each sorted by its key: several who count at once wait in one order.
            self._intake.take(
                [told[i] for i in of_labels],
                source=[rows[i].source for i in of_labels],
                at=[rows[i].came_at for i in of_labels],
            )
            self._ledger.add_dated((self._count(some), time) for time, some in served.items())
        return len(rows) == ITEMS_A_TRANSACTION

    def give_up(self) -> None:
        """Drop what waited a day for its version; the loss is counted and logged."""
        lost: Counter[Version] = Counter()
        for row in self._ledger.held.drop_old():
            served = [] if row.kind == "label" else json.loads(row.content)["served"]
            lost[row.version] += ServedSums(*row.version, *served).count if served else 1
        for (model, version), n in lost.items():
            self._errors["held"] += n
            log.error(
                "%d predictions and labels of %s %s are lost: nobody told of it for a day", n, model, version
            )

    def check(self) -> None:
        """Raise InputError where anything waits for its version."""
        for (model, version), n in self._ledger.held.counts().items():
            raise InputError(
                f"{n} predictions and labels of {model} {version} wait for a day: tell of it, or name it"
            )


def _item(one: Any) -> Any:
    return one.item if isinstance(one, Carried) else one


def _content(one: ServedSums, made: float) -> str:
    """The stored form of predictions whose version is not known."""
    _, _, *numbers = astuple(one)
    return json.dumps({"served": numbers, "time": made})
