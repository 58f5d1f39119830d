"""Audit logs of predictions and of labels, joined and summed by the engine that holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calib_serve.core.arrays import finite
from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError
from calib_serve.core.names import check_names
from calib_serve.core.options.audit import AuditOptions
from calib_serve.core.options.base import changed
from calib_serve.integrations.audit.engines import Engine, open_engine
from calib_serve.integrations.audit.expressions import (
    FATES,
    REFUSED,
    AuditQuery,
    Columns,
    as_ids,
    check_columns,
    classes_seen,
    joined,
    label_rows,
    prediction_rows,
)
from calib_serve.integrations.audit.grouping import (
    MOST,
    Counted,
    counted,
    grouped,
)
from calib_serve.integrations.audit.reading import (
    MOST_CLASSES,
    OFTEN,
    PREDICTED,
    Predicted,
    Reading,
    check_labels,
    class_called,
    kind_of,
    named_ids,
    of_the_predicted,
    separated,
    thresholded,
    too_low,
)
from calib_serve.metrics import TOLERANCE, Verdict
from calib_serve.monitor import Estimates, Missing, estimate, judge_estimates
from calib_serve.receipts import Sums

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import AuditKeywords

Progress = Callable[[str, int, "int | None"], None]

_OPTIONAL = ("predicted", "model", "version", "weight")
_WHY = {
    "repeated": "are several of one id that differ",
    "id": "have no id",
    "class": "have no predicted class",
    "confidence": "have no confidence in [0, 1]; say --outputs percent, or log_probs, where they are those; "
    "logits are no confidences",
    "weight": "have no finite weight of at least 1, one over the chance of being asked for",
    "time": "have no time, or one beyond the year 5000, as milliseconds are",
}


def audit(
    predictions: str | Path,
    labels: str | Path,
    options: AuditOptions | None = None,
    *,
    columns: Columns | None = None,
    progress: Progress = lambda what, done, total: None,
    **keywords: Unpack[AuditKeywords],
) -> Audit:
    """Measure calibration by the sums of the monitor, made by one group-by where the logs lie.

    With ``skip_invalid`` predictions that cannot be measured are counted and left out, else they are an
    InputError that names one.

    Args:
        predictions: A Parquet file, a folder or pattern of such files, or a table of ``engine``.
        labels: The same of labels, which name predictions by id.
        options: An ``AuditOptions``; keywords replace its fields.
        columns: What the columns of both are called.
        progress: Called with a stage, how much of it is done, and of how much, where that is known.
        **keywords: Fields of ``AuditOptions``: ``bins``, ``by``, ``class_names``, ``confidence_of``,
            ``engine``, ``every``, ``ignore_label``, ``missing``, ``outputs``, ``since``, ``skip_invalid``,
            ``tolerance``, ``unique_ids``, ``until``.

    Raises:
        InputError: For logs that cannot be read or compared, and options that cannot be right.
        MissingDependency: Where an engine's driver is not installed.
        ServerError: Where an engine does not answer.
    """
    options = changed(options or AuditOptions(), keywords, audit)
    # Every question goes out while the connection is open; numbers are computed after it.
    with open_engine(options.engine) as opened:
        run = _Run(opened, options, columns or Columns(), (str(predictions), str(labels)), progress)
        counts, rows = run.sums()
        refused = run.refused(counts)
        reading = run.reading()
        of_labels = run.labels(counts)
    asked = run.asked
    how: dict[str, Any] = {
        "tolerance": options.tolerance,
        "missing": options.missing,
        "event": reading.event or "",
    }
    measured = tuple(
        Measured(dict(zip(asked.by, keys, strict=True)), *_ends(window, asked), sums, **how)
        for (keys, window), sums in counts.sums.items()
    )
    whole = sum((one.sums for one in measured), start=Sums.zeros(options.bins))
    return Audit(
        measured=measured,
        total=Measured({}, asked.since, asked.until, whole, **how),
        predictions=rows,
        again=rows - sum(counts.fates.values()),
        unlabelled=counts.fates["unlabelled"],
        conflicting=counts.fates["conflicting"],
        labels=of_labels,
        refused=refused,
        read=reading,
    )


class _Run:
    """The queries of one audit to its engine, in their order."""

    def __init__(
        self,
        engine: Engine,
        options: AuditOptions,
        columns: Columns,
        where: tuple[str, str],
        progress: Progress,
    ) -> None:
        self._engine, self._options, self._progress, self._told = engine, options, progress, list[str]()
        progress("reading what the logs hold", 0, None)
        predictions, self._all_labels = map(engine.table, where)
        # What may be missing is not missed where somebody gave its name.
        for name in (one for one in _OPTIONAL if getattr(columns, one) != getattr(Columns, one)):
            check_columns(predictions, [getattr(columns, name)], what="predictions", where=where[0])
        by = options.by
        if by is None:
            by = tuple(name for name in (columns.model, columns.version) if name in predictions.columns)
        self.asked = AuditQuery(
            columns,
            by=tuple(by),
            since=_whole(options.begin, "since"),
            until=_whole(options.end, "until"),
            every=options.seconds,
            bins=options.bins,
            unique=options.unique_ids,
            kind=kind_of(columns.confidence, options.outputs),
            ignored=tuple(str(label) for label in options.ignore_label or ()),
            of_predicted=options.confidence_of in (None, PREDICTED),
        )
        with engine.asking("put the logs together"):
            self._predictions = prediction_rows(predictions, self.asked, where=where[0])
            self._labels = label_rows(self._all_labels, self.asked, where=where[1])
        self._predicted, self._true = self._classes_predicted(), self._classes_true(self._labels)
        self._by_classes()
        with engine.asking("put the logs together"):
            self._joined = joined(self._predictions, self._labels, self.asked, repeats=False)
        if options.class_names is None and not self._true.keys() <= self._predicted.keys():
            # Of predictions alone: others may be of other models.
            self._true = self._classes_true(self._joined.filter(self._joined["rows"] > 0))
            # Of a class that is said, predictions may be of another kind, or missing.
            if {type(value) for value in self._predicted} & {type(value) for value in self._true}:
                self._told += check_labels(self._predicted, self._true, self.asked.columns)

    def _by_classes(self) -> None:
        """Find the classes of both logs, as ids where they are named, and the one that is asked about."""
        names, columns = self._options.class_names, self.asked.columns
        if names is not None:
            check_names(names)
            ids = named_ids(self._predicted, names, column=columns.predicted)
            true = named_ids(self._true, names, column=columns.label)
            self._true = dict.fromkeys(true.values(), 0)
            with self._engine.asking("name the classes"):
                if "predicted" in self._predictions.columns:
                    of = as_ids(self._predictions["predicted"], ids)
                    self._predictions = self._predictions.mutate(predicted=of)
                self._labels = self._labels.mutate(label=as_ids(self._labels["label"], true))
            self._predicted = self._classes_predicted()  # several values may be one class
        if not self.asked.of_predicted:
            said = str(self._options.confidence_of)
            if names is not None:
                event: Any = named_ids([said], names, column="--confidence-of")[said]
            else:
                alike = {type(value) for value in self._true}
                event = class_called(said, [*self._true, *(v for v in self._predicted if type(v) in alike)])
            self.asked = replace(self.asked, event=event)

    def _classes_predicted(self) -> dict[Any, Predicted]:
        if "predicted" not in self._predictions.columns:
            return {}
        found = self._classes(classes_seen(self._predictions), self.asked.columns.predicted)
        return {row.pop("predicted"): Predicted(**row) for row in found if row["predicted"] is not None}

    def _classes_true(self, rows: Any) -> dict[Any, int]:
        found = self._classes(rows.group_by("label").agg(n=rows.count()), self.asked.columns.label)
        return {row["label"]: int(row["n"]) for row in found}

    def _classes(self, rows: Any, column: str) -> list[dict[str, Any]]:
        found = self._ask(rows.limit(MOST_CLASSES + 1), "looking for classes")
        if len(found) > MOST_CLASSES:
            raise InputError(f"{column} has more than {MOST_CLASSES:,} values: is it of classes?")
        return found

    def reading(self) -> Reading:
        """What was read; InputError where the confidences are none of what they were taken for."""
        asked, names = self.asked, self._options.class_names
        seen = {*self._predicted, *self._true}
        # Texts behind numbers, which they cannot be compared with.
        classes = sorted(seen, key=lambda one: (isinstance(one, str), one)) if names is None else names
        event = None
        if not asked.of_predicted:
            event = str(asked.event if names is None else names[asked.event])
            self._told += of_the_predicted(self._predicted, asked.event)
        elif self._options.confidence_of is None:
            self._check_confidences(classes)
        return Reading(asked.columns, asked.kind, tuple(map(str, classes)), event, tuple(self._told))

    def _check_confidences(self, classes: Sequence[Any]) -> None:
        least, columns = 1 / max(len(classes), 2) - 0.005, self.asked.columns  # as two digits may round it
        sound = self._predictions.filter(self._predictions["refused"] == 0)
        if any(one.low is not None and one.low < least for one in self._predicted.values()):
            low = sound.filter(sound["confidence"] < least)
            count, of = self._count(low, "counting confidences"), self._count(sound, "counting confidences")
            (one,) = self._ask(low.select("id").limit(1), "looking for an example")
            raise too_low(count, of, str(one["id"]), classes, columns)
        if found := separated(self._predicted):
            distinct = sound.group_by("predicted").agg(n=sound["confidence"].nunique())
            # Of few distinct values, such as a tree's leaves, one class may have all the higher ones.
            if all(row["n"] >= OFTEN for row in self._ask(distinct, "looking at confidences")):
                raise thresholded(*found, columns)

    def sums(self) -> tuple[Counted, int]:
        """The sums, and the number of rows of predictions."""
        total = self._count(self._predictions, "counting predictions")
        if not total:
            raise InputError(
                "no predictions: the log is empty, or nothing in it lies in the window asked for"
            )
        known = self._predictions.filter(self._predictions["id"].notnull())
        each = known.group_by("id").agg(n=known.count())
        several = each.filter(each["n"] > 1).limit(1)
        if not self.asked.unique and self._ask(several, "looking for repeated ids"):
            with self._engine.asking("put the logs together"):
                self._joined = joined(self._predictions, self._labels, self.asked, repeats=True)
        # One row more than so many groups have: then there are more.
        most = MOST * len(FATES) * self.asked.bins + 1
        found = counted(
            self._ask(grouped(self._joined, self.asked).limit(most), "summing up"), self.asked, most=most
        )
        if sum(found.fates.values()) > total:
            raise InputError("some ids have several labels, so ids are not unique; leave unique_ids out")
        return found, total

    def refused(self, counts: Counted) -> dict[str, Refusal]:
        """Count predictions that cannot be measured, by reason.

        Raises InputError where there is any, unless it is to be skipped, and for most of the confidences:
        the others would be those that are small on another scale.
        """
        found = {}
        for fate in (f for f in REFUSED if counts.fates[FATES[f]]):
            rows = self._joined.filter(self._joined["fate"] == fate).select("id").limit(1)
            (one,) = self._ask(rows, "looking for an example")
            found[FATES[fate]] = Refusal(counts.fates[FATES[fate]], str(one["id"]))
        most = 2 * counts.fates["confidence"] > sum(counts.fates.values())
        if found and (most or not self._options.skip_invalid):
            why = [
                f"{one.count:,} of {sum(counts.fates.values()):,} predictions {_WHY[name]} (such as of id "
                f"{one.example})"
                for name, one in found.items()
            ]
            hint = "" if most else ", or leave them out by --skip-invalid"
            raise InputError(f"{'; '.join(why)}. Mend the log{hint}")
        return found

    def labels(self, counts: Counted) -> Labels:
        """Count the rows of labels by their fate."""
        total, known = (self._count(rows, "counting labels") for rows in (self._all_labels, self._labels))
        of = counts.label_rows
        if sum(of.values()) > known:
            raise InputError("some ids have several predictions, so ids are not unique; leave unique_ids out")
        return Labels(
            rows=total,
            empty=total - known,
            without_prediction=known - sum(of.values()),
            of_refused=sum(of[FATES[fate]] for fate in REFUSED),
            again=of["labelled"] - counts.fates["labelled"],
            conflicting=of["conflicting"],
        )

    def _count(self, rows: Any, what: str) -> int:
        return int(self._ask(rows.aggregate(n=rows.count()), what)[0]["n"])

    def _ask(self, expression: Any, what: str) -> list[dict[str, Any]]:
        self._progress(what, 0, None)
        return self._engine.rows(expression, f"answer ({what})")


def _ends(window: int | None, asked: AuditQuery) -> tuple[int | None, int | None]:
    """The start and end of a window, within the requested time."""
    if window is None or asked.every is None:
        return asked.since, asked.until
    start = asked.start + window * asked.every
    return start, start + asked.every if asked.until is None else min(start + asked.every, asked.until)


def _whole(time: datetime | None, name: str) -> int | None:
    if time is None:
        return None
    if time.microsecond:
        raise InputError(f"{name} must be of whole seconds, got {time.isoformat()}")
    return int(time.timestamp())


@dataclass(frozen=True)
class Refusal:
    """Predictions left out for one reason.

    Args:
        count: Number of them.
        example: Id of one of them.
    """

    count: int
    example: str


@dataclass(frozen=True)
class Labels:
    """Counts of the rows of labels by their fate; the others are counted.

    Args:
        rows: All of them.
        empty: Without an id or a label.
        without_prediction: Of no prediction that was asked for.
        of_refused: Of predictions that were left out.
        again: Rows that say what another said.
        conflicting: Rows of ids whose labels differ.

    >>> Labels(rows=9, empty=1, without_prediction=2, of_refused=0, again=1, conflicting=2).counted
    3
    """

    rows: int
    empty: int
    without_prediction: int
    of_refused: int
    again: int
    conflicting: int

    @property
    def counted(self) -> int:
        """Return how many labels are behind the numbers."""
        left_out = self.empty + self.without_prediction + self.of_refused + self.again + self.conflicting
        return self.rows - left_out


@dataclass(frozen=True)
class Measured:
    """One group of predictions in one window.

    Args:
        by: Value of each column that it is grouped by.
        since: First time, seconds since 1970 in UTC; None: no limit.
        until: End of its time, exclusive; None: no limit.
        sums: Those of the monitor.
        tolerance: Of the verdict.
        missing: Why labels are missing: "chance", or "unknown", where the outcome may decide.
        event: Name of the class that confidences are probabilities of; "" for the predicted class's.
    """

    by: Mapping[str, str]
    since: int | None
    until: int | None
    sums: Sums
    tolerance: float = TOLERANCE
    missing: Missing = "chance"
    event: str = ""

    @property
    def bins(self) -> Bins:
        """Return the sums over labelled predictions, weighted."""
        return self.sums.feedback

    @cached_property
    def estimates(self) -> Estimates:
        """Estimate numbers about all predictions from labels, with intervals, as the monitor does."""
        return estimate(self.sums, missing=self.missing)

    @cached_property
    def verdict(self) -> Verdict:
        """Judge the estimates."""
        return judge_estimates(self.estimates, tolerance=self.tolerance, event=self.event)

    @property
    def brier(self) -> float:
        """Return the mean of (confidence - right)^2 over labelled predictions, weighted."""
        squares = float(self.sums["calib_feedback_squared_error_total"].sum())
        return squares / self.bins.n if self.bins.n else math.nan

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON; None stands for NaN."""
        bins, found = self.bins, self.estimates
        rate = "share" if self.event else "accuracy"
        errors = ("mean_confidence", "signed_gap", "ece", "mce", "ace")
        of_labelled = {rate: bins.accuracy(), **{name: getattr(bins, name)() for name in errors}}
        of_labelled |= {"brier": self.brier}
        estimated = {rate: found.accuracy, "gap": found.gap}
        estimated["debiased_ece"] = found.debiased_ece
        return {
            "by": dict(self.by),
            "since": _iso(self.since),
            "until": _iso(self.until),
            "predictions": int(self.sums.predictions.sum()),
            "labels": int(self.sums.labels.sum()),
            "labelled": {name: finite(value) for name, value in of_labelled.items()},
            "estimated": {
                **{name: {k: finite(v) for k, v in vars(e).items()} for name, e in estimated.items()},
                "ece": finite(found.ece),
                "coverage": finite(found.coverage),
                "effective_labels": finite(found.effective),
                "noise_floor": finite(found.noise_floor),
            },
            "verdict": self.verdict.as_dict(),
            "bins": {name: getattr(bins, name).tolist() for name in ("count", "confidence", "correct")},
        }


@dataclass(frozen=True)
class Audit:
    """The numbers of each group and window, and those of all together.

    Args:
        measured: Each group and window.
        total: All together.
        predictions: Rows in the window that was asked for.
        again: Rows of these that said what another row of their id said.
        unlabelled: Predictions without a label.
        conflicting: Predictions whose labels differ.
        labels: Counts of the rows of labels.
        refused: Predictions that were left out, by reason.
        read: What the columns were taken for.
    """

    measured: tuple[Measured, ...]
    total: Measured
    predictions: int
    again: int
    unlabelled: int
    conflicting: int
    labels: Labels
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    read: Reading = field(default_factory=lambda: Reading(Columns()))

    @property
    def reading(self) -> str:
        """What was read, in one line: columns, classes, the rows that count, and why others do not."""
        left_out = [
            (self.unlabelled, "without a label"),
            (self.conflicting, "with labels that differ, which count as none"),
            (self.again, "repeat another, and count once"),
            *(
                (one.count, f"left out for their {name}, such as of id {one.example}")
                for name, one in self.refused.items()
            ),
        ]
        but = "".join(f", {count:,} {why}" for count, why in left_out if count)
        return (
            f"Read {self.read.says()}; {self.total.sums.labels.sum():,.0f} of {self.predictions:,} "
            f"predictions have one of {self.labels.rows:,} labels{but}."
        )

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON; None stands for NaN."""
        return {
            "reading": self.reading,
            "predictions": {
                "rows": self.predictions,
                "again": self.again,
                "unlabelled": self.unlabelled,
                "conflicting": self.conflicting,
                "refused": {name: vars(one) for name, one in self.refused.items()},
            },
            "labels": {**vars(self.labels), "counted": self.labels.counted},
            "total": self.total.as_dict(),
            "groups": [one.as_dict() for one in self.measured],
        }

    def says(self) -> list[str]:
        """A sentence for each thing that is not as one expects, beside what ``reading`` says."""
        told = [
            (self.labels.without_prediction, "labels are of no prediction here"),
            (self.labels.again, "labels repeat another, and count once"),
            (self.labels.empty, "labels hold no id or no label"),
        ]
        return [*self.read.told, *(f"{count:,} {words}" for count, words in told if count)]


def _iso(time: int | None) -> str | None:
    return None if time is None else datetime.fromtimestamp(time, timezone.utc).isoformat()
