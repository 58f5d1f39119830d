r"""The loop without a person: drift, refit, shadow, promotion, and back again where a promise is broken.

Each call of ``Rounds.step`` does at most one step and writes it to the log; where a round stands is read
from the log and the server alone, so that another process goes on where one ended.

    drift -> refit -> shadow -> better -> promoted -> rolling back -> rolled back
                          \-> dropped        \-> drift of the promoted version: the next round
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from calib_serve.artifact import Artifact
from calib_serve.errors import CalibServeError, FitError, LedgerError, ServerError
from calib_serve.fuse.torchserve import recalibrated, served_artifact
from calib_serve.promotion.host import Host, Running
from calib_serve.promotion.judge import broken_promises, judged
from calib_serve.promotion.log import PromotionLog, Step
from calib_serve.promotion.swap import swap
from calib_serve.receipts import DAY
from calib_serve.watch.incidents import Incident, IncidentLog
from calib_serve.watch.ledger import Ledger
from calib_serve.watch.samples import read_samples
from calib_serve.workflows.refit import refit

__all__ = ["Limits", "Rounds", "next_version"]

_SWAPS = {
    "refit": ("shadow", "{new} is served, which is {old} with the refit as its shadow."),
    "better": ("promoted", "{new} is served, with the calibration that was the shadow of {old}."),
    "rolling back": ("rolled back", "{new} is served again."),
}
"""Steps that decide on a version to be served, what is written once it is, and why."""

_ENDS = ("rolled back", "dropped", "left", "stopped")
_STAGES = {*_SWAPS, *_ENDS, "shadow", "promoted"}
_MORE = 1.1  # times the samples of the last refit, before it is tried again
_LONGEST_REST = 600.0  # seconds between two tries of a step that fails


@dataclass(frozen=True)
class Limits:
    """When a round is given up, and when all are.

    ``tries`` of a step that fails, and rounds that come to nothing within ``within`` seconds, before a person
    must look. ``patience``: seconds in which the shadow must turn out better. ``probation``: seconds in which
    a broken contract takes a promotion back. ``rest``: seconds after a step that failed, doubled each time.
    ``unless_worse``: "no worse" is enough. ``method`` and ``alpha``: those of ``refit``.
    """

    tries: int = 3
    within: float = 7 * DAY
    patience: float = 30 * DAY
    probation: float = 30 * DAY
    rest: float = 10.0
    unless_worse: bool = False
    method: str = "auto"
    alpha: float = 0.05


class Rounds:
    """The rounds of one ``model`` on ``host``; ``samples``: the folder that its server keeps samples in."""

    def __init__(
        self,
        host: Host,
        model: str,
        log: PromotionLog,
        *,
        ledger: Ledger,
        samples: str | Path,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._host, self._model, self._log, self._ledger = host, model, log, ledger
        self._samples, self._limits, self._clock = Path(samples), limits or Limits(), clock
        self._tried: tuple[str, int] = ("", 0)

    def step(self) -> Step | None:
        """Do what is next; None where that is to wait. Raises LedgerError, ServerError: ask again."""
        steps = self._log.steps(self._model)
        last = next((one for one in reversed(steps) if one.step in _STAGES), None)
        served = self._host.default(self._model)
        if (ours := self._forgotten(served, steps)) is not None:
            why = f"{ours.version} is served again; the server had begun anew."
            return self._swapped(ours, steps, "restored", why, always=True)
        if (broken := self._watched(served, steps)) is not None:
            return broken
        if last is None or last.step in _ENDS:
            return self._drifted(served, steps, last)
        if served.version not in {last.version, last.facts["served"] if last.step in _SWAPS else None}:
            why = f"Somebody made {served.version} the default; this round is left as it is."
            return self._note("left", served.version, why)
        if last.step in _SWAPS:
            done, why = _SWAPS[last.step]
            told = why.format(new=last.version, old=last.facts["served"])
            return self._swapped(last, steps, done, told, always=last.step == "rolling back")
        return self._compared(last, served) if last.step == "shadow" else self._drifted(served, steps, last)

    def _forgotten(self, served: Running, steps: list[Step]) -> Step | None:
        """What was served by us, where the server has forgotten the version, as it does when it starts."""
        ours = [one for one in steps if one.step in ("shadow", "promoted", "rolled back", "left")]
        if not ours or ours[-1].step == "left" or ours[-1].version == served.version:
            return None
        last = next((one for one in reversed(steps) if one.step in _SWAPS), None)
        if last is not None and last.version == served.version:
            return None  # served, and not written down yet
        return None if ours[-1].version in self._host.versions(self._model) else ours[-1]

    def _note(self, step: str, version: str, reason: str, **facts: Any) -> Step:
        return self._log.add(Step(self._clock(), step, self._model, version, reason, facts))

    def _is_stopped(self, steps: Iterable[Step]) -> bool:
        begin = self._clock() - self._limits.within
        vain = [one for one in steps if one.step in ("dropped", "rolled back") and one.time > begin]
        return len(vain) >= self._limits.tries

    def _drifted(self, served: Running, steps: list[Step], last: Step | None) -> Step | None:
        found = IncidentLog(self._ledger).latest((self._model, served.version))
        incident = next((one for one in reversed(found) if one.open), None)
        if incident is None:
            return None
        if self._is_stopped(steps):
            if last is not None and last.step == "stopped":
                return None
            why = f"{self._limits.tries} rounds came to nothing; a person must look at the drift."
            return self._note("stopped", served.version, why)
        noted = any(
            one.step == "drift" and one.version == served.version and one.facts.get("incident") == incident.id
            for one in steps
        )
        if not noted:
            why = f"Incident {incident.id} is open: confidence and accuracy differ by {incident.gap:.3f}."
            return self._note("drift", served.version, why, incident=incident.id, onset=_since(incident))
        return self._refitted(served, incident)

    def _refitted(self, served: Running, incident: Incident) -> Step | None:
        """The calibration fitted again to what came since the drift, packed as a shadow of the served one."""
        source = self._host.store / served.archive
        current, _, version = served_artifact(source)
        found = read_samples(self._samples, model=self._model, version=version, since=_since(incident))
        if self._tried[0] == version and len(found.labels) < _MORE * self._tried[1]:
            return None
        self._tried = (version, len(found.labels))
        try:
            fitted = refit(
                current, found.logits, found.labels, method=self._limits.method, alpha=self._limits.alpha
            )
        except FitError:
            return None  # too few labels yet
        if fitted.artifact is None:
            return None
        new = self._next()
        kept = fitted.artifact.save(self._host.folder / "promotions" / f"{self._model}-{new}")
        archive = recalibrated(
            source, current, self._host.store, version=new, shadow=fitted.artifact, force=True
        )
        return self._note(
            "refit",
            new,
            f"A refit on {fitted.samples} labelled samples since the drift is better: NLL"
            f" {fitted.nll[0]:.4f} -> {fitted.nll[1]:.4f}. It is packed as a shadow.",
            served=version,
            archive=archive.name,
            shadow=fitted.artifact.fingerprint,
            artifact=str(kept),
            incident=incident.id,
            numbers=fitted.as_dict(),
        )

    def _compared(self, last: Step, served: Running) -> Step | None:
        told = judged(
            self._ledger,
            (self._model, last.version),
            str(last.facts["shadow"]),
            unless_worse=self._limits.unless_worse,
        )
        if told.promote:
            new, artifact = self._next(), Artifact.load(last.facts["artifact"])
            archive = recalibrated(
                self._host.store / served.archive, artifact, self._host.store, version=new, force=True
            )
            facts = {"served": served.version, "archive": archive.name, "archive_before": served.archive}
            return self._note("better", new, told.reason, **facts, numbers=told.numbers)
        if told.verdict == "worse":
            return self._note("dropped", last.version, told.reason, numbers=told.numbers)
        if self._clock() - last.time > self._limits.patience:
            why = f"{told.reason} It had {self._limits.patience / DAY:.3g} days."
            return self._note("dropped", last.version, why, numbers=told.numbers)
        return None

    def _watched(self, served: Running, steps: list[Step]) -> Step | None:
        """Back to the version before the last promotion, where its contract is broken, at any time."""
        turns = [one for one in steps if one.step in ("promoted", "rolling back", "left")]
        if not turns or turns[-1].step != "promoted":
            return None
        promoted = turns[-1]
        later = {one.version for one in steps[steps.index(promoted) :] if one.step in ("promoted", "shadow")}
        if served.version not in later or self._clock() - promoted.time > self._limits.probation:
            return None
        before = str(promoted.facts["served"])
        contract = served_artifact(self._host.store / served.archive)[0].contract
        for version in dict.fromkeys((promoted.version, served.version)):
            broken = broken_promises(
                self._ledger,
                (self._model, version),
                contract,
                before=(self._model, before),
                now=self._clock(),
            )
            if broken:
                why = f"{version} broke its contract, and {before} did not: {'; '.join(broken)}."
                archive = promoted.facts["archive_before"]
                return self._note("rolling back", before, why, served=served.version, archive=archive)
        return None

    def _swapped(
        self, last: Step, steps: list[Step], done: str, why: str, *, always: bool = False
    ) -> Step | None:
        """Swap, or give the round up after some tries; with ``always`` it is tried on and on."""
        failed = [one for one in steps[steps.index(last) :] if one.step == "failed"]
        if failed and len(failed) >= self._limits.tries and not always:
            return self._note("dropped", last.version, f"It could not be served: {failed[-1].reason}")
        rest = min(self._limits.rest * 2 ** (len(failed) - 1), _LONGEST_REST)
        if failed and self._clock() - failed[-1].time < rest:
            return None
        try:
            swap(self._host, self._host.store / str(last.facts["archive"]), self._log, clock=self._clock)
        except LedgerError:
            raise
        except (CalibServeError, httpx.HTTPError) as error:
            now = self._log.steps(self._model)
            if len(now) == len(steps) or now[-1].step != "failed":
                self._note("failed", last.version, str(error))
            return None
        return self._note(done, last.version, why, **last.facts)

    def _next(self) -> str:
        """A version that no receipt, archive or person has named."""
        try:
            listed = json.loads(self._host.models_file.read_text("utf-8"))
            known = {str(one["version"]) for one in listed if one["name"] == self._model}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServerError(
                f"the list of models {self._host.models_file} cannot be read: {error}"
            ) from error
        logged = {one.version for one in self._log.steps(self._model)}
        served = self._host.default(self._model).version
        return next_version(served, {*known, *logged, *self._host.versions(self._model)})


def next_version(served: str, taken: Iterable[str]) -> str:
    """The first free one of ``served`` with ``-p1``, ``-p2`` and so on behind it.

    >>> next_version("1.0-p1", {"1.0", "1.0-p1", "1.0-p2", "2.0"})
    '1.0-p3'
    """
    base = re.sub(r"-p\d+\Z", "", served)
    numbers = [int(one.rpartition("-p")[2]) for one in taken if re.fullmatch(re.escape(base) + r"-p\d+", one)]
    return f"{base}-p{max(numbers, default=0) + 1}"


def _since(incident: Incident) -> float:
    """When the drift began by its estimate, or was seen."""
    return incident.onset if incident.onset == incident.onset else incident.opened
