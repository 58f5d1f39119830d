"""A watched deployment: predictions and labels in, series, alarms and verdicts out.

It joins the ledger (what is counted for good), the intake (what may be counted), the label policy (what is
asked for) and the drift detectors. The HTTP app is a thin layer over it, and so may be any program that
embeds it.
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.artifact import Artifact
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import InputError, LedgerError, Refused
from calib_serve.core.options.base import changed
from calib_serve.core.options.servers import DriftOptions, WatchOptions
from calib_serve.ledger import Binding, Held, Intake, Ledger, PredictionIds
from calib_serve.monitor.checks import (
    TOLD_FOR,
    Check,
    Checks,
    counting_checks,
    file_check,
    samples_check,
)
from calib_serve.monitor.contracts import ClauseState, ContractFollower, contract_states
from calib_serve.monitor.drift.detector import TOLERANCE, Detector
from calib_serve.monitor.feed import DriftFeed
from calib_serve.monitor.incidents import Incident
from calib_serve.monitor.priors import TrafficShares, traffic_shares
from calib_serve.monitor.shadow import ShadowFollower, ShadowState, shadow_states
from calib_serve.monitor.versions import FollowedVersions, Watched, read_facts
from calib_serve.monitor.windows import WINDOWS, Delays, Maturity, Window, parse_maturity, read_windows
from calib_serve.receipts import (
    DAY,
    LONGEST_ID,
    LONGEST_SEGMENT,
    TAG,
    Carried,
    Item,
    Key,
    Keyring,
    LabelPolicy,
    LiveKeyring,
    Outcome,
    SampleLog,
    ServedPrediction,
    ServedSums,
    Shadow,
    SignedReceipt,
    Slices,
    Sums,
    UnboundReceipt,
    Version,
    carried,
    chances_of,
    draw_nonces,
    is_id,
    is_segment,
    merge_slices,
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

_OBSERVE_EVERY = 600.0  # seconds between looks of label budgets at what was served
_RELEASED = 5_000  # waiting items that are counted in one transaction, so that others wait for no more
_SERVED = ("calib_predictions_total", "calib_predictions_confidence_total")
_SEGMENT = f"a segment is a text of at most {LONGEST_SEGMENT} characters"


def _digest(facts: object) -> str:
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class _Counts:
    invalid: Counter[Version] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


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
        follow: File or folder of further versions, which is read while it runs.

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
        tolerance: float = TOLERANCE,
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
            keyring.failed = self._keyring_failed
        self._clock, self._ttl = ledger.time.now, ttl
        self._tolerance = tolerance or TOLERANCE  # a detector may have none, a verdict not
        self._policy, self._drawn = policy, set[Version]()
        self._segments, self._max_classes = segments, max_classes
        self._lock = threading.RLock()
        self.ids = PredictionIds(ledger)
        self._contracts = ContractFollower(ledger, {})
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
        self._given, self._follow = dict(models), follow
        self._facts, self._registered = dict[Version, str](), dict[Version, Watched]()
        self._divided: dict[Version, float] = {}
        self.models: dict[Version, Watched] = {}
        self.policies: dict[Version, LabelPolicy] = {}
        # Once here: counting may begin before the feed's thread, and needs the versions and their budgets.
        self.refresh_versions()
        self._observe_served()
        self.feed.also(self.refresh_versions, every=2.0)
        self.feed.also(self._observe_served, every=_OBSERVE_EVERY)
        self.feed.also(self.give_up_held, every=_OBSERVE_EVERY)
        self.checks = Checks(
            *counting_checks(
                ledger,
                self.intake,
                program=f"process {os.getpid()}",
                ttl=ttl,
                given=lambda: self._shared(maturity),
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
        drift = DriftOptions(arl=options.arl, tolerance=options.tolerance, block=options.block)
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
                detector=functools.partial(Detector, drift, bins=book.bins),
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
        self._check_registered(version, Watched.of_facts(facts), facts)
        self.ledger.register_version(version, json.dumps(dict(facts)))
        try:
            self.refresh_versions()
        except LedgerError as error:  # it is registered, and the next refresh counts what waits
            logger.error("%s %s is named; what waits for it is counted later: %s", *version, error)

    def _check_registered(self, version: Version, told: Watched, facts: Mapping[str, Any]) -> None:
        followed = {} if self._follow is None else self._follow.current()
        known = {**followed, **self._given}.get(version)
        other = [] if known is None else [name for name in known.unlike(told) if name in facts]
        if other:
            model, name = version
            raise InputError(
                f"{model} {name} is given here with other {other[0]}: change what this was started with"
            )

    def _shared(self, maturity: float | None) -> dict[str, str]:
        """The options that all programs on the ledger should share, as any of them may take a label."""
        segments = self._segments if isinstance(self._segments, int) else ",".join(sorted(self._segments))
        given = {
            "--maturity": "auto" if maturity is None else f"{maturity:g}s",
            "--segments": str(segments),
        }
        for (model, version), watched in self.models.items():
            classes, contract, of = watched.classes, watched.contract, f"of {model} {version}"
            given[f"classes {of}"] = f"{classes.count}{' decisions' if classes.pairs else ''}"
            if classes.names:  # who has none refuses labels by name
                given[f"class names {of}"] = _digest(classes.names)
            given[f"contract {of}"] = "none" if contract is None else _digest(contract.facts)
        return given

    def refresh_versions(self) -> None:
        """Look for newly registered versions, and count the predictions and labels that wait for them."""
        facts = self.ledger.versions()
        if facts != self._facts:  # read once: one that cannot be used is logged once
            self._facts, self._registered = facts, read_facts(facts)
        followed = {} if self._follow is None else self._follow.changed()
        known = {**self._registered, **followed, **self._given}
        if known != self.models:
            self._apply_versions(known)
        for version in self.ledger.held():
            release = functools.partial(self._released, version)
            while version in self.models and self.ledger.database.again(release) == _RELEASED:
                pass

    def give_up_held(self) -> None:
        """Drop predictions and labels that waited a day for their version; the loss is counted and logged."""
        lost: Counter[Version] = Counter()
        for row in self.ledger.drop_held():
            served = [] if row.kind == "label" else json.loads(row.content)["served"]
            lost[row.version] += ServedSums(*row.version, *served).count if served else 1
        for (model, version), n in lost.items():
            self.counts.errors["held"] += n
            logger.error(
                "%d predictions and labels of %s %s are lost: nobody told of it for a day", n, model, version
            )

    def _check_versions(self) -> None:
        """Raise InputError where items wait for an unknown version, or the list of versions is not readable.

        And where a reporter has not the contract that is here.

        It is raised, as names of files and models are not for everybody.
        """
        followed = {} if self._follow is None else self._follow.current()
        if self._follow is not None and (why := self._follow.trouble()):
            raise InputError(why)
        for (model, version), own in self._given.items():
            if other := own.unlike(followed.get((model, version), own)):
                raise InputError(
                    f"{model} {version} is followed with other {other[0]} than this was started with, and "
                    "the latter count: give it once"
                )
        for (model, version), n in self.ledger.held().items():
            raise InputError(
                f"{n} predictions and labels of {model} {version} wait for a day: tell of it, or name it"
            )
        for (model, version), at in list(self._divided.items()):
            if self._clock() - at < TOLD_FOR:
                raise InputError(
                    f"a reporter adds predictions of {model} {version} up over a threshold of the contract "
                    "here, whose clause misses them: start it with the artifact that has this contract"
                )

    def set_versions(self, models: Mapping[Version, Watched]) -> None:
        """Count predictions and labels of these versions from now on, in place of those given before.

        Args:
            models: What is watched, by (model, version).
        """
        self._given = dict(models)
        self.refresh_versions()

    def _apply_versions(self, models: Mapping[Version, Watched]) -> None:
        with self._lock:
            contracts = {v: w.contract for v, w in models.items() if w.contract is not None}
            counts = {version: watched.classes.count for version, watched in models.items()}
            self._slices = Slices(
                counts,
                segments=self._segments,
                classes=self._max_classes,
                known=lambda version, kind: self.ledger.slices(kind, version=version),
                contracts=contracts,
            )
            self._contracts.contracts = contracts
            self.intake.set_versions({v: watched.classes for v, watched in models.items()}, self._slices)
            if self._policy is not None:
                all_of = (*models, *self.policies)
                self.policies = {v: self.policies.get(v) or self._policy() for v in all_of}
            self.models = dict(models)

    def label_policy(self, version: Version) -> LabelPolicy | None:
        """Return the policy by which a reporter of this process draws; None: every label is wanted.

        Args:
            version: (model, version).
        """
        if self._policy is None:
            return None
        with self._lock:
            self._drawn.add(version)
            if version not in self.policies:  # others may read it: never changed in place
                self.policies = {**self.policies, version: self._policy()}
            return self.policies[version]

    def _note_signed(self, versions: Iterable[Version]) -> None:
        """Warn once a version whose receipts others sign: they must have the label budget."""
        for version in () if self._policy is None else {*versions} - self._drawn:
            self._drawn.add(version)
            logger.warning(
                "%s %s: the label budget is not of predictions which others sign: give it to their reporter "
                "(policy=) or gateway (--label-budget)",
                *version,
            )

    def _released(self, version: Version) -> int:
        """Count some of the items that wait for a version, when they came; return their number."""
        with self.ledger.transaction():
            # Taken out and counted in one transaction: a crash leaves it waiting.
            rows = self.ledger.take_held(version, most=_RELEASED)
            told = [json.loads(row.content) for row in rows]
            of_labels = [i for i, row in enumerate(rows) if row.kind == "label"]
            served: dict[float, list[ServedSums]] = defaultdict(list)
            for row, one in zip(rows, told, strict=True):
                if row.kind == "prediction":
                    served[one["time"]].append(ServedSums(*version, *one["served"]))
            # All labels, then all sums, each sorted by its key: several who count at once wait in one order.
            self.intake.take(
                [told[i] for i in of_labels],
                source=[rows[i].source for i in of_labels],
                at=[rows[i].came_at for i in of_labels],
            )
            self.ledger.add_dated(
                (self._sums(one for one in some if self._wrong_sums(one) is None), time)
                for time, some in served.items()
            )
        return len(rows)

    def _refuse_without_room(self, found: list[Any]) -> None:
        """Refuse, in place, predictions of unknown versions where too many wait already."""
        items = {i: _item(one) for i, one in enumerate(found) if not isinstance(one, Refused)}
        unknown = {i: one for i, one in items.items() if (one.model, one.version) not in self.models}
        if unknown and not self.intake.has_room(len(unknown)):
            for i, one in unknown.items():
                told = f"no model {one.model!r} version {one.version!r} here, and too much waits for others"
                found[i] = Refused("unknown_version", told)

    def _hold(self, served: Sequence[tuple[str, ServedSums, float]]) -> None:
        """Store predictions until their versions are known, each with its name and time."""
        now = self._clock()
        self.ledger.hold(
            [
                Held("prediction", name, (one.model, one.version), _content(one, made), "", now)
                for name, one, made in served
            ]
        )

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
        found = _each_once([self._admit(one, now) for one in items])
        self._refuse_without_room(found)
        places = [i for i, one in enumerate(found) if isinstance(one, ServedPrediction)]
        good = [one for one in found if isinstance(one, ServedPrediction)]
        came = [one for one in found if isinstance(one, Carried)]
        # Receipts say when they were made; one dated ahead of this clock opens no span of the future.
        made = now if good or not came else min(now, max(one.time for one in came))
        whole = [*good, *(one.item for one in came)]
        models = self.models  # of one moment: what becomes known meanwhile is held all the same
        known = [one for one in whole if (one.model, one.version) in models]
        of_others = ((one.item.model, one.item.version) for one in came)
        self._note_signed(version for version in of_others if version in models)
        chances, sums = chances_of(found, self.policies), self._sums(map(ServedSums.of, known))
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
                self._hold(
                    [
                        (nonce.hex(), ServedSums.of(one), min(at, now))
                        for one, nonce, at in told
                        if (one.model, one.version) not in models
                    ]
                )
        self._beside("samples", lambda: self._sample(told))
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
        found: list[ServedSums | Refused] = [self._wrong_sums(one) or one for one in sums]
        self._refuse_without_room(found)
        sound, models = [one for one in found if isinstance(one, ServedSums)], self.models
        known = [one for one in sound if (one.model, one.version) in models]
        self._note_signed((one.model, one.version) for one in known)
        batch = named_batch(once, sums, (), source=source, time=now)
        made = min(time, now)
        added = self._sums(known)
        with self.ledger.transaction() if len(known) < len(sound) else contextlib.nullcontext():
            fresh = self.ledger.add(added, time=made, once=batch)
            if fresh:
                self._hold(
                    [
                        (f"{batch.name.hex()}/{i}", one, made)
                        for i, one in enumerate(sound)
                        if (one.model, one.version) not in models
                    ]
                )
        return [one if isinstance(one, Refused) else None for one in found]

    def _wrong_sums(self, one: ServedSums) -> Refused | None:
        """The refusal of invalid sums, or None."""
        bins = self.ledger.bins
        sound = 0 <= one.low <= one.high <= 1 and one.count > 0
        # A sum of many terms is off by as many roundings: 280,000 times 0.8 by 1e-6.
        if not sound or not one.low - 1e-6 <= one.confidence / one.count <= one.high + 1e-6:
            self.counts.invalid[one.model, one.version] += 1
            return Refused("malformed", "confidences lie in [0, 1], and their sum between their ends")
        if len(set(bin_index([one.low, one.high], bins=bins).tolist())) > 1:
            return Refused("malformed", f"low and high lie in one of {bins} bins")
        return self._refusal(ServedPrediction(one.model, one.version, one.predicted, one.high, one.segment))

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
            self._beside("samples", lambda: samples.labelled(whole))
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
        self, version: Version, names: Iterable[str], *, provisional: bool = True
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

    def windows_until_now(self, version: Version, names: Iterable[str]) -> dict[str, Window]:
        """The windows of these names with all predictions up to now, mature or not.

        Args:
            version: (model, version).
            names: Windows of ``WINDOWS``.
        """
        at_once = Maturity(0.0, given=True)
        return read_windows(self.ledger, version, names, maturity=at_once, now=self._clock())

    def delays(self, version: Version) -> Delays:
        """Return how late the labels of a model version came so far.

        Args:
            version: (model, version).
        """
        now = self._clock()
        with self.ledger.moment() as moment:
            return Delays.of(moment.together(version).dated(-math.inf, now, "segment"), now=now)

    def contract_states(self, version: Version) -> list[ClauseState]:
        """The state of each clause of the version's contract, in order; none where it has none.

        Args:
            version: (model, version).
        """
        contract = self._contracts.contracts.get(version)
        if contract is None:
            return []
        maturity = self.feed.maturity(version)
        return contract_states(self.ledger, version, contract, maturity=maturity, now=self._clock())

    def shadow_states(self, version: Version) -> list[ShadowState]:
        """The state of each shadow that ran beside a model version.

        Args:
            version: (model, version).
        """
        return shadow_states(self.ledger, version)

    def class_shares(self, version: Version, name: str = "24h") -> TrafficShares:
        """Return the class shares of the predictions in a window that ends now.

        Labels are counted, and the rest is estimated without them.

        Args:
            version: (model, version).
            name: Window of ``WINDOWS``.

        Raises:
            InputError: For a version that is not watched.
        """
        watched = self.models.get(version)
        if watched is None:
            raise InputError(f"no model {version[0]!r} version {version[1]!r} here")
        if watched.before.confusion is None:
            return TrafficShares(version, name, None, (), watched.before.unknown)
        mature = served = self.windows_until_now(version, [name])[name]
        if self.feed.maturity(version).seconds:
            mature = self.window(version, name, provisional=False)
        return traffic_shares(served, mature, watched.before, tuple(watched.classes.names))

    def _admit(self, item: Item, now: float) -> ServedPrediction | Carried | Refused:
        if isinstance(item, Refused):
            return item
        if isinstance(item, ServedPrediction):
            return self._refusal(item) or item
        try:
            found = carried(
                item, self.keyring.verify(item.receipt, now=now, ttl=self._ttl + self.ledger.time.lag)
            )
        except Refused as refusal:
            return refusal
        return self._refusal(found.item) or found

    def _refusal(self, item: ServedPrediction) -> Refused | None:  # noqa: PLR0911  a list of reasons
        """The refusal of a prediction, or None."""
        version = (item.model, item.version)
        watched = self.models.get(version)
        if not 0 <= item.confidence <= 1:
            self.counts.invalid[version] += 1
            return Refused("malformed", f"confidence must be in [0, 1], got {item.confidence}")
        if watched is None:  # held until it is known
            return None if is_segment(item.segment) else Refused("malformed", _SEGMENT)
        if not 0 <= item.predicted < watched.classes.count:
            return Refused(
                "malformed", f"predicted must be in [0, {watched.classes.count}), got {item.predicted}"
            )
        if not is_segment(item.segment):
            return Refused("malformed", _SEGMENT)
        if item.shadow is not None and (wrong := _wrong_shadow(item.shadow, watched.classes.count)):
            return Refused("malformed", wrong)
        if item.id and not is_id(item.id):
            return Refused("malformed", f"an id is a text of 1 to {LONGEST_ID} characters")
        logits = 0 if watched.classes.pairs else watched.classes.count
        if item.logits is not None and len(item.logits) != logits:
            none = "; of a multi-label model none are kept" if watched.classes.pairs else ""
            return Refused("malformed", f"logits must be {logits}, got {len(item.logits)}{none}")
        return None

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
            self._beside("ids", bind)
        for i, is_bound in zip(named, bound, strict=True):
            receipt = told[i]
            if not is_bound and isinstance(receipt, SignedReceipt):
                told[i] = UnboundReceipt(receipt)
        return told

    def _beside(self, stage: str, work: Callable[[], None]) -> None:
        """Run ``work``; its failure is counted and logged, and undoes nothing that was acknowledged."""
        try:
            work()
        except (LedgerError, OSError) as error:
            logger.error("%s: %s", stage, error)
            self.counts.errors[stage] += 1

    def _keyring_failed(self) -> None:
        self.counts.errors["keyring"] += 1

    def _sample(self, served: Sequence[tuple[ServedPrediction, bytes, float]]) -> None:
        if self.samples is None:
            return
        by_version: dict[tuple[Version, int], list[tuple[bytes, float, tuple[float, ...]]]] = {}
        for item, nonce, made in served:
            if item.logits is not None:
                key = ((item.model, item.version), len(item.logits))
                by_version.setdefault(key, []).append((nonce, made, item.logits))
        for ((model, version), _), rows in by_version.items():
            nonces, times, logits = zip(*rows, strict=True)
            self.samples.predicted(model, version, nonces, logits, times=times)

    def _sums(self, served: Iterable[ServedSums]) -> dict[Key, Sums]:
        """The sums of predictions by slice; random groups are of labels only."""
        found: dict[Key, dict[tuple[str, int], float]] = {}
        all_of = list(served)
        bins = bin_index([one.high for one in all_of], bins=self.ledger.bins).tolist()
        for one, where in zip(all_of, bins, strict=True):
            for key in self._keys(one):
                values = found.setdefault(key, {})
                for name, more in zip(_SERVED, (one.count, one.confidence), strict=True):
                    values[name, where] = values.get((name, where), 0.0) + more
        zeros = Sums.zeros(self.ledger.bins)
        return {key: zeros.with_values(values) for key, values in found.items()}

    def _keys(self, one: ServedSums) -> Sequence[Key]:
        """The slices of predictions; a clause counts them where both ends of their confidences fulfil it."""
        of = (one.model, one.version, one.predicted)
        keys = self._slices.of(*of, confidence=one.low, segment=one.segment)
        if one.low == one.high or (one.model, one.version) not in self._contracts.contracts:
            return keys
        # A clause has one threshold: where both ends fulfil it, all confidences between do.
        upper = self._slices.of(*of, confidence=one.high, segment=one.segment)
        # A reporter with our contract keeps separate sums on either side of a clause's threshold.
        if any(key.kind == "clause" for key in {*keys} ^ {*upper}):
            self._divided[one.model, one.version] = self._clock()
        return [key for key in keys if key in upper]

    def _observe_served(self) -> None:
        """Update budgets with the counts of the last day, with which a new process begins."""
        now = self._clock()
        for version, policy in self.policies.items():
            dated = list(self.ledger.dated(now - DAY, math.inf, version=version, kind="segment"))
            if dated:
                whole = merge_slices((one.key, one.sums) for one in dated)[version]
                policy.observe(whole, seconds=max(now - min(one.start for one in dated), 1.0))


def _each_once(
    found: Sequence[ServedPrediction | Carried | Refused],
) -> list[ServedPrediction | Carried | Refused]:
    """Refuse receipts that were in the batch before."""
    seen = set[bytes]()
    told: list[ServedPrediction | Carried | Refused] = []
    for one in found:
        again = isinstance(one, Carried) and one.nonce in seen
        told.append(Refused("duplicate", "the receipt is in this batch already") if again else one)
        if isinstance(one, Carried):
            seen.add(one.nonce)
    return told


def _item(one: ServedPrediction | ServedSums | Carried) -> ServedPrediction | ServedSums:
    return one.item if isinstance(one, Carried) else one


def _content(one: ServedSums, made: float) -> str:
    """The stored form of predictions whose version is not known."""
    _, _, *numbers = astuple(one)
    return json.dumps({"served": numbers, "time": made})


def _wrong_shadow(shadow: Shadow, classes: int) -> str:
    """The reason why a receipt may not hold this shadow; empty if it may."""
    if not 0 <= shadow.confidence <= 1:
        return f"the shadow's confidence must be in [0, 1], got {shadow.confidence}"
    if not 0 <= shadow.predicted < classes:
        return f"the shadow's predicted must be in [0, {classes}), got {shadow.predicted}"
    return "" if len(shadow.tag) == TAG else f"the shadow's tag must be {TAG} bytes, got {len(shadow.tag)}"
