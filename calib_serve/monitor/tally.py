"""Predictions summed by slice: segment, predicted class, and clauses of contracts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError
from calib_serve.ledger import Ledger
from calib_serve.monitor.checks import TOLD_FOR
from calib_serve.monitor.versions import Watched
from calib_serve.receipts import Key, ServedSums, Slices, Sums, Version

_SERVED = ("calib_predictions_total", "calib_predictions_confidence_total")


class Tally:
    """Sums predictions of the versions that are known by now (``know``).

    ``segments``: how many different ones a version may have before the rest are ``other``, or their names;
    ``classes``: predicted classes that are counted apart.
    """

    def __init__(self, ledger: Ledger, *, segments: int | Sequence[str], classes: int) -> None:
        self._ledger, self._segments, self._classes = ledger, segments, classes
        self._divided: dict[Version, float] = {}

    def know(self, models: Mapping[Version, Watched]) -> Slices:
        """Count these versions from now on; return the slices in which their labels count as well."""
        self._contracts = {v: w.contract for v, w in models.items() if w.contract is not None}
        self._slices = Slices(
            {version: watched.classes.count for version, watched in models.items()},
            segments=self._segments,
            classes=self._classes,
            known=lambda version, kind: self._ledger.slices(kind, version=version),
            contracts=self._contracts,
        )
        return self._slices

    def sums(self, served: Iterable[ServedSums]) -> dict[Key, Sums]:
        """The sums of predictions by slice; random groups are of labels only."""
        found: dict[Key, dict[tuple[str, int], float]] = {}
        all_of = list(served)
        bins = bin_index([one.high for one in all_of], bins=self._ledger.bins).tolist()
        for one, where in zip(all_of, bins, strict=True):
            for key in self._keys(one):
                values = found.setdefault(key, {})
                for name, more in zip(_SERVED, (one.count, one.confidence), strict=True):
                    values[name, where] = values.get((name, where), 0.0) + more
        zeros = Sums.zeros(self._ledger.bins)
        return {key: zeros.with_values(values) for key, values in found.items()}

    def _keys(self, one: ServedSums) -> Sequence[Key]:
        """The slices of predictions; a clause counts them where both ends of their confidences fulfil it."""
        of = (one.model, one.version, one.predicted)
        keys = self._slices.of(*of, confidence=one.low, segment=one.segment)
        if one.low == one.high or (one.model, one.version) not in self._contracts:
            return keys
        # A clause has one threshold: where both ends fulfil it, all confidences between do.
        upper = self._slices.of(*of, confidence=one.high, segment=one.segment)
        # A reporter with our contract keeps separate sums on either side of a clause's threshold.
        if any(key.kind == "clause" for key in {*keys} ^ {*upper}):
            self._divided[one.model, one.version] = self._ledger.time.now()
        return [key for key in keys if key in upper]

    def check(self) -> None:
        """Raise InputError where a reporter has not the contract that is here."""
        for (model, version), at in list(self._divided.items()):
            if self._ledger.time.now() - at < TOLD_FOR:
                raise InputError(
                    f"a reporter adds predictions of {model} {version} up over a threshold of the contract "
                    "here, whose clause misses them: start it with the artifact that has this contract"
                )
