"""Options of an audit of logs in files or a database."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from calib_serve.core.options.base import PYTHON, Tolerant, check
from calib_serve.core.options.evaluate import Binned

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Binned, Tolerant):
    """Options of ``audit``; in Python times are also datetimes, and ``every`` also seconds."""

    confidence_of: Any = None
    """The class that the confidences are of, whatever was predicted; without it the predicted class, which no
    confidence may contradict. predicted: the same unchecked, as where decisions are not by the likeliest."""
    outputs: Literal["probabilities", "percent", "log_probs"] | None = None
    """What confidences are; without it probabilities, or what the column's name says."""
    class_names: tuple[str, ...] | None = None
    """Names of all classes, in the order of their ids: logs then may have either."""
    ignore_label: tuple[str, ...] | None = None
    """Labels that mean no label, such as 255,NA."""
    by: tuple[str, ...] | None = None
    """Group by these columns; by default by model and version, where there are such."""
    since: Any = None
    """From this time on, with its zone: 2026-03-01T00:00:00Z."""
    until: Any = None
    """Before this time."""
    every: Any = None
    """Windows of this length: a number and s, m, h, d or w, such as 1d."""
    skip_invalid: bool = False
    """Count rows that cannot be measured and leave them out, instead of refusing the log."""
    missing: Literal["chance", "unknown"] = "chance"
    """Why labels are missing: chance, or unknown, where the outcome may decide whether one comes."""
    engine: str | None = None
    """The database of the tables, such as postgres://user@host/logs; CALIB_SERVE_ENGINE_PASSWORD has its
    password."""
    unique_ids: Annotated[bool, PYTHON] = False
    """Do not look for repeated ids, which takes longest; refused where one shows anyway."""

    def _check(self) -> None:
        check(self.bins <= 1000, "bins", f"must be 1000 or fewer, got {self.bins}")
        for option in ("since", "until"):
            _moment(option, getattr(self, option))
        check(self.seconds is None or self.seconds >= 1, "every", "must be a second or more")

    @property
    def begin(self) -> datetime | None:
        """The time of ``since``."""
        return _moment("since", self.since)

    @property
    def end(self) -> datetime | None:
        """The time of ``until``."""
        return _moment("until", self.until)

    @property
    def seconds(self) -> int | None:
        """The length of windows in seconds.

        >>> AuditOptions(every="36h").seconds, AuditOptions(every=60).seconds
        (129600, 60)
        """
        if not isinstance(self.every, str):
            return self.every  # type: ignore[no-any-return]  # a whole number of seconds, or none
        found = re.fullmatch(r"([1-9]\d{0,5})([smhdw])", self.every)
        told = f"is a number and one of s, m, h, d and w, such as 1d, got {self.every!r}"
        check(found is not None, "every", told)
        assert found is not None
        return int(found[1]) * _SECONDS[found[2]]


def _moment(option: str, value: Any) -> datetime | None:
    """A time with its zone.

    >>> _moment("since", "2026-03-01T00:00:00Z").timestamp()
    1772323200.0
    """
    if value is None:
        return None
    try:
        # Python 3.10 reads no Z.
        found = (
            value if isinstance(value, datetime) else datetime.fromisoformat(re.sub("[zZ]$", "+00:00", value))
        )
    except (ValueError, TypeError):
        found = None
    check(isinstance(found, datetime), option, f"is a time such as 2026-03-01T00:00:00Z, got {value!r}")
    assert found is not None
    zone = f"has no zone; write {found.isoformat()}Z if it is of UTC, got {value!r}"
    check(found.tzinfo is not None, option, zone)
    return found
