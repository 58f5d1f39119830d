"""A watched deployment: predictions and labels in, series, alarms and verdicts out.

It joins the ledger, which counts for good, with what decides what is counted: the admission of predictions
and their tally, the intake of labels, the versions that are known, what waits for others, and label budgets.
The feed takes labels to drift detectors, contracts and shadows. The HTTP app is a thin layer over it, and so
may be any program that embeds it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError, LedgerError, Refused
from calib_serve.core.options.base import changed
from calib_serve.core.options.servers import WatchOptions
from calib_serve.ledger import Binding, Intake, Ledger, PredictionIds
from calib_serve.monitor.admission import Admission
from calib_serve.monitor.budgets import Budgets
from calib_serve.monitor.checks import (
    Check,
    Checks,
    counting_checks,
    file_check,
    samples_check,
)
from calib_serve.monitor.contracts.states import ClauseState, ContractFollower, contract_states
from calib_serve.monitor.drift.detector import Detector
from calib_serve.monitor.feed import DriftFeed
from calib_serve.monitor.held_versions import HeldVersions
from calib_serve.monitor.incidents import Incident
from calib_serve.monitor.shadow import ShadowFollower, ShadowState, shadow_states
from calib_serve.monitor.tally import Tally
from calib_serve.monitor.versions import FollowedVersions, KnownVersions, Watched
from calib_serve.monitor.windows import WINDOWS, Delays, Maturity, Window, parse_maturity, read_windows
from calib_serve.receipts import (
    DAY,
    Carried,
    Item,
    Keyring,
    LabelPolicy,
    LiveKeyring,
    Outcome,
    SampleLog,
    ServedPrediction,
    ServedSums,
    SignedReceipt,
    UnboundReceipt,
    Version,
    chances_of,
    draw_nonces,
    named_batch,
    nonces_of,
    noted_chances,
    parse_policy,
    signed,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import WatchKeywords


logger = logging.getLogger(__name__)


@dataclass
class _Counts:
    invalid: Counter[Version] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)

    def beside(self, stage: str, work: Callable[[], None]) -> None:
        """Run ``work``; its failure is counted and logged, and undoes nothing that was acknowledged."""
        try:
            work()
        except (LedgerError, OSError) as error:
            logger.error("%s: %s", stage, error)
            self.errors[stage] += 1


class Watch:
    """Counts predictions and labels of model versions and looks for drift; safe to use from threads.

    It is what counts, wherever it runs: in ``calib-serve watch``, in TorchServe's workers, in a Reporter.
    ``Watch.open`` makes one from files and starts it; this constructor takes what is open already.

    Nothing is acknowledged before the ledger holds it; LedgerError means that nothing of the batch was
    counted, and that it may be sent again; UnknownFate, that whether it was counted is not known: labels may
    be sent again all the same, and predictions under the same ``once``. ``start`` begins what is done beside:
    drift detectors are fed, checks made, samples written.

    Args:
        keyring: Keys that sign and verify receipts.
        ledger: Where everything is counted.
        models: What is watched, by (model, version).
        detector: Makes the drift detector of a model version; None: no detection.
        tolerance: Tolerance of verdicts, a fraction.
        ttl: Seconds after its prediction for which a label is accepted.
        maturity: Seconds after which labels are in; None: learned from their delays.
        policy: Makes a version's label policy; None: every label is wanted.
        segments: How many different segments a version may have before the rest are counted as ``other``, or
            their names.
        max_classes: Predicted classes that are counted apart.
        samples: Keeps a sample of logits and labels to refit on, of predictions that come with logits.
        follow: List of further versions, which is read while it runs.

    >>> import tempfile
    >>> from calib_serve import Keyring
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = f"{folder.name}/ledger.db"
    >>> with Watch.open({("digits", "1.0"): 10}, keyring=Keyring.new(), ledger=ledger) as watch:
    ...     (receipt,) = watch.predictions([ServedPrediction("digits", "1.0", predicted=7, confidence=0.9)])
    ...     outcomes = watch.labels([{"receipt": receipt, "label": 7}] * 2)
    >>> [(outcome.accepted, outcome.reason) for outcome in outcomes]
    [(True, None), (False, 'duplicate')]
    >>> folder.cleanup()
    """

    def __init__(
        self,
        keyring: Keyring | LiveKeyring,
        ledger: Ledger,
        *,
        models: Mapping[Version, Watched],
        detector: Callable[[], Detector] | None = Detector,
        tolerance: float = WatchOptions.tolerance,
        ttl: float = WatchOptions.ttl_days * DAY,
        maturity: float | None = None,
        policy: Callable[[], LabelPolicy] | None = None,
        segments: int | Sequence[str] = int(WatchOptions.segments),
        max_classes: int = 32,
        samples: SampleLog | None = None,
        follow: FollowedVersions | None = None,
    ) -> None:
        if not models and follow is None:
            raise InputError("no model to watch; give at least one model and version, or what to follow")
        self.keyring, self.ledger, self.samples = keyring, ledger, samples
        self.counts = _Counts()
        if isinstance(keyring, LiveKeyring):
            keyring.failed = lambda: self.counts.errors.update(["keyring"])
        self._clock = ledger.time.now
        self._tolerance = tolerance or WatchOptions.tolerance  # a detector may have none, a verdict not
        self._lock, self.ids = threading.RLock(), PredictionIds(ledger)
        self._contracts = ContractFollower(ledger)
        self.feed = DriftFeed(
            ledger,
            detector=detector,
            maturity=maturity,
            followers=[self._contracts, ShadowFollower(ledger)],
        )
        self.intake = Intake(
            keyring,
            ledger,
            models={},
            ttl=ttl,
            detect=detector is not None or follow is not None or any(w.contract for w in models.values()),
            ids=self.ids,
            hold=True,
        )
        self.models: dict[Version, Watched] = {}
        self._known = KnownVersions(ledger, models, follow)
        self._admission = Admission(keyring, ledger, ttl=ttl, invalid=self.counts.invalid)
        self._tally = Tally(ledger, segments=segments, classes=max_classes)
        self._budgets = Budgets(policy, ledger)
        self.held = HeldVersions(
            ledger,
            self.intake,
            count=lambda some: self._tally.sums(
                one for one in some if self._admission.wrong_sums(one) is None
            ),
            errors=self.counts.errors,
        )
        # Once here: counting may begin before the feed's thread, and needs the versions and their budgets.
        self.refresh_versions()
        self._budgets.observe()
        self.feed.also(self.refresh_versions, every=2.0)
        self.feed.also(self._budgets.observe, every=600.0)
        self.feed.also(self.held.give_up, every=600.0)
        options = {
            "--maturity": "auto" if maturity is None else f"{maturity:g}s",
            "--segments": str(segments) if isinstance(segments, int) else ",".join(sorted(segments)),
        }
        self.checks = Checks(
            *counting_checks(
                ledger,
                self.intake,
                program=f"process {os.getpid()}",
                ttl=ttl,
                given=lambda: {**options, **_facts(self.models)},
            ),
            Check("drift", self.feed.wrong),
            *([file_check("keyring", keyring)] if isinstance(keyring, LiveKeyring) else []),
            *([samples_check(samples)] if samples is not None else []),
            Check("versions", self._check_versions),
        )

    @classmethod
    def open(
        cls,
        models: Mapping[Version, Artifact | str | Path | int | Watched],
        options: WatchOptions | None = None,
        **keywords: Unpack[WatchKeywords],
    ) -> Watch:
        """Open files as a watch and start it; close it, or use it as a context manager.

        Options, keyring, models and samples are validated before the ledger is opened.

        Args:
            models: By (model, version), an artifact, its folder, or the number of classes.
            options: A ``WatchOptions``; keywords replace its fields.
            **keywords: Fields of ``WatchOptions``; see ``FollowedVersions`` for ``follow``: ``arl``,
                ``block``, ``keyring``, ``label_budget``, ``ledger``, ``maturity``, ``sample_days``,
                ``sample_rate``, ``samples``, ``segments``, ``tolerance``, ``ttl_days``.

        Raises:
            InputError: For models and options that cannot be right; KeyringError, ArtifactError and
                LedgerError for files that cannot be used.
        """
        options = changed(options or WatchOptions(), keywords, cls.open)
        ring, samples, policy = options.keyring, options.samples, options.label_budget or None
        if isinstance(policy, str):
            parse_policy(policy)
            policy = functools.partial(parse_policy, policy)
        maturity, segments = parse_maturity(options.maturity), options.most_segments
        if isinstance(ring, (str, Path)):
            ring = LiveKeyring(ring)
        watched = {v: of if isinstance(of, Watched) else Watched.of(of) for v, of in models.items()}
        if isinstance(samples, (str, Path)):
            samples = SampleLog(samples, rate=options.sample_rate, days=options.sample_days)
        ttl = options.ttl_days * DAY
        with contextlib.ExitStack() as on_error:
            book = Ledger(str(options.ledger), retention=ttl)
            on_error.callback(book.close)
            watch = cls(
                ring,
                book,
                models=watched,
                detector=functools.partial(
                    Detector,
                    arl=options.arl,
                    tolerance=options.tolerance,
                    block=options.block,
                    bins=book.bins,
                ),
                tolerance=options.tolerance,
                ttl=ttl,
                maturity=maturity,
                policy=policy,
                segments=segments,
                samples=samples,
                follow=None if options.follow is None else FollowedVersions(options.follow),
            )
            watch.start()
            on_error.pop_all()
        return watch

    def start(self) -> None:
        """Start the background threads; LedgerError where nothing may be acknowledged."""
        # Before anything is acknowledged: a check that would soon refuse labels refuses the start.
        self.checks.run()
        self.may_acknowledge()
        self.feed.start()
        self.checks.start()
        if self.samples is not None:
            self.samples.start()

    def register_version(self, version: Version, facts: Mapping[str, Any]) -> None:
        """Register another version: here at once, and with all on this ledger.

        Args:
            version: (model, version).
            facts: Its classes, names and contract, as ``Watched.of_facts`` reads them.

        Raises:
            InputError: Where facts are none, or others than this program was started with.
        """
        self._known.register(version, facts)
        try:
            self.refresh_versions()
        except LedgerError as error:  # it is registered, and the next refresh counts what waits
            logger.error("%s %s is named; what waits for it is counted later: %s", *version, error)

    def refresh_versions(self) -> None:
        """Look for newly registered versions, and count the predictions and labels that wait for them."""
        known = self._known.by_now()
        if known != self.models:
            self._set_models(known)
        self.held.release(self.models)

    def _set_models(self, models: Mapping[Version, Watched]) -> None:
        with self._lock:
            slices = self._tally.know(models)
            self._contracts.contracts = {v: w.contract for v, w in models.items() if w.contract is not None}
            self.intake.set_versions({v: watched.classes for v, watched in models.items()}, slices)
            self._budgets.know(models)
            self.models = self._admission.models = dict(models)

    def _check_versions(self) -> None:
        # Raised, not returned: names of files and models are not for everybody.
        for one in (self._known, self.held, self._tally):
            one.check()

    def label_policy(self, version: Version) -> LabelPolicy | None:
        """Return the policy by which a reporter of this process draws; None: every label is wanted."""
        return self._budgets.drawn_by(version)

    def close(self) -> None:
        """Close the ledger and write the samples that wait."""
        # Threads first: their last step still writes to the ledger.
        self.feed.stop()
        self.checks.stop()
        self.ledger.close()
        if self.samples is not None:
            self.samples.close()

    @property
    def sample_rate(self) -> float:
        """Return the share of predictions whose logits are kept, 0 of none."""
        return 0.0 if self.samples is None else self.samples.rate

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def predictions(
        self, items: Sequence[Item], *, once: bytes | None = None, source: str = ""
    ) -> list[SignedReceipt | Refused]:
        """Count served predictions; a signed receipt for each, or why it was not counted.

        One that comes with its receipt, a ``ServedReceipt``, is counted as that says, and gets no other. It
        counts once in a batch, and again in each further one.

        Args:
            items: Predictions to sign, receipts of signed ones, or refusals, which are returned.
            once: Name of the batch: one that the same ``source`` sends again under it is counted once. Its
                receipts are then the same ones, so that the label of a prediction counts once as well, and is
                wanted or not as before.
            source: Who sent them, such as the name of a token; ids are of each source its own.

        Raises:
            ConflictError: Where another batch was sent under ``once``; nothing is counted.
        """
        self.may_acknowledge()
        now = self._clock()
        found = self._admission.admit(items, now=now)
        self.held.refuse_without_room(found, self.models)
        places = [i for i, one in enumerate(found) if isinstance(one, ServedPrediction)]
        good = [one for one in found if isinstance(one, ServedPrediction)]
        came = [one for one in found if isinstance(one, Carried)]
        # Receipts say when they were made; one dated ahead of this clock opens no span of the future.
        made = now if good or not came else min(now, max(one.time for one in came))
        whole = [*good, *(one.item for one in came)]
        models = self.models  # of one moment: what becomes known meanwhile is held all the same
        known = [one for one in whole if (one.model, one.version) in models]
        of_others = ((one.item.model, one.item.version) for one in came)
        self._budgets.note_signed(version for version in of_others if version in models)
        chances = chances_of(found, self._budgets.policies)
        sums = self._tally.sums(map(ServedSums.of, known))
        batch = None if once is None else named_batch(once, items, chances, source=source, time=now)
        # Held and counted predictions of a batch are stored together, or not at all.
        with self.ledger.transaction() if len(known) < len(whole) else contextlib.nullcontext():
            fresh = self.ledger.add(sums, time=made, once=batch)
            if batch is None:
                nonces = draw_nonces(len(good))
            else:
                batch = batch if fresh else self.ledger.known(batch) or batch
                now, chances = batch.time, noted_chances(batch, len(found))
                # Derived, not drawn: a batch that comes again gets the same receipts.
                nonces = nonces_of(repr((batch.name, batch.content, now)), places)
            told = [*zip(good, nonces, repeat(now)), *((one.item, one.nonce, one.time) for one in came)]
            if fresh:  # what waited may be counted by now, and would be again
                self.held.hold(
                    [
                        (nonce.hex(), ServedSums.of(one), min(at, now))
                        for one, nonce, at in told
                        if (one.model, one.version) not in models
                    ]
                )
        if samples := self.samples:
            self.counts.beside("samples", lambda: _sample(samples, told))
        ring, own = self.keyring.current(), [chances[i] for i in places]
        receipts = signed(good, nonces, own, ring=ring, time=now)
        answers = [
            one if isinstance(one, Refused) else one.receipt if isinstance(one, Carried) else next(receipts)
            for one in found
        ]
        return self._bound(found, answers, source)

    def served(
        self, sums: Sequence[ServedSums], *, time: float, once: bytes, source: str = ""
    ) -> list[Refused | None]:
        """Count predictions that were summed, and whose receipts were signed, by their servers.

        Args:
            sums: Sums of predictions of one class, segment and bin of confidence.
            time: When they were made, about; seconds since 1970.
            once: Name of the batch, as in ``predictions``.
            source: Who sent them.

        Returns:
            For each why it was not counted, or None.
        """
        self.may_acknowledge()
        now = self._clock()
        found: list[ServedSums | Refused] = [self._admission.wrong_sums(one) or one for one in sums]
        self.held.refuse_without_room(found, self.models)
        sound, models = [one for one in found if isinstance(one, ServedSums)], self.models
        known = [one for one in sound if (one.model, one.version) in models]
        self._budgets.note_signed((one.model, one.version) for one in known)
        batch = named_batch(once, sums, (), source=source, time=now)
        made = min(time, now)
        added = self._tally.sums(known)
        with self.ledger.transaction() if len(known) < len(sound) else contextlib.nullcontext():
            fresh = self.ledger.add(added, time=made, once=batch)
            if fresh:
                self.held.hold(
                    [
                        (f"{batch.name.hex()}/{i}", one, made)
                        for i, one in enumerate(sound)
                        if (one.model, one.version) not in models
                    ]
                )
        return [one if isinstance(one, Refused) else None for one in found]

    def labels(
        self, items: Sequence[object], *, source: str | Sequence[str] = "", ids_of: str | None = None
    ) -> list[Outcome]:
        """Count late labels, once each.

        Args:
            items: Mappings with "receipt" or "id", "label", and optionally "by", "segment", "model" and
                "replaces": true where it counts in the place of another label.
            source: Who sent them, such as the name of a token; or who sent each.
            ids_of: ``source`` of the predictions that an "id" may name; None: of any.
        """
        self.may_acknowledge()
        taken = self.intake.take(items, source=source, ids_of=ids_of)
        if samples := self.samples:
            pairs = {version for version, one in self.models.items() if one.classes.pairs}
            whole = [one for one in taken.counted if (one.receipt.model, one.receipt.version) not in pairs]
            self.counts.beside("samples", lambda: samples.labelled(whole))
        return taken.outcomes

    def may_acknowledge(self) -> None:
        """Raise LedgerError while a check refuses that anything is acknowledged."""
        if (reason := self.checks.refused) is not None:
            raise LedgerError(f"{reason}; nothing is counted until then")

    def incidents(self) -> list[Incident]:
        """Return the latest drift incidents, oldest first."""
        return self.feed.incidents.latest()

    def close_incident(self, number: int, *, by: str, note: str = "") -> Incident:
        """Close an open incident by hand.

        Args:
            number: Number of the incident.
            by: Who closes it.
            note: Why, in words.

        Raises:
            InputError: If there is none of that number.
        """
        return self.feed.incidents.close(number, by=by, note=note, now=self._clock())

    def traffic(self) -> dict[Version, int]:
        """Predictions of each version in the latest hour of a week in which any were served."""
        week = self._clock() - WINDOWS["7d"]
        with self.ledger.moment() as moment:
            served = {version: moment.spans(version, week).served(week) for version in moment.numbers}
        last = max((starts[-1] for starts, _ in served.values() if len(starts)), default=math.inf)
        found = {v: int(count[starts > last - WINDOWS["1h"]].sum()) for v, (starts, count) in served.items()}
        return {version: count for version, count in found.items() if count}

    def window(self, version: Version, name: str = "24h", *, provisional: bool = True) -> Window:
        """Return the predictions of a model version in a window of time, with their labels.

        Args:
            version: (model, version).
            name: Window of ``WINDOWS``.
            provisional: Whether all labels that have come count while none is mature; the window says so.
        """
        return self.windows(version, [name], provisional=provisional)[name]

    def windows(
        self, version: Version, names: Collection[str], *, provisional: bool = True
    ) -> dict[str, Window]:
        """The windows of these names, of one moment.

        Args:
            version: (model, version).
            names: Windows of ``WINDOWS``.
            provisional: Whether all labels that have come count while none is mature.
        """
        return read_windows(
            self.ledger,
            version,
            names,
            maturity=self.feed.maturity(version),
            now=self._clock(),
            provisional=provisional,
            tolerance=self._tolerance,
        )

    def windows_until_now(self, version: Version, names: Collection[str]) -> dict[str, Window]:
        """The windows of these names with all predictions up to now, mature or not.

        Args:
            version: (model, version).
            names: Windows of ``WINDOWS``.
        """
        at_once = Maturity(0.0, given=True)
        return read_windows(self.ledger, version, names, maturity=at_once, now=self._clock())

    def delays(self, version: Version) -> Delays:
        """Return how late the labels of a model version came so far."""
        now = self._clock()
        with self.ledger.moment() as moment:
            return Delays.of(moment.together(version).dated(-math.inf, now, "segment"), now=now)

    def contract_states(self, version: Version) -> list[ClauseState]:
        """The state of each clause of the version's contract, in order; none where it has none."""
        contract = self._contracts.contracts.get(version)
        if contract is None:
            return []
        maturity = self.feed.maturity(version)
        return contract_states(self.ledger, version, contract, maturity=maturity, now=self._clock())

    def shadow_states(self, version: Version) -> list[ShadowState]:
        """The state of each shadow that ran beside a model version."""
        return shadow_states(self.ledger, version)

    def _bound(
        self,
        items: Sequence[ServedPrediction | Carried | Refused],
        told: list[SignedReceipt | Refused],
        source: str,
    ) -> list[SignedReceipt | Refused]:
        """Bind the ids of counted predictions to their receipts; a receipt without its id says so."""
        named: dict[int, Binding] = {}
        for i, (one, receipt) in enumerate(zip(items, told, strict=True)):
            item = one.item if isinstance(one, Carried) else one
            if isinstance(item, ServedPrediction) and item.id and isinstance(receipt, SignedReceipt):
                named[i] = Binding(item.model, item.id, receipt)
        bound = [False] * len(named)

        def bind() -> None:
            bound[:] = self.ids.bind(list(named.values()), source=source, now=self._clock())

        if named:
            self.counts.beside("ids", bind)
        for i, is_bound in zip(named, bound, strict=True):
            receipt = told[i]
            if not is_bound and isinstance(receipt, SignedReceipt):
                told[i] = UnboundReceipt(receipt)
        return told


def _sample(samples: SampleLog, served: Sequence[tuple[ServedPrediction, bytes, float]]) -> None:
    """Write a sample of the predictions that came with logits."""
    by_version: dict[tuple[Version, int], list[tuple[bytes, float, tuple[float, ...]]]] = {}
    for item, nonce, made in served:
        if item.logits is not None:
            key = ((item.model, item.version), len(item.logits))
            by_version.setdefault(key, []).append((nonce, made, item.logits))
    for ((model, version), _), rows in by_version.items():
        nonces, times, logits = zip(*rows, strict=True)
        samples.predicted(model, version, nonces, logits, times=times)


def _facts(models: Mapping[Version, Watched]) -> dict[str, str]:
    """The facts of versions that all programs on the ledger should share, as any may take a label."""
    found = {}
    for (model, version), watched in models.items():
        classes, contract, of = watched.classes, watched.contract, f"of {model} {version}"
        found[f"classes {of}"] = f"{classes.count}{' decisions' if classes.pairs else ''}"
        if classes.names:  # who has none refuses labels by name
            found[f"class names {of}"] = _digest(classes.names)
        found[f"contract {of}"] = "none" if contract is None else _digest(contract.facts)
    return found


def _digest(facts: object) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
