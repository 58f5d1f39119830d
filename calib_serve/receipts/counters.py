"""Counters of a model version's predictions, by bin, and the registries that publish them."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from calib_serve.core.errors import MissingDependency
from calib_serve.core.process import around_forks
from calib_serve.receipts.series import BY_NAME, PUBLISHED

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

SeriesKey = tuple[str, tuple[str, ...]]
"""A series: its name, and the values of its labels in their order."""

MOST_TO_ADD_UP = 100_000
"""Predictions that wait to be added up; beyond, the one that comes adds them up."""

_PREDICTIONS = tuple(one for one in PUBLISHED if one.of == "predictions")
_COUNTED = tuple(one.name for one in _PREDICTIONS)
_ERRORS = "calib_monitor_errors_total"

# A registry takes each family once; the reporters of several models share it.
_FAMILIES: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_LOCK = threading.RLock()


class Sink(Protocol):
    """Takes counts; ``add_all`` and ``failed`` may be called from any thread."""

    def add_all(self, changes: Mapping[SeriesKey, float]) -> None:
        """Add to counters."""

    def failed(self, *stages: str, times: int = 1) -> None:
        """Count failures of the monitoring itself; ``times=0`` starts their series."""
        self.add_all({(_ERRORS, (stage,)): times for stage in stages})


def zeros(names: Iterable[str], *, model: str, version: str, bins: int) -> dict[SeriesKey, float]:
    """Counters of a model version at 0, in every bin: PromQL drops a bin that was never seen.

    >>> zeros(["calib_invalid_outputs_total"], model="m", version="1", bins=15)
    {('calib_invalid_outputs_total', ('m', '1')): 0.0}
    """
    return {
        (name, (model, version, *place)): 0.0
        for name in names
        for place in ([(str(b),) for b in range(bins)] if "bin" in BY_NAME[name].labels else [()])
    }


class SeriesCounts:
    """Counts predictions of a model version into the declared series of ``sink``, by bin.

    As an ``Outbox``, it may be told of them from any thread, and never blocks.
    """

    def __init__(self, sink: Sink, *, model: str, version: str, bins: int) -> None:
        self._sink, self._of = sink, (model, version)
        self._inner = np.linspace(0, 1, bins + 1)[1:-1]
        self._waiting: deque[tuple[int, float]] = deque()
        sink.add_all(zeros(_COUNTED, model=model, version=version, bins=bins))

    def put(self, pairs: Sequence[tuple[int, float]], segments: Sequence[str] = ()) -> None:
        """Queue pairs; segments are dropped, as no series has one."""
        self._waiting.extend(pairs)
        if len(self._waiting) > MOST_TO_ADD_UP:
            self.settle()

    def settle(self) -> None:
        """Add up the queue, and hand the sums to the sink."""
        waiting = self._waiting
        taken = np.array([waiting.popleft()[1] for _ in range(len(waiting))], np.float64)
        at = np.searchsorted(self._inner, taken)
        changes: dict[SeriesKey, float] = {
            (one.name, (*self._of, str(b))): float(np.sum(one.adds(taken[at == b], 0, 1)))
            for b in np.unique(at).tolist()
            for one in _PREDICTIONS
        }
        if changes:
            self._sink.add_all(changes)

    def after_fork(self) -> None:
        """Drop the predictions that the parent process counts."""
        self._waiting = deque()


def sink_of(registry: CollectorRegistry | None, *, posts: bool) -> RegistrySink | LogSink:
    """Counters in the registry; a reporter that posts does without prometheus-client, by the log.

    Raises MissingDependency where its counters would be the only ones, or a registry is given.
    """
    try:
        return RegistrySink(registry)
    except MissingDependency:
        if registry is not None or not posts:
            raise
        return LogSink()


class LogSink(Sink):
    """Failures and invalid predictions in the log, each at most once a minute, with their number so far."""

    registry = None

    def __init__(self) -> None:
        self._totals, self._logged = dict[SeriesKey, float](), dict[SeriesKey, float]()

    def add_all(self, changes: Mapping[SeriesKey, float]) -> None:
        """Add to counts."""
        now = time.monotonic()
        for key, value in changes.items():
            if value:
                self._totals[key] = self._totals.get(key, 0) + value
                if now - self._logged.get(key, -math.inf) >= 60.0:  # seconds
                    self._logged[key] = now
                    log.warning("%s of %s: %g", key[0], ", ".join(key[1]), self._totals[key])


class RegistrySink(Sink):
    """Counters of prometheus-client in ``registry``; None: in the default registry of applications.

    They follow ``PROMETHEUS_MULTIPROC_DIR``, as all counters of that library.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            import prometheus_client  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise MissingDependency("prometheus_client", "watch") from error
        self._library = prometheus_client
        self.registry = prometheus_client.REGISTRY if registry is None else registry
        with _LOCK:
            self._families = _FAMILIES.setdefault(self.registry, {})
        self._waiting, self._turn = deque[Mapping[SeriesKey, float]](), threading.Lock()
        around_forks(self)

    def add_all(self, changes: Mapping[SeriesKey, float]) -> None:
        """Add to counters; a signal's handler that comes between leaves it to what it interrupts."""
        self._waiting.append(changes)
        # Never waited for: the library's own locks would be, by a handler, for ever.
        while self._waiting and self._turn.acquire(blocking=False):
            try:
                while self._waiting:
                    for (name, labels), value in self._waiting.popleft().items():
                        self._family(name).labels(*labels).inc(value)
            finally:
                self._turn.release()

    def after_in_child(self) -> None:
        """Let go of what another thread of the parent process held."""
        self._waiting, self._turn = deque(), threading.Lock()

    def set_all(self, values: Mapping[SeriesKey, float]) -> None:
        """Set gauges."""
        for (name, labels), value in values.items():
            self._family(name).labels(*labels).set(value)

    def _family(self, name: str) -> Any:
        found = self._families.get(name)  # without the lock, which a fork may leave held
        return self._made(name) if found is None else found

    def _made(self, name: str) -> Any:
        with _LOCK:
            if name not in self._families:
                one = BY_NAME[name]
                options: dict[str, Any] = {"labelnames": one.labels, "registry": self.registry}
                if one.kind == "counter":
                    made: Any = self._library.Counter(name, one.help, **options)
                else:
                    made = self._library.Gauge(name, one.help, **options, multiprocess_mode="mostrecent")
                self._families[name] = made
            return self._families[name]
