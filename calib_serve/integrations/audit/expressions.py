"""Queries of the logs: predictions joined with their labels; each prediction has one fate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from calib_serve.core.bins import check_binning
from calib_serve.core.errors import InputError

FATES = ("labelled", "unlabelled", "conflicting", "repeated", "id", "class", "confidence", "weight", "time")
"""What becomes of a prediction; a number in expressions.

``labelled`` ones are measured. ``conflicting`` labels of one id that differ count as none, and so do several
predictions of one id that differ, ``repeated``. The others are refused for a column that holds no value, or
one that cannot be.
"""
LABELLED, SERVED, REFUSED = 0, (0, 1, 2), (3, 4, 5, 6, 7, 8)
_CONFLICTING, _REPEATED = 2, 3

Kind = Literal["probabilities", "percent", "log_probs"]
"""What a column of confidences holds."""

_KINDS = {"integer": "is_integer", "text": "is_string", "boolean": "is_boolean"}


@dataclass(frozen=True)
class Columns:
    """The name of each column in the user's tables.

    Args:
        id: Id of the prediction, of predictions and labels.
        predicted: Predicted class.
        confidence: Its probability, in [0, 1]; or that of a class that is said (``confidence_of``).
        label: True class, of labels.
        model: Name of the model; it may be missing.
        version: Its version; it may be missing.
        time: When it was predicted; it may be missing.
        weight: One over the chance with which the label was asked for, at least 1; it may be missing.

    >>> Columns(confidence="score").confidence, Columns().label
    ('score', 'label')
    """

    id: str = "id"
    predicted: str = "predicted"
    confidence: str = "confidence"
    label: str = "label"
    model: str = "model"
    version: str = "version"
    time: str = "time"
    weight: str = "weight"

    def __post_init__(self) -> None:
        for one in fields(self):
            if not isinstance(getattr(self, one.name), str) or not getattr(self, one.name):
                raise InputError(
                    f"the column of the {one.name} must have a name, got {getattr(self, one.name)!r}"
                )


def check_columns(table: Any, names: Sequence[str], *, what: str, where: str) -> None:
    """Raise InputError unless the table has all these columns."""
    if missing := [name for name in names if name not in table.columns]:
        have = ", ".join(table.columns[:20])
        # Of a name that the user gave there is nothing more to say.
        own = next((name for name in missing if name in vars(Columns())), None)
        hint = f". If it is called otherwise, say --column {own}=NAME" if own else ""
        raise InputError(f"{what} {where}: no column {', '.join(missing)}; it has {have}{hint}")


def _check_alike(one: Any, other: Any, *, what: str, hint: str = "") -> None:
    """Raise InputError where two columns hold values that are never equal, such as text and numbers."""
    if _kind(one) != _kind(other):
        raise InputError(
            f"{what} cannot be compared: {one.get_name()} is {one.type()}, {other.get_name()} is "
            f"{other.type()}; cast one of them to the type of the other{hint}"
        )
    if "float" in _kind(one):
        raise InputError(f"{what} must be integers, text or booleans, got {one.type()}; cast them")


def _kind(column: Any) -> str:
    kind = column.type()
    if kind.is_decimal() and not kind.scale:  # how some warehouses call integers
        return "integer"
    return next((name for name, is_it in _KINDS.items() if getattr(kind, is_it)()), str(kind))


def _number(column: Any, *, what: str) -> Any:
    """The column in float64; InputError where it holds no numbers."""
    kind = column.type()
    if not kind.is_numeric() or kind.is_boolean():
        raise InputError(f"{what} must be numbers, got {column.get_name()} of type {kind}")
    return column if kind.is_float64() and kind.nullable else column.cast("float64")


def seconds(column: Any) -> Any:
    """Convert a time with its zone, or a number of seconds, to whole seconds since 1970 in UTC.

    InputError for a time without a zone: which moment it was is not known.
    """
    kind = column.type()
    if kind.is_numeric() and not kind.is_boolean():
        moment = column.cast("float64")
        # Milliseconds taken for seconds would lie in the year 50000, and be counted nowhere.
        known = ((moment > -1e11) & (moment < 1e11) & ~moment.isnan()).fill_null(False)
        return known.ifelse(moment, None).floor().cast("int64")
    if not kind.is_timestamp():
        raise InputError(
            f"the time of predictions must be a timestamp with a zone, or seconds since 1970, got "
            f"{column.get_name()} of type {kind}"
        )
    if kind.timezone is None:
        raise InputError(
            f"the times in {column.get_name()} have no zone, so which moment they are is not known; write "
            "them as UTC (timestamp with time zone), or as seconds since 1970"
        )
    return column.epoch_seconds().cast("float64").floor().cast("int64")


@dataclass(frozen=True)
class AuditQuery:
    """A query of the logs: by which columns ``by``, from ``since`` until before ``until``, in windows.

    Times are whole seconds since 1970 in UTC; None is without an end, or one window. ``unique``: nobody looks
    whether ids are repeated. ``of_predicted``: confidences are of the predicted class, else of ``event``.
    """

    columns: Columns
    by: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    every: int | None = None
    bins: int = 15
    unique: bool = False
    kind: Kind = "probabilities"
    ignored: tuple[str, ...] = ()
    of_predicted: bool = True
    event: Any = None

    def __post_init__(self) -> None:
        check_binning(self.bins, "right")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InputError("since must lie before until: no prediction is between them")
        if len(set(self.by)) < len(self.by):
            raise InputError(f"a column is named twice to group by: {', '.join(self.by)}")

    @property
    def timed(self) -> bool:
        """Whether the query reads times."""
        return not (self.since is None and self.until is None and self.every is None)

    @property
    def start(self) -> int:
        """The start of the first window, or of one a whole number of windows from it."""
        return self.since or 0

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of an expression that name a prediction's group and window."""
        return (*by_name(self.by), *(("at",) if self.every else ()))


def by_name(by: Sequence[str]) -> tuple[str, ...]:
    """The names of the columns to group by in expressions: the user's names may clash with ours."""
    return tuple(f"by{i}" for i in range(len(by)))


def prediction_rows(table: Any, asked: AuditQuery, *, where: str) -> Any:
    """Select the predictions in the window: id, predicted, confidence, weight, and where they count."""
    import ibis  # noqa: PLC0415

    names = asked.columns
    # Of a class that is said, predictions are for the reader alone, where there are any of classes.
    has_class = asked.of_predicted or (
        names.predicted in table.columns and not table[names.predicted].type().is_floating()
    )
    needed = [names.id, *([names.predicted] if has_class else []), names.confidence, *asked.by]
    check_columns(table, [*needed, *([names.time] if asked.timed else [])], what="predictions", where=where)
    confidence = _probability(_number(table[names.confidence], what="confidences"), asked.kind)
    # DuckDB knows the largest number of a Parquet file, NaN aside, and compares that.
    fits = ((confidence >= 0) & (confidence <= 1) & ~confidence.isnan()).fill_null(False)
    refused = [
        (table[names.id].isnull(), "id"),
        *([(table[names.predicted].isnull(), "class")] if asked.of_predicted else []),
        (~fits, "confidence"),
    ]
    made = {
        "id": table[names.id],
        **({"predicted": table[names.predicted]} if has_class else {}),
        # A sum over what is refused is of no use, and in some engines an error.
        "confidence": fits.ifelse(confidence, 0.0),
        **{
            short: table[name].cast("string") for short, name in zip(by_name(asked.by), asked.by, strict=True)
        },
    }
    if names.weight in table.columns:
        weight = _number(table[names.weight], what="weights")
        weighs = ((weight >= 1) & ~weight.isinf() & ~weight.isnan()).fill_null(False)
        made["weight"] = weighs.ifelse(weight, 1.0)
        refused.append((~weighs, "weight"))
    if asked.timed:
        made["at"] = seconds(table[names.time])
        refused.append((made["at"].isnull(), "time"))
    made["refused"] = ibis.cases(*((case, FATES.index(name)) for case, name in refused), else_=0)
    rows = table.select(**made)
    if asked.since is not None:
        rows = rows.filter(rows["at"].isnull() | (rows["at"] >= asked.since))
    if asked.until is not None:
        rows = rows.filter(rows["at"].isnull() | (rows["at"] < asked.until))
    if asked.every:
        window = ((rows["at"] - asked.start).cast("float64") / float(asked.every)).floor().cast("int64")
        rows = rows.mutate(at=window)
    elif asked.timed:
        rows = rows.drop("at")
    return rows


def _probability(given: Any, kind: Kind) -> Any:
    """The column as probabilities; beyond [0, 1] where it holds none of its kind."""
    import ibis  # noqa: PLC0415

    if kind == "percent":
        return given / 100.0
    if kind == "log_probs":
        # Engines that refuse to overflow or underflow compute neither.
        return ibis.cases((given <= 0, ibis.greatest(ibis.least(given, 0.0), -700.0).exp()), else_=2.0)
    return given


def classes_seen(predictions: Any) -> Any:
    """A row for each predicted class: how often, and the confidences it is between."""
    sound = predictions["refused"] == 0
    c = predictions["confidence"]
    return predictions.group_by("predicted").agg(
        count=predictions.count(), low=c.min(where=sound), high=c.max(where=sound)
    )


def as_ids(column: Any, ids: Mapping[Any, int]) -> Any:
    """The column's values as class ids."""
    return column.cases(*ids.items(), else_=None).cast("int64") if ids else column.cast("int64")


def label_rows(table: Any, asked: AuditQuery, *, where: str) -> Any:
    """The labels that have an id and a value, which is not ignored: ``id`` and ``label``."""
    names = asked.columns
    check_columns(table, [names.id, names.label], what="labels", where=where)
    rows = table.select(id=table[names.id], label=table[names.label])
    known = rows["id"].notnull() & rows["label"].notnull()
    # As text: a label is a number, a name or a truth value.
    return rows.filter(known & ~rows["label"].cast("string").isin(asked.ignored) if asked.ignored else known)


def joined(predictions: Any, labels: Any, asked: AuditQuery, *, repeats: bool) -> Any:
    """Join each prediction with its ``fate``, whether it is ``correct``, its ``bin`` and its label count.

    ``repeats``: some ids have several predictions. Alike ones count once, and others as ``repeated``.
    """
    import ibis  # noqa: PLC0415

    _check_alike(predictions["id"], labels["id"], what="ids of predictions and labels")
    if asked.of_predicted:
        hint = ", or name the classes in the order of their ids (--class-names)"
        _check_alike(
            predictions["predicted"], labels["label"], what="predicted classes and labels", hint=hint
        )
    if repeats:
        predictions = _of_one_id(predictions)
    if not asked.unique:
        each = labels.group_by("id")
        # One pass tells the label, and whether several of one id differ.
        labels = each.agg(label=labels["label"].min(), other=labels["label"].max(), rows=labels.count())
    else:
        labels = labels.mutate(rows=1)
    labels = labels.rename(label_id="id")
    both = predictions.left_join(labels, predictions["id"] == labels["label_id"])
    fate = [(both["refused"] > 0, both["refused"]), (both["rows"].isnull(), 1)]
    if not asked.unique:
        fate.append((both["label"] != both["other"], _CONFLICTING))
    came = both["predicted"] == both["label"] if asked.of_predicted else both["label"] == asked.event
    return both.mutate(
        fate=ibis.cases(*fate, else_=LABELLED).cast("int8"),
        correct=came.ifelse(1, 0).cast("float64"),
        bin=_bin(both["confidence"], asked.bins),
        # Several predictions of one id share its labels.
        rows=both["rows"].fill_null(0) / both["alike"] if repeats else both["rows"].fill_null(0),
    )


def _of_one_id(predictions: Any) -> Any:
    """Each distinct prediction once, with the number ``alike`` that share its id.

    Several of one id are refused.
    """
    import ibis  # noqa: PLC0415

    rows = predictions.distinct()
    rows = rows.mutate(alike=rows["id"].count().over(ibis.window(group_by="id")))
    several = rows["alike"] > 1
    rows = rows.mutate(refused=several.ifelse(_REPEATED, rows["refused"]))
    return rows.mutate(alike=ibis.greatest(rows["alike"], 1))  # 0 without an id


def _bin(confidence: Any, bins: int) -> Any:
    """Return the right-closed bin of each confidence in [0, 1], as ``core.bins.bin_index`` has it.

    The same edges to the last bit: multiples of 1 / bins, which numpy's linspace makes too.
    """
    import ibis  # noqa: PLC0415

    # Of a text, as engines read a number with a point as a decimal, and round it.
    step = ibis.literal(repr(1 / bins)).cast("float64")
    below = (confidence * float(bins)).floor()
    index = below + (confidence > (below + 1).cast("float64") * step).ifelse(1, 0)
    # Multiplication rounds: a product that is one too high, on the edge itself, is put right as well.
    index = index - (confidence <= below.cast("float64") * step).ifelse(1, 0)
    return ibis.least(ibis.greatest(index, 0), bins - 1)
