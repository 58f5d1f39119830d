"""The slices of a version in which a prediction counts; names are bounded, whatever clients invent."""

from __future__ import annotations

import math
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from calib_serve.receipts.batch import OTHER
from calib_serve.receipts.sums import Key, Kind, Version
from calib_serve.receipts.wire import Receipt

if TYPE_CHECKING:
    from calib_serve.artifact import Clause, Contract

_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

_SEEN = 100  # predictions after which a class can be said to be frequent


class Names:
    """The first ``most`` different names of each model version; safe to use from threads.

    ``known``: the keys of a version that are counted already, asked for when it first comes. ``share``: what
    share of all a name must have to get a slice of its own. ``only``: the names that may have one, whatever
    comes first.

    >>> names = Names(1)
    >>> [names.under(("digits", "1.0"), name) for name in ("north", "south", "north", "")]
    ['north', 'other', 'north', '']
    """

    def __init__(
        self,
        most: int,
        *,
        share: float = 0.0,
        known: Callable[[Version], Iterable[Key]] = lambda _: (),
        only: Iterable[str] | None = None,
    ) -> None:
        self.most, self._share, self._known = most, share, known
        self._only = None if only is None else frozenset(only)
        self._lock = threading.RLock()
        self._names: dict[Version, set[str]] = {}
        self._counts: dict[Version, Counter[str]] = {}

    def under(self, version: Version, name: str, *, most: int | None = None) -> str:
        """The slice to count ``name`` under: its own, or ``other`` once there are ``most``."""
        most = self.most if most is None else most
        if self._only is not None:
            return name if not name or name in self._only else OTHER
        with self._lock:
            names = self._names.get(version)
            if names is None:
                names = self._names[version] = {sys.intern(key.name) for key in self._known(version)}
            if not name or name in names:
                return name
            if len(names - {"", OTHER}) >= most or not self._frequent(version, name):
                return OTHER
            names.add(name)
        return name

    def _frequent(self, version: Version, name: str) -> bool:
        if not self._share:
            return True
        counts = self._counts.setdefault(version, Counter())
        counts[name] += 1
        total = counts.total()
        if total > 100 * _SEEN:  # halve what is remembered, so that it stays small and recent
            self._counts[version] = Counter({each: n // 2 for each, n in counts.items() if n > 1})
        return total >= _SEEN and counts[name] >= self._share * total


class Slices:
    """Finds the slices of a prediction: segment, predicted class and random group; of a label, its source.

    Args:
        counts: Number of classes of each model version.
        segments: Number of segments that a version may have before the rest are ``other``, or their names.
        classes: The same of predicted classes; where a version has more, the most served get a slice.
        known: From a version and kind to the slices that are counted already.
        contracts: Contract of each version whose clauses count predictions apart.

    >>> slices = Slices({("digits", "1.0"): 10})
    >>> [(key.kind, key.name) for key in slices.of("digits", "1.0", 7, segment="north", group=33)]
    [('segment', 'north'), ('class', '7'), ('group', '1')]
    """

    def __init__(
        self,
        counts: dict[Version, int],
        *,
        segments: int | Iterable[str] = 32,
        classes: int = 32,
        known: Callable[[Version, Kind], Iterable[Key]] = lambda _, __: (),
        contracts: Mapping[Version, Contract] | None = None,
    ) -> None:
        self._contracts = dict(contracts or {})
        self._clauses: dict[Version, dict[Clause, Key]] = {
            version: {one: Key(*version, one.id, "clause") for one in contract.clauses}
            for version, contract in self._contracts.items()
        }
        self._few = {version for version, count in counts.items() if count <= classes}
        self._made: dict[tuple[str, str, int, str], tuple[Key, ...]] = {}
        if isinstance(segments, int):
            self._segments = Names(segments, known=lambda version: known(version, "segment"))
        else:
            self._segments = Names(0, only=segments)
        # More sources of labels than 64 a version are ``other``.
        self._sources = Names(64, known=lambda version: known(version, "source"))
        self._classes = Names(classes, share=1 / (4 * classes), known=lambda version: known(version, "class"))

    def of(
        self,
        model: str,
        version: str,
        predicted: int,
        *,
        confidence: float = math.nan,
        segment: str = "",
        group: int = 0,
    ) -> tuple[Key, ...]:
        """The slices of a prediction, its segment's first.

        Args:
            model: Name of the model.
            version: Its version.
            predicted: Predicted class id.
            confidence: Top-1 confidence in [0, 1]; NaN: clauses are left out.
            segment: Segment of the traffic; empty: none.
            group: Number of its group (``group_number``); 0: none.
        """
        asked = (model, version, predicted, segment)
        keys = self._made.get(asked)
        if keys is None:
            of = (model, version)
            few, under = of in self._few, self._segments.under(of, segment)
            name = str(predicted) if few else self._classes.under(of, str(predicted))
            keys = (Key(*of, under), Key(*of, name, "class"))
            if few and under == segment:  # it has a name of its own for good
                if len(self._made) >= 20_000:
                    self._made.clear()
                self._made[asked] = keys
        keys = (*keys, *self._counting((model, version), predicted, confidence, segment))
        if not group:
            return keys
        # 32 random groups of them, from which variances are estimated (Wolter 2007, chapter 2).
        return (*keys, Key(model, version, str(group % 32), "group"))

    def _counting(self, of: Version, predicted: int, confidence: float, segment: str) -> tuple[Key, ...]:
        """The slices of the clauses that count a prediction."""
        if of not in self._contracts:
            return ()
        own, contract = self._clauses[of], self._contracts[of]
        return tuple(own[one] for one in contract.counts(confidence, predicted, segment))

    def of_label(self, receipt: Receipt, *, segment: str = "", source: str = "") -> tuple[Key, ...]:
        """The slices of a receipt's label.

        Clauses go by the receipt alone, as what was acted on did: a label takes no prediction out of a
        promise.

        Args:
            receipt: Verified receipt of the prediction.
            segment: Segment that the label names, for receipts that name none; labels alone take at most half
                of the places that segments have.
            source: Name of its sender, whose slice is among them; empty: not known.
        """
        of = (receipt.model, receipt.version)
        if not receipt.segment:  # whoever sends labels must not take the places of what is served
            segment = self._segments.under(of, segment, most=(self._segments.most + 1) // 2)
        keys = self.of(
            receipt.model,
            receipt.version,
            receipt.predicted,
            segment=receipt.segment or segment,
            group=receipt.group,
        )
        keys = (*keys, *self._counting(of, receipt.predicted, receipt.confidence, receipt.segment))
        if not source:
            return keys
        return (*keys, Key(*of, self._sources.under(of, source), "source"))


def is_source(name: str) -> bool:
    """Whether a source may have this name: up to 63 letters, digits, ``.``, ``_``, ``-``; not ``other``.

    >>> is_source("lab-2"), is_source("lab 2"), is_source("other")
    (True, False, False)
    """
    return bool(_SOURCE.fullmatch(name)) and name != OTHER
