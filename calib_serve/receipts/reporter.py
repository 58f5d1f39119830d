"""Reporters: receipts and counts of predictions, for any Python process that serves a classifier."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import By
from calib_serve.receipts.background import Background
from calib_serve.receipts.batch import Outcome
from calib_serve.receipts.counters import RegistrySink, sink_of
from calib_serve.receipts.destination import LocalWatch, Served, destination_of
from calib_serve.receipts.environment import KEYRING
from calib_serve.receipts.inputs import (
    ReporterShadow,
    are_probabilities,
    array_of,
    each_of,
    ids_of,
    keyring_of,
    logits_in_shape,
    optional_artifact,
    tags_of,
)
from calib_serve.receipts.keyring import Keyring, LiveKeyring
from calib_serve.receipts.outbox import Outbox
from calib_serve.receipts.policy import LabelPolicy, parse_policy
from calib_serve.receipts.recorder import ROUNDING, LabelChoice, Recorder, count_choices
from calib_serve.receipts.wire import SignedReceipt, nonce_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from calib_serve.artifact import Artifact, Contract


_STAGES = ("scores", "segment", "logits", "ids", "queue", "watch", "refused", "lost", "spool")
_CHECKED = 100  # calls of which every row must be probabilities; later, one a second is looked at


class AnswerWords(Protocol):
    """Words of classes, and what reads an answer by them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes (K,)."""

    def read(self, response: Mapping[str, Any]) -> Any:
        """Read a response; its ``probs`` and ``logits`` are those of the classes (K,)."""


class Reporter:
    """Counts the predictions of one model version and signs their receipts; safe to use from threads.

    Predictions are counted in one place: by ``watch``, else in ``registry``. What goes to the watch every
    ``flush_seconds`` are sums by class, segment and confidence; predictions with an ``id``, or with
    ``logits`` that it keeps, go one by one.

    A forked process begins anew, and so does a spawned one that the reporter is sent to. What waits is
    counted when the process ends by itself, within five seconds.

    Args:
        what: An artifact, its folder, or the number of classes.
        model: Name of the model.
        version: Its version.
        keyring: Keys, or their file, which is read again when it changes; None takes the file that
            ``CALIB_SERVE_KEYRING`` names, and without that there are no receipts.
        watch: Address of a ``calib-serve watch``, or a ``Watch`` of this process.
        token: Token of the watch at an address, with the scopes ``predict`` and ``label``.
        registry: Registry of prometheus-client, which counts failures of the monitoring in any case; None:
            the one that applications expose by default.
        policy: Whose labels are wanted, such as "500/day"; None: as a ``Watch`` of this process says, else
            all.
        workers: Processes that share a ``policy`` of text.
        shadow: An artifact, or its folder, that runs in the shadow of ``what`` on the ``logits`` that come
            with predictions.
        most: Sums, and predictions that go one by one, that may wait in memory while the watch is away.
        spool: Folder of your own where they wait, 512 MiB of them, so that they outlive their process and
            the next one sends them, within 29 days.
        flush_seconds: Seconds between two times that counts are sent.

    >>> from prometheus_client import CollectorRegistry
    >>> where = {"keyring": Keyring.new(), "registry": CollectorRegistry()}
    >>> reporter = Reporter(3, model="pets", version="1", **where)
    >>> receipts = reporter.served([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    >>> reporter.flush()
    0
    >>> labels = {"model": "pets", "version": "1", "bin": "10"}
    >>> reporter.registry.get_sample_value("calib_predictions_total", labels)
    1.0
    >>> reporter.close()
    """

    def __init__(
        self,
        what: Artifact | str | Path | int,
        *,
        model: str,
        version: str,
        keyring: Keyring | LiveKeyring | str | Path | None = None,
        watch: str | LocalWatch | None = None,
        token: str = "",
        registry: CollectorRegistry | None = None,
        policy: LabelPolicy | str | None = None,
        workers: int = 1,
        shadow: Artifact | str | Path | None = None,
        most: int = 100_000,
        spool: str | Path | None = None,
        flush_seconds: float = 0.5,
    ) -> None:
        self._options = {name: value for name, value in locals().items() if name not in ("self", "what")}
        self.artifact = optional_artifact(what)
        self.classes = what if isinstance(what, int) else self.artifact.classes if self.artifact else 0
        self._one_row = (self.classes,), (1, self.classes)
        self._shadow = None if shadow is None else ReporterShadow(shadow, self.artifact or self.classes)
        ring = keyring_of(keyring)
        _check_together(watch, ring, policy, token=token, workers=workers, spool=spool)
        self._sink = sink_of(registry, posts=watch is not None)
        self.registry = self._sink.registry
        if isinstance(ring, LiveKeyring):
            ring.failed = functools.partial(self._sink.failed, "keyring")
        to = None if watch is None else destination_of(watch, token)
        self._destination = to
        contract = None if self.artifact is None else self.artifact.contract
        self._outbox: Outbox | None = None
        if to is not None:
            self._outbox = Outbox(
                to,
                self._sink.failed,
                model=model,
                version=version,
                clauses=None if contract is None else _clauses(contract),
                most=most,
                spool=spool,
            )
        reference = None if self.artifact is None else self.artifact.reference
        if isinstance(policy, str):
            policy = parse_policy(policy, workers=workers)
        elif policy is None and watch is not None and not isinstance(watch, str):
            policy = watch.label_policy((model, version))
        self._recorder = Recorder(
            self._sink,
            model=model,
            version=version,
            bins=15 if reference is None else len(reference),
            keyring=ring,
            policy=policy,
            counts=self._outbox,
            shadow_tag=b"" if self._shadow is None else self._shadow.tag,
        )
        self._sink.failed(*_STAGES, times=0)
        if to is None and isinstance(self._sink, RegistrySink) and reference is not None and reference.n:
            # The calibration set's bins: the reference for drift, which a watch has of its own.
            self._sink.set_all(
                {
                    ("calib_reference_share", (model, version, str(b))): count / reference.n
                    for b, count in enumerate(reference.count.tolist())
                }
            )
        self._seen = 0
        self._background = Background(self._recorder, self._outbox, self._sink, seconds=flush_seconds)
        # When the reporter is garbage collected, its thread delivers the rest, and ends.
        weakref.finalize(self, self._background.begin_to_close).atexit = False

    def served(
        self,
        probs: ArrayLike,
        *,
        segment: str | Sequence[str] = "",
        group: str | Sequence[str] = "",
        id: str | Sequence[str] = "",
        logits: ArrayLike | None = None,
        shadow: ArrayLike | None = None,
    ) -> list[SignedReceipt | None]:
        """Count predictions; a signed receipt for each, whose ``wanted`` says if its label is asked for.

        Of a calibration by source, the segment is the source: those that the artifact does not know are
        counted, as ``calib_monitor_errors_total`` of the stage "source".

        It does not wait for anything. A row that is no prediction, such as NaN, has None and is counted as
        invalid. What is wrong with the shadow's is counted, as ``calib_monitor_errors_total`` of the stage
        "shadow", and the receipts go without.

        Args:
            probs: Calibrated probabilities (n, K), or (K,) of one prediction.
            segment: Segment of the traffic that they are counted in, one text or n.
            group: Name that predictions share whose outcomes depend on one another, one text or n.
            id: Your own name of the prediction, which its label may come by, one text or n.
            logits: What the output calibration was applied to, of the same shape, for samples and for the
                shadow.
            shadow: Probabilities of the shadow, of the same shape, where they are not to be made of the
                logits.

        Raises:
            InputError: For what is wrong in every call, such as logits instead of probabilities.
            ShapeError: For another number of classes.
        """
        p = probs if isinstance(probs, np.ndarray) else array_of(probs)
        predictions, valid = self._top(p)
        if self.artifact is not None and self.artifact.source_maps is not None:
            strange = self.artifact.source_maps.rows(
                each_of(segment, "segment", len(predictions)), len(predictions)
            )
            self._recorder.broken("source", times=int((strange == 0).sum()))
        if not self._background.started or self._seen < _CHECKED:
            self._begin(p)
        self._background.latest = p
        if (
            valid
            and not (segment or group or id)
            and logits is None
            and shadow is None
            and self._shadow is None
        ):
            self._recorder.count(predictions)
            return self._recorder.sign(predictions)
        return self._record(predictions, segment, group, id, logits=logits, shadow=shadow)

    def answered(
        self,
        response: Any,
        words: AnswerWords,
        *,
        segment: str = "",
        group: str = "",
        id: str = "",
    ) -> tuple[NDArray[np.float64], SignedReceipt | None]:
        """Calibrate and count an answer of a language model.

        The probabilities of its classes (K,), and its receipt.

        Args:
            response: A completion as the server sent it: parsed JSON, or an object of the openai client.
            words: The words of the classes, ``calib_serve.scores.LabelWords``, in the artifact's order.
            segment: Segment of the traffic that it is counted in.
            group: Name that answers share whose outcomes depend on one another.
            id: Your own name of it, which its label may come by.

        Raises:
            InputError: Where the answer cannot be read; an answer of none of the classes has NaN, no receipt,
                and is counted as invalid.
        """
        names = (self.artifact.class_names if self.artifact is not None else ()) or words.names
        if names != words.names or len(names) != self.classes:
            raise InputError(f"the words are of {', '.join(words.names)}, the reporter of {', '.join(names)}")
        answer = words.read(response if isinstance(response, Mapping) else response.model_dump())
        probs, logits = answer.probs[None], answer.logits[None]
        if self.artifact is not None and not np.isnan(probs).any():
            probs, _ = self.artifact.of_segments(logits, segment)
        (receipt,) = self.served(probs, segment=segment, group=group, id=id, logits=logits)
        return probs[0], receipt

    def acts(self, probs: ArrayLike, *, segment: str | Sequence[str] = "") -> NDArray[np.bool_]:
        """Tell whether each prediction may be acted on (n,), by the contract of the artifact.

        Nothing is counted. A row that is no prediction may not.

        Args:
            probs: Calibrated probabilities (n, K), or (K,) of one prediction.
            segment: Segment of each prediction, one text or n.

        Raises:
            InputError: Without an artifact, or where its contract does not say what may be acted on.
        """
        contract = None if self.artifact is None else self.artifact.contract
        if contract is None:
            raise InputError(
                "no contract says what may be acted on: give the reporter an artifact that has one, set with "
                "calib-serve contract set"
            )
        predictions, _ = self._top(array_of(probs))
        segments = each_of(segment, "segment", len(predictions))
        found = [
            contract.acts_on(c, k, of) and c <= 1 + ROUNDING
            for (k, c), of in zip(predictions, segments, strict=True)
        ]
        return np.array(found, np.bool_)

    def served_labels(
        self,
        probs: ArrayLike,
        *,
        threshold: float = 0.5,
        segment: str | Sequence[str] = "",
        group: str | Sequence[str] = "",
    ) -> list[list[LabelChoice]]:
        """Count the choices of a multi-label model; signed receipts by row, of at most 32 choices each.

        A row that is no probabilities has no choices, and counts as invalid.

        Args:
            probs: Calibrated probabilities of each label (n, L).
            threshold: Least probability of a label that is decided to be true.
            segment: Segment of the traffic that they are counted in, one text or n.
            group: Name that samples share whose outcomes depend on one another, one text or n.
        """
        p = np.atleast_2d(array_of(probs))
        if self.artifact is None or not self.artifact.is_multilabel or p.shape[1:] != (self.classes,):
            raise ShapeError(
                f"labels need the artifact of a multi-label model, and (n, {self.classes}) probs"
            )
        tags = tags_of(segment, group, len(p), failed=self._recorder.broken)
        if not self._background.started:
            self._background.start()
        good = np.asarray(((p >= 0) & (p <= 1)).all(axis=1))
        found = iter(
            count_choices(
                self._recorder,
                list(p[good]),
                threshold=threshold,
                tags=[tag for tag, ok in zip(tags, good.tolist(), strict=True) if ok],
                invalid=int(np.sum(~good)),
            )
        )
        return [next(found) if ok else [] for ok in good.tolist()]

    def label(
        self,
        receipt: str | None = None,
        label: int | str | bool | None = None,
        *,
        id: str = "",
        by: By | None = None,
        replaces: bool = False,
    ) -> Outcome:
        """Send the true class of one prediction home, by its receipt or your own id of it; see ``labels``.

        Args:
            receipt: Receipt of the prediction.
            label: Class id or name; of a label of many, whether it is true.
            id: Your own name of the prediction, in place of the receipt.
            by: Whether a text is a class's "name" or "id".
            replaces: Whether it takes the place of another label.
        """
        if (receipt is None) == (not id) or label is None:
            raise InputError("give a label, and either its receipt or the id of its prediction")
        item: dict[str, Any] = {"id": id} if id else {"receipt": receipt}
        item |= {"label": label, **({"by": by} if by else {})}
        (outcome,) = self.labels([item], replaces=replaces)
        return outcome

    def labels(self, items: Sequence[Mapping[str, Any]], *, replaces: bool = False) -> list[Outcome]:
        """Send labels home; the outcome of each.

        It waits until the watch has counted them; from an event loop, call it by ``asyncio.to_thread``.

        Args:
            items: Mappings with "receipt" or "id", "label", and optionally "by", "segment" and "replaces".
            replaces: Whether each takes the place of the label that its prediction has, if any; a watch asks
                for a token of the scope ``correct``.

        Raises:
            ServerError: Where the watch did not answer: send them again, and each is counted once.
        """
        if self._destination is None:
            raise InputError("labels go home to a watch: give the reporter watch=")
        return self._destination.labels([{"replaces": True, **one} for one in items] if replaces else items)

    def flush(self) -> int:
        """Deliver now; return the number of predictions that still wait, as the watch does not take them."""
        return self._background.flush()

    def close(self) -> None:
        """Deliver within five seconds, and end; lost predictions are logged and counted."""
        self._background.close()

    @staticmethod
    def close_all(reporters: Iterable[Reporter]) -> None:
        """Close several of this process, within five seconds together."""
        found = list(reporters)
        for one in found:
            one._background.begin_to_close()
        for one in found:
            one.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options: a spawned process gets a new reporter of the same ones."""
        sent = (type(None), str, Path, Keyring)
        of_process = ("watch", "registry", "keyring", "policy")
        if local := [name for name in of_process if not isinstance(self._options[name], sent)]:
            raise InputError(
                f"a reporter whose {local[0]} is of one process stays there: make it in that process"
            )
        what = self.classes if self.artifact is None else self.artifact
        return _made, (what, self._options)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _top(self, p: NDArray[Any]) -> tuple[list[tuple[int, float]], bool]:
        """The class and the probability of each row, and whether all are probabilities."""
        if p.shape in self._one_row:
            k = int(p.argmax())  # most requests are one row, and calls of numpy cost most
            c: float = p.item(k)
            return [(k, c)], 0 <= c <= 1
        if p.ndim == 2 and p.shape[1] == self.classes:
            best = p.argmax(axis=1)
            c_of_each = p[np.arange(len(p)), best]
            valid = not len(p) or bool(c_of_each.min() >= 0 and c_of_each.max() <= 1)  # NaN: neither
            return list(zip(best.tolist(), c_of_each.tolist(), strict=True)), valid
        more = ""
        if p.ndim > 2:
            more = "; of tokens or pixels say which a receipt is of: artifact.one_place(probs, 'least')"
        raise ShapeError(f"probs must be (n, {self.classes}) or ({self.classes},), got {p.shape}{more}")

    def _record(
        self,
        predictions: Sequence[tuple[int, float]],
        segment: str | Sequence[str],
        group: str | Sequence[str],
        id: str | Sequence[str],
        *,
        logits: ArrayLike | None,
        shadow: ArrayLike | None,
    ) -> list[SignedReceipt | None]:
        """Count and sign the valid ``predictions``, with their tags, logits and shadows."""
        count = len(predictions)
        if id and self._outbox is None:
            raise InputError("an id is bound to its receipt by a watch: give the reporter watch=")
        tags = tags_of(segment, group, count, failed=self._recorder.broken)
        ids = ids_of(id, count, failed=self._recorder.broken)
        z = None if logits is None else logits_in_shape(logits, (count, self.classes))
        clipped = [(k, min(c, 1.0) if c <= 1 + ROUNDING else c) for k, c in predictions]
        good = [i for i, (_, c) in enumerate(clipped) if 0 <= c <= 1]
        rows: Sequence[NDArray[np.float64]] = [] if z is None else [z[i] for i in good]
        rate = 0.0 if z is None or self._destination is None else self._destination.sample_rate
        one_by_one = self._outbox is not None and (bool(id) or rate > 0)
        told, sound = [tags[i] for i in good], [clipped[i] for i in good]
        counted = ([], []) if one_by_one else (sound, told)
        self._recorder.count(*counted, invalid=count - len(good))
        receipts = self._recorder.sign(sound, told, logits=rows, shadows=self._shadows(good, shadow, z))
        found: list[SignedReceipt | None] = [None] * count
        for i, receipt in zip(good, receipts, strict=True):
            found[i] = receipt
        if self._outbox is not None and one_by_one:
            kept = self._kept(rows, receipts, rate) if rate > 0 else [b""] * len(good)
            waits = [
                one is not None and self._outbox.put_one(Served(one, ids[i], logits))
                for i, one, logits in zip(good, receipts, kept, strict=True)
            ]
            if not all(waits):  # they are counted all the same
                left = [at for at, is_there in enumerate(waits) if not is_there]
                self._recorder.count([sound[at] for at in left], [told[at] for at in left])
        return found

    def _kept(
        self, rows: Sequence[NDArray[np.float64]], receipts: Sequence[SignedReceipt | None], rate: float
    ) -> list[bytes]:
        """Each row of logits in float16; empty for a row that is not sampled, or holds NaN."""
        from calib_serve.receipts.samples import in_half, is_sampled  # noqa: PLC0415 - the readers of its files take 20 ms

        kept = [b""] * len(rows)
        sampled = [i for i, one in enumerate(receipts) if one is not None and is_sampled(nonce_of(one), rate)]
        if not sampled:
            return kept
        half = in_half([rows[i] for i in sampled])
        bad: list[bool] = np.any(np.isnan(half), axis=1).tolist()
        for i, row, is_bad in zip(sampled, half, bad, strict=True):
            kept[i] = b"" if is_bad else row.tobytes()
        if any(bad):
            self._recorder.broken("logits", times=sum(bad))
        return kept

    def _shadows(
        self, good: Sequence[int], given: ArrayLike | None, z: NDArray[np.float64] | None
    ) -> list[tuple[int, float]]:
        """The shadow's predictions of the rows that are ``good``; fails open."""
        if self._shadow is None and given is None:
            return []
        try:
            if self._shadow is None:
                raise InputError("the reporter was made without shadow=")
            return self._shadow.says(good, probs=given, logits=z)
        except Exception as error:  # fails open
            self._recorder.broken("shadow", error, times=len(good))
            return []

    def _begin(self, p: NDArray[Any]) -> None:
        """Start the thread, and check the first calls: InputError where finite rows do not sum to 1."""
        if not self._background.started:
            self._background.start()
        self._seen += 1
        if self._seen <= _CHECKED and not are_probabilities(p):
            raise InputError("probs must be probabilities, which add up to 1 in each row; not logits")


def _check_together(
    watch: object, ring: object, policy: object, *, token: str, workers: int, spool: object
) -> None:
    """Raise InputError for options that need, or exclude, one another."""
    if watch is not None and ring is None:
        raise InputError(
            f"a watch counts receipts, and no keyring signs them: give keyring=FILE or set {KEYRING}"
        )
    if token and not isinstance(watch, str):
        raise InputError("token is for the watch at an address: give watch=URL")
    if watch is None and spool is not None:
        raise InputError("spool is for what waits for a watch: give watch=")
    if workers != 1 and not isinstance(policy, str):
        raise InputError('workers share a policy of text, such as "500/day"')


def _clauses(contract: Contract) -> Callable[[float, int, str], list[str]]:
    """The names of the clauses that count a prediction: one sum holds predictions of the same clauses."""
    return lambda confidence, predicted, segment: [
        one.id for one in contract.counts(confidence, predicted, segment)
    ]


def _made(what: Artifact | int, options: Mapping[str, Any]) -> Reporter:
    return Reporter(what, **options)
