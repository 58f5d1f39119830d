"""Recorders: count and sign served predictions, for every server; they never raise or block.

Monitoring fails open: a failure here does not change the prediction, and ``calib_monitor_errors_total``
counts it. What is counted waits in memory until ``settle`` adds it up and hands it to the sink.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import ShapeError
from calib_serve.receipts.classes import choose_labels
from calib_serve.receipts.counters import SeriesCounts, Sink, zeros
from calib_serve.receipts.keyring import Keyring, LiveKeyring
from calib_serve.receipts.nonces import DRAWS, draw_nonces
from calib_serve.receipts.policy import LabelPolicy
from calib_serve.receipts.wire import PLAIN, TAG, Mark, Shadow, SignedReceipt, group_number

if TYPE_CHECKING:
    from calib_serve.receipts.outbox import Outbox
    from calib_serve.receipts.samples import SampleLog

log = logging.getLogger(__name__)

ROUNDING = 1e-6
"""How far above 1 a probability may be, by rounding; it is taken as 1."""

_INVALID, _UNCALIBRATED = "calib_invalid_outputs_total", "calib_uncalibrated_total"
_STAGES = ("record", "receipt", "keyring", "samples")

SIGNED_LABELS = 32
"""Labels of one row that get a receipt; of more, so many are drawn by chance."""


class Tag(NamedTuple):
    """Tags of a prediction by its request; empty where it has none.

    Args:
        segment: Segment of the traffic.
        group: Name that predictions share whose outcomes depend on one another.
        id: The user's own name of the prediction.
    """

    segment: str = ""
    group: str = ""
    id: str = ""

    def of_row(self, row: int, rows: int) -> Tag:
        """The tag of one row of a request: of several rows, each has an id of its own.

        Args:
            row: Position of the row in the request.
            rows: Number of its rows.
        """
        return self if rows == 1 or not self.id else self._replace(id=f"{self.id}:{row}")


class Recorder:
    """Counts the predictions of one model version and signs them; failures are counted.

    Args:
        sink: Series and failures.
        model: Name of the model.
        version: Its version.
        bins: Number of bins of confidence, of equal width.
        keyring: Keys; None: no receipts.
        samples: Log of logits of signed predictions, for a later refit; None: none are kept.
        policy: Which predictions' labels are wanted; None: all.
        counts: Sums of predictions; None: the sink's series.
        shadow_tag: Tag of the artifact that runs in the shadow of the served one (``shadow_tag``); empty:
            none.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        model: str,
        version: str,
        bins: int,
        keyring: Keyring | LiveKeyring | None,
        samples: SampleLog | None = None,
        policy: LabelPolicy | None = None,
        counts: SeriesCounts | Outbox | None = None,
        shadow_tag: bytes = b"",
    ) -> None:
        self.model, self.version, self.bins = model, version, bins
        self._sink, self._keyring, self._policy = sink, keyring, policy
        if counts is None:
            counts = SeriesCounts(sink, model=model, version=version, bins=bins)
        self._counts = counts
        self._shadow_tag = shadow_tag
        self._samples = samples if keyring else None  # labels find their samples by receipts
        sink.add_all(zeros((_INVALID, _UNCALIBRATED), model=model, version=version, bins=bins))
        sink.failed(*_STAGES, *(["shadow"] if shadow_tag else []), times=0)

    def served(
        self,
        predictions: Sequence[tuple[int, float]],
        *,
        logits: Sequence[NDArray[Any]] = (),
        tags: Sequence[Tag] = (),
        invalid: int = 0,
    ) -> list[SignedReceipt | None]:
        """Count predictions and sign a receipt for each; None for one without.

        Args:
            predictions: (predicted class, confidence) of each.
            logits: What the output calibration was applied to, (K,) of each.
            tags: Tags of each; empty where rows are not requests.
            invalid: Number of rows without a valid output.
        """
        self.count(predictions, tags, invalid=invalid)
        return self.sign(predictions, tags, logits=logits)

    def sign(
        self,
        predictions: Sequence[tuple[int, float]],
        tags: Sequence[Tag] = (),
        *,
        logits: Sequence[NDArray[Any]] = (),
        shadows: Sequence[tuple[int, float] | None] = (),
        share: float = 1.0,
    ) -> list[SignedReceipt | None]:
        """Sign a receipt for each of some predictions, and keep their samples; None for one without.

        Args:
            predictions: (predicted class, confidence) of each.
            tags: Tags of each; empty where rows are not requests.
            logits: What the output calibration was applied to, (K,) of each.
            shadows: (class, confidence) of the shadow for each; pairs that are none, such as NaN, count as
                failures at "shadow" and are left out of the receipts.
            share: Chance in (0, 1] with which each was drawn from those that are counted.
        """
        if self._keyring is None:
            return [None] * len(predictions)
        try:
            now = time.time()
            sign = self._keyring.current().signer(self.model, self.version).sign
            milliseconds = round(now * 1000)
            marked = tags or shadows or self._policy or share != 1
            nonces = draw_nonces(len(predictions))
            receipts: list[SignedReceipt | None]
            if len(predictions) == 1 and not marked:  # as most requests are
                ((k, c),) = predictions
                receipts = [sign(k, c, nonces[0], milliseconds)]
            else:
                marks = self._marks(predictions, tags, share, shadows) if marked else repeat(PLAIN)
                each = zip(predictions, nonces, marks)  # noqa: B905 - a repeat goes on
                receipts = [sign(k, c, nonce, milliseconds, mark) for (k, c), nonce, mark in each]
        except Exception as error:  # fails open
            self.broken("receipt", error, times=len(predictions))
            return [None] * len(predictions)
        if self._samples and nonces:
            self._keep(self._samples, nonces, logits, now)
        return receipts

    def uncalibrated(self, requests: int) -> None:
        """Count requests that were answered without calibration."""
        self._add(_UNCALIBRATED, requests)

    def settle(self) -> None:
        """Add up the queued predictions."""
        try:
            self._counts.settle()
        except Exception as error:  # fails open
            self.broken("record", error)

    def flush(self) -> None:
        """Settle, and write the waiting samples."""
        self.settle()
        try:
            if self._samples:
                self._samples.flush()
        except Exception as error:  # fails open
            self.broken("samples", error)

    def broken(self, stage: str, error: Exception | None = None, *, times: int = 1) -> None:
        """Count a failure of the monitoring; never raises.

        Args:
            stage: Name of the part that failed.
            error: The error, where it was one.
            times: Number of predictions that it cost.
        """
        try:
            self._sink.failed(stage, times=times)
        except Exception:  # the counter itself failed: only log it
            log.warning("monitoring failed at %s: %s", stage, type(error).__name__)

    def after_fork(self) -> None:
        """Drop the predictions that the parent process counts."""
        self._counts.after_fork()

    def count(
        self, predictions: Sequence[tuple[int, float]], tags: Sequence[Tag] = (), *, invalid: int = 0
    ) -> None:
        """Count predictions without signing receipts here; never raises.

        Args:
            predictions: (predicted class, confidence) of each.
            tags: Tags of each; empty: they have none.
            invalid: Number of rows without a valid output.
        """
        if invalid:
            self._add(_INVALID, invalid)
        try:
            named = tags and len(tags) == len(predictions) and any(tag.segment for tag in tags)
            self._counts.put(predictions, [tag.segment for tag in tags] if named else ())
        except Exception as error:  # fails open
            self.broken("record", error, times=len(predictions))

    def _add(self, name: str, times: int) -> None:
        try:
            self._sink.add_all({(name, (self.model, self.version)): times})
        except Exception as error:  # fails open
            self.broken("record", error)

    def _marks(
        self,
        predictions: Sequence[tuple[int, float]],
        tags: Sequence[Tag],
        share: float,
        said: Sequence[tuple[int, float] | None],
    ) -> list[Mark]:
        count = len(predictions)
        shadows = self._shadows(said, count) if said else ()
        wanted, inclusion = [True] * count, [share] * count
        if self._policy is not None:
            # Drawn before any outcome is known; the chance goes with the receipt, and weighs its label.
            drawn, chance = self._policy.draw([confidence for _, confidence in predictions])
            wanted, inclusion = drawn.tolist(), (chance * share).tolist()
        given = tags if len(tags) == count else [Tag()] * count
        return [
            Mark(tag.segment, pi, asked, group_number(tag.group), shadow)
            for tag, pi, asked, shadow in zip(
                given, inclusion, wanted, shadows or [None] * count, strict=True
            )
        ]

    def _shadows(self, said: Sequence[tuple[int, float] | None], count: int) -> Sequence[Shadow | None]:
        """The shadow's fields of the receipts; never raises."""
        try:
            found = [self._shadow(one) for one in said]
            if len(found) != count or len(self._shadow_tag) != TAG:
                raise ShapeError(f"there are {len(found)} shadows of {count} predictions")
        except Exception as error:  # fails open
            self.broken("shadow", error, times=count)
            return ()
        if lost := found.count(None):
            self.broken("shadow", times=lost)
        return found

    def _shadow(self, said: tuple[int, float] | None) -> Shadow | None:
        if said is None:
            return None
        predicted, confidence = int(said[0]), float(said[1])
        if 1 < confidence <= 1 + ROUNDING:
            confidence = 1.0
        sound = 0 <= confidence <= 1 and 0 <= predicted < 1 << 32
        return Shadow(predicted, confidence, self._shadow_tag) if sound else None

    def _keep(self, samples: SampleLog, nonces: list[bytes], logits: Sequence[Any], now: float) -> None:
        try:
            samples.predicted(self.model, self.version, nonces, np.stack(logits), times=[now] * len(nonces))
        except Exception as error:  # fails open
            self.broken("samples", error)


class LabelChoice(NamedTuple):
    """The decision whether a label is true.

    Args:
        label: Id of the label.
        true: Whether the label is decided to be true.
        confidence: Probability that it is right.
        receipt: Its receipt; None where none is signed.
    """

    label: int
    true: bool
    confidence: float
    receipt: SignedReceipt | None

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """As plain values for JSON; ``names`` of the labels, or none."""
        told: dict[str, Any] = {"label": names[self.label] if names else self.label}
        told |= {"predicted": self.true, "confidence": self.confidence}
        if self.receipt is None:
            return told
        told["receipt"] = str(self.receipt)
        return told if self.receipt.wanted else {**told, "label_wanted": False}


def count_choices(
    recorder: Recorder,
    probs: Sequence[NDArray[np.float64]],
    *,
    threshold: float,
    tags: Sequence[Tag],
    invalid: int = 0,
) -> list[list[LabelChoice]]:
    """Decide every label of some rows, and count; sign at most ``SIGNED_LABELS`` a row.

    These are drawn anew for each row, and their receipts say with which chance. Decisions of one row depend
    on one another, so that a row without a group is a group.

    Args:
        recorder: Counts and signs.
        probs: Probabilities of the labels, (L,) of each row.
        threshold: Probability from which a label is true.
        tags: Tags of each row; empty: they have none.
        invalid: Number of rows without a valid output.
    """
    if not probs:
        recorder.count([], invalid=invalid)
        return []
    classes, confidence = choose_labels(np.stack(probs), threshold)
    rows, labels = classes.shape
    drawn = [sorted(DRAWS.sample(range(labels), min(labels, SIGNED_LABELS))) for _ in range(rows)]
    at = [(row, label) for row, some in enumerate(drawn) for label in some]
    given = tags if len(tags) == rows else [Tag()] * rows
    own = [one._replace(group=one.group or f"row {DRAWS.getrandbits(64):x}") for one in given]
    signed = [own[row].of_row(label, labels) for row, label in at]
    pairs = list(zip(classes.ravel().tolist(), confidence.ravel().tolist(), strict=True))
    recorder.count(pairs, signed, invalid=invalid)
    chosen = [(int(classes[i]), float(confidence[i])) for i in at]
    receipts = iter(recorder.sign(chosen, signed, share=len(at) / max(len(pairs), 1)))
    return [
        [LabelChoice(k, bool(classes[row, k] % 2), float(confidence[row, k]), next(receipts)) for k in some]
        for row, some in enumerate(drawn)
    ]
