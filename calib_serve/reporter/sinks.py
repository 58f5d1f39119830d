"""Where a reporter's counts go: a Prometheus registry."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calib_serve.errors import MissingDependency
from calib_serve.reporter.recorder import Key
from calib_serve.watch.series import SERIES, WORKERS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["RegistrySink"]

_BY_NAME = {one.name: one for one in (*SERIES, *WORKERS)}
_ERRORS = "calib_monitor_errors_total"

# A registry takes each family once; the reporters of several models share it.
_FAMILIES: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


class RegistrySink:
    """Counters of prometheus-client in ``registry``; None: the one that applications expose by default.

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

    def add_all(self, changes: Mapping[Key, float]) -> None:
        """Add to counters."""
        for (name, labels), value in changes.items():
            self._family(name).labels(*labels).inc(value)

    def failed(self, *stages: str, times: int = 1) -> None:
        """Count failures of the monitoring itself."""
        self.add_all({(_ERRORS, (stage,)): times for stage in stages})

    def set_all(self, values: Mapping[Key, float]) -> None:
        """Set gauges."""
        for (name, labels), value in values.items():
            self._family(name).labels(*labels).set(value)

    def _family(self, name: str) -> Any:
        found = self._families.get(name)  # without the lock, which a fork may leave held
        return self._made(name) if found is None else found

    def _made(self, name: str) -> Any:
        with _LOCK:
            if name not in self._families:
                one = _BY_NAME[name]
                options: dict[str, Any] = {"labelnames": one.labels, "registry": self.registry}
                if one.kind == "counter":
                    made: Any = self._library.Counter(name, one.help, **options)
                else:
                    made = self._library.Gauge(name, one.help, **options, multiprocess_mode="mostrecent")
                self._families[name] = made
            return self._families[name]
