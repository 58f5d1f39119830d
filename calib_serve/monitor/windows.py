"""Windows of prediction time: the predictions served in them, and their labels so far.

A window holds whole spans of the ledger, which are five minutes wide for two days, an hour for five weeks,
and a day beyond that. Over all time it also holds what the ledger counted before it kept spans.

Windows, verdicts and the drift detector leave out predictions whose labels are still coming: where wrong
ones are told sooner than right ones, the newest labels of a calibrated model look wrong. How long labels take
is learned from their delays, or given. It is an assumption about what has not come: predictions that all have
their labels, up to a time, are mature at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.core.names import parse_duration
from calib_serve.ledger import SPANS, Ledger, Spans, WindowSums
from calib_serve.metrics import TOLERANCE, Verdict
from calib_serve.monitor.estimates import Estimates, estimate
from calib_serve.monitor.live_verdict import judge_estimates
from calib_serve.receipts import DAY, DELAYS, Key, Kind, Sums, Version

WINDOWS: Mapping[str, float] = {
    "5m": 300.0,
    "1h": 3600.0,
    "24h": DAY,
    "7d": 7 * DAY,
    "30d": 30 * DAY,
    "all": math.inf,
}
"""The windows by name, in seconds."""


@dataclass(frozen=True)
class Maturity:
    """The age in seconds at which predictions are mature, ``given`` or learned; infinity while unknown."""

    seconds: float
    given: bool

    @property
    def known(self) -> bool:
        """Whether any prediction can be mature."""
        return math.isfinite(self.seconds)


@dataclass(frozen=True)
class Delays:
    """The delay in seconds of as good as ``all`` labels: the upper end of a step of ``DELAYS``.

    ``known_at``: the time at which it can be known that these were not just the first ones, as far as one can
    tell today. NaN without labels.
    """

    all: float
    known_at: float

    @classmethod
    def of(cls, dated: Iterable[WindowSums], *, now: float) -> Delays:
        """Estimate delays from labels by time of prediction and delay.

        Young predictions have shown short delays only. So each step of the delay is judged by predictions old
        enough to have shown it: the product-limit estimate for right-truncated times (Lagakos, Barraj and De
        Gruttola 1988). It is known once predictions have shown a step longer than ``all``, in which no labels
        came: else most of them may be yet to come.
        """
        edges = np.asarray(DELAYS)
        at_step, up_to_step, every = np.zeros(len(edges)), np.zeros(len(edges)), np.zeros(len(edges) + 1)
        first = math.inf
        for _, start, width, sums in dated:
            delays = sums["calib_feedback_delay"]
            if delays.any():
                every += delays
                first = min(first, start + width)
                shown = edges <= now - (start + width)
                at_step += np.where(shown, delays[:-1], 0)
                up_to_step += np.where(shown, np.cumsum(delays[:-1]), 0)
        if not every.any():
            return cls(math.nan, math.nan)
        longest = int(np.flatnonzero(every)[-1])
        # P(delay <= step), from the longest step that any prediction could show downwards.
        stay = 1 - at_step / np.maximum(up_to_step, 1)
        below = np.append(np.cumprod(stay[::-1])[::-1][1:], 1.0)
        # A prediction is mature where 99 % of labels have come.
        step = int(np.argmax(below >= 0.99)) if up_to_step.any() else min(longest, len(edges) - 1)
        further = float(edges[step + 1]) if step + 1 < len(edges) else math.inf
        told = step + 1 < len(edges) and up_to_step[step + 1] >= 30  # labels to learn from
        known_at = first + further if told else max(first + further, math.nextafter(now, math.inf))
        return cls(float(edges[step]), known_at)


def duration(seconds: float) -> str:
    """A duration, in seconds and not negative, in the largest unit of which it holds at least two."""
    for unit, size in (("days", DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def learned_delay(dated: Iterable[WindowSums], *, now: float) -> float:
    """The seconds within which 99 % of the labels come; infinity while unknown (``Delays``)."""
    found = Delays.of(dated, now=now)
    return found.all if found.known_at <= now else math.inf


def parse_maturity(text: str | float | None) -> float | None:
    """Parse "0", "90s", "30m", "6h", "7d", or a number, into seconds; None for "auto".

    >>> parse_maturity("6h"), parse_maturity("auto")
    (21600.0, None)
    """
    if text is None or text == "auto":
        return None
    if not isinstance(text, str):
        return float(text)
    return parse_duration(text, what='a time, if not "auto",')


@dataclass(frozen=True)
class Window:
    """One version's sums in a window of prediction time.

    Args:
        version: Model and version.
        name: Name of the window.
        since: Its begin, in seconds since 1970.
        until: Its end, in seconds since 1970: predictions before it are mature, or labelled, each of them.
        maturity: Age at which predictions are mature without.
        bins: Number of bins of confidence.
        slices: Sums of the mature part, by slice.
        immature: Sums of later predictions and their labels.
        spans: Reads the sums of the version by span, for curves.
        mature: Time up to which spans are mature, in seconds since 1970; infinity: all that there are.
        tolerance: Largest mean gap that counts as calibrated, a fraction.
        provisional: Whether no mature label is in, so that it holds all that there are, up to now.
    """

    version: Version
    name: str
    since: float
    until: float
    maturity: Maturity
    bins: int
    slices: Mapping[Key, Sums]
    immature: Sums
    spans: Callable[[str], Spans]
    mature: float
    tolerance: float = TOLERANCE
    provisional: bool = False

    def steps(self, segment: str = "") -> list[tuple[float, float, Sums]]:
        """Start, width and sums of mature spans, oldest first, of the version or a segment of it."""
        return self.spans(segment).steps(self.since, self.mature, segment)

    @functools.cached_property
    def sums(self) -> Sums:
        """The sums of mature predictions of the whole version."""
        segments = [sums.vector for key, sums in self.slices.items() if key.kind == "segment"]
        return Sums(self.bins, np.add.reduce(segments)) if segments else Sums.zeros(self.bins)

    @functools.cached_property
    def estimates(self) -> Estimates:
        """The estimates of the whole version."""
        return self._kept(self.sums)[0]

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The verdict on the whole version."""
        return self.judged(self.sums)[1]

    def judged(self, sums: Sums) -> tuple[Estimates, Verdict]:
        """Estimates of sums of this window, and their verdict; labels that are not mature prove nothing.

        Args:
            sums: Those of the whole version or of a slice, which has no groups.
        """
        estimates, found = self._kept(sums)
        if not (self.provisional and estimates.labels):
            return estimates, found
        says = f"Provisional, as more labels may come: {found.headline[0].lower()}{found.headline[1:]}"
        late = (
            "Labels of these predictions are still coming, and wrong ones may be told sooner than right ones."
        )
        return estimates, Verdict("too_little", says, (late, *found.reasons))

    def _kept(self, sums: Sums) -> tuple[Estimates, Verdict]:
        groups = tuple(one.vector.tobytes() for one in self.groups) if sums is self.sums else ()
        return _kept(self.bins, sums.vector.tobytes(), groups, self.tolerance)

    @property
    def groups(self) -> list[Sums]:
        """The random groups of labels that name a group."""
        return [sums for key, sums in self.slices.items() if key.kind == "group"]

    def by_name(self, kind: Kind) -> dict[str, Sums]:
        """The sums of the named slices of one kind."""
        return {key.name: sums for key, sums in self.slices.items() if key.kind == kind and key.name}

    def split(self, seconds: float) -> tuple[Sums, Sums]:
        """The sums of the version before the last ``seconds``, and in them."""
        at = self.until - seconds
        spans = self.spans("")
        return spans.whole(self.since, at), spans.whole(max(at, self.since), self.mature)

    @property
    def immature_share(self) -> float:
        """The share of served predictions since the window began that is not mature yet; NaN of none."""
        young, old = float(self.immature.predictions.sum()), float(self.sums.predictions.sum())
        if not young + old:  # where predictions are not counted, labels are
            young, old = float(self.immature.labels.sum()), float(self.sums.labels.sum())
        return young / (young + old) if young + old else math.nan


# A look has some hundred slices, spans and windows, of which few changed since the last one.
@functools.lru_cache(maxsize=4096)
def _kept(bins: int, vector: bytes, groups: tuple[bytes, ...], tolerance: float) -> tuple[Estimates, Verdict]:
    """Estimates of sums and groups, and their verdict, as they were found when these were last seen."""
    sums, *parts = (Sums(bins, np.frombuffer(one)) for one in (vector, *groups))
    found = estimate(sums, groups=parts)
    return found, judge_estimates(found, tolerance=tolerance)


def read_windows(
    ledger: Ledger,
    version: Version,
    names: Collection[str],
    *,
    maturity: Maturity,
    now: float,
    provisional: bool = False,
    lengths: Mapping[str, float] = WINDOWS,
    tolerance: float = TOLERANCE,
) -> dict[str, Window]:
    """Read several windows by name, of one moment: the data of the longest is read once.

    ``provisional``: one without a mature label, while others have come or it is not known when labels are in,
    is of all that is there, up to now.
    ``lengths``: the windows that there are, in seconds.
    """
    for name in names:
        if name not in lengths:
            raise InputError(f"a window is one of {', '.join(lengths)}, got {name!r}")
    # A span counts when its last prediction is mature; without a wait, all that is there counts.
    mature = math.inf if not maturity.seconds else now - maturity.seconds

    def since(name: str, until: float) -> float:
        return _start_of_span((min(until, now) if maturity.known else now) - lengths[name], now=now)

    with ledger.moment() as moment:
        # Of all time, those that are not mature are enough: the rest is in the sums over all time.
        begins = [since(name, mature) for name in names]
        spans = moment.spans(version, min([x if math.isfinite(x) else mature - DAY for x in begins] or [now]))

    def window(name: str, until: float) -> Window:
        begin = since(name, until)
        return Window(
            version,
            name,
            begin,
            min(until, now),
            maturity,
            spans.bins,
            slices=_all_time(spans, until) if name == "all" else spans.slices(begin, until),
            immature=spans.whole(begin, until, young=True),
            spans=(lambda _: spans) if math.isfinite(begin) else functools.partial(_every, ledger, version),
            mature=until,
            tolerance=tolerance,
        )

    found = {}
    for name in names:
        found[name] = window(name, spans.labelled_until(since(name, mature), mature))
        come = found[name].immature.labels.any() or not maturity.known
        if provisional and come and not found[name].sums.labels.any():
            found[name] = replace(window(name, math.inf), provisional=True)
    return found


def _start_of_span(time: float, *, now: float) -> float:
    """The start of the span that holds ``time``: an hour of old spans would lie between two of them."""
    if not math.isfinite(time):
        return time
    width = next((width for width, most in SPANS if now - time <= most), DAY)
    return math.floor(time / width) * width


def _every(ledger: Ledger, version: Version, segment: str) -> Spans:
    with ledger.moment() as moment:
        return moment.spans(version, -math.inf, "segment") if segment else moment.together(version)


def _all_time(spans: Spans, until: float) -> dict[Key, Sums]:
    """Subtract young predictions from the sums over all time, which include spans long deleted."""
    young = spans.slices(-math.inf, until, young=True)
    return {key: sums - young[key] if key in young else sums for key, sums in spans.all_time().items()}
