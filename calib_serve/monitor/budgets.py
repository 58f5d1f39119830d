"""The label budget of each version: which of its labels are asked for."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable

from calib_serve.ledger import Ledger
from calib_serve.receipts import DAY, LabelPolicy, Version, merge_slices

log = logging.getLogger(__name__)


class Budgets:
    """A label policy, made by ``make``, for each version; without ``make`` every label is wanted."""

    def __init__(self, make: Callable[[], LabelPolicy] | None, ledger: Ledger) -> None:
        self._make, self._ledger, self._lock = make, ledger, threading.Lock()
        self._drawn = set[Version]()
        self.policies: dict[Version, LabelPolicy] = {}

    def know(self, versions: Iterable[Version]) -> None:
        """Have a policy for each of these versions."""
        if self._make is not None:
            with self._lock:  # others may read it: never changed in place
                all_of = (*versions, *self.policies)
                self.policies = {v: self.policies.get(v) or self._make() for v in all_of}

    def drawn_by(self, version: Version) -> LabelPolicy | None:
        """The policy by which a reporter of this process draws; None: every label is wanted."""
        self._drawn.add(version)
        self.know([version])
        return self.policies.get(version)

    def note_signed(self, versions: Iterable[Version]) -> None:
        """Warn once a version whose receipts others sign: they must have the label budget."""
        for version in () if self._make is None else {*versions} - self._drawn:
            self._drawn.add(version)
            log.warning(
                "%s %s: the label budget is not of predictions which others sign: give it to their reporter "
                "(policy=) or gateway (--label-budget)",
                *version,
            )

    def observe(self) -> None:
        """Update budgets with the counts of the last day, with which a new process begins."""
        now = self._ledger.time.now()
        for version, policy in self.policies.items():
            dated = list(self._ledger.dated(now - DAY, math.inf, version=version, kind="segment"))
            if dated:
                whole = merge_slices((one.key, one.sums) for one in dated)[version]
                policy.observe(whole, seconds=max(now - min(one.start for one in dated), 1.0))
