"""The scores of a classifier with the labels, weights and groups of each sample, in one frozen record."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.arrays import as_array, as_floats
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import check_names, shown
from calib_serve.scores.classes import class_ids, plain_label, without
from calib_serve.scores.grouping import copies_of, groups_of_ids, source_names
from calib_serve.scores.kinds import (
    LABELS,
    ONE_COLUMN,
    PROBABILITIES,
    Floats,
    Outputs,
    class_count,
    exact,
    to_logits,
    to_probs,
)
from calib_serve.scores.named import named_scores
from calib_serve.scores.raw_scores import RawScores, of_arrays, of_columns
from calib_serve.scores.recognition import (
    FEW,
    NUMBERED,
    CellNames,
    Recognised,
    check_ranks,
    check_sentinels,
    recognise,
)
from calib_serve.scores.scales import Scaled, scaled_kind
from calib_serve.scores.schema import OF_ANSWERS, Schema
from calib_serve.scores.table import TAKEN, Asked, few

log = logging.getLogger(__name__)

_ABSENT = "absent=0"
"""What ``missing`` says where a class that a row does not name has the score 0."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of n samples; made by ``Scores.of`` from arrays and frames, by ``Scores.read`` from files.

    Args:
        values: (n, K), or (n, 1) of one column.
        outputs: Kind of the values.
        labels: Class ids (n,); of a multi-label model (n, L), 0 or 1; soft ones (n, K), rows that sum to 1;
            None where not known.
        class_names: Names (K,), or ().
        weights: (n,).
        groups: Which samples belong together (n,).
        copies: Of which row each is a copy (n,), where rows are; None where they are not.
        ids: Names of the samples (n,).
        sources: Which source each is of, as texts (n,); ``schema.by`` names the column.
        remarks: What was read and left out, a line each.
        name: Where they came from.
        calibrated_by: Fingerprint of the artifact that made them, or "".
        schema: What was said and read of their kind and columns.
        reading: What was read, in one line: kind and why, classes in order, labels, and the remarks.
        class_axis: Axis of the classes where they came with more axes than (n, K): 1, or -1 for the last.
        bounds: Least and greatest confidence of each sample (n, 2), where a part of it is not known.

    >>> scores = Scores.of([[0.25, 0.75], [0.5, 0.5]], ["dog", "cat"], class_names=["cat", "dog"])
    >>> scores.outputs, scores.labels.tolist()
    ('probabilities', [1, 0])
    >>> scores.reading
    "the scores: 2 rows of probabilities (their rows sum to 1) of 'cat', 'dog'"
    """

    values: Floats
    outputs: Outputs
    labels: NDArray[Any] | None = None
    class_names: tuple[str, ...] = ()
    weights: NDArray[np.float64] | None = None
    groups: NDArray[Any] | None = None
    copies: NDArray[np.intp] | None = None
    ids: NDArray[Any] | None = None
    sources: NDArray[np.str_] | None = None
    remarks: tuple[str, ...] = ()
    name: str = "the scores"
    calibrated_by: str = ""
    schema: Schema = field(default_factory=Schema)
    reading: str = ""
    class_axis: int | None = None
    bounds: Floats | None = None

    @classmethod
    def of(
        cls,
        scores: Any,
        labels: Any = None,
        *,
        outputs: str | None = None,
        columns: Sequence[str] | None = None,
        class_names: Sequence[Any] = (),
        sample_weight: Any = None,
        groups: Any = None,
        ids: Any = None,
        by: Any = None,
        ignore_label: Any = None,
        missing: Any = None,
        schema: Schema | str | Path | None = None,
        expected: Schema | Outputs | None = None,
        name: str = "the scores",
    ) -> Scores:
        """Make scores of arrays of any library, a frame, or a mapping of column names to arrays.

        ``Scores`` themselves may be given what they lack, and nothing else. Of frames and mappings the
        columns are known by their names (``calib_serve.scores.table``), and ``labels``, ``sample_weight``,
        ``groups`` and ``ids`` may name one.

        Args:
            scores: (n, K), (n,) for one number a sample of a binary model, or (n, K, ...) or (n, ..., K) with
                labels (n, ...), as of pictures, whose pixels are then samples and each picture a group.
            labels: Ids, names or booleans (n,), (n, L) of a multi-label model, or soft (n, K).
            outputs: Kind of the scores, or their scale, such as "percent" (``calib_serve.scores.scales``);
                without it their names say it, or rows that sum to 1, and all else is refused.
            columns: Names of the classes' columns.
            class_names: Names of the classes (K,).
            sample_weight: (n,).
            groups: Which samples belong together (n,).
            ids: Names of the samples (n,).
            by: Column that says the source of each sample, by which they are calibrated; beside an array a
                mapping of its name to the sources (n,).
            ignore_label: One or more labels that stand for none, such as 255; these samples are left out.
            missing: One or more scores that stand for none, such as -999; "none" where no score does.
            schema: What else is said of them, or its file.
            expected: Kind of the scores where nobody says so, such as that of a fit, and names of its
                classes; numbers that contradict it are refused.
            name: Name of the scores in messages.

        Raises:
            InputError: Where they are no scores; it names row and column.
            ShapeError: Where shapes differ.
        """
        beside = {"label": labels, "weight": sample_weight, "group": groups, "id": ids}
        if isinstance(scores, Scores):
            gone = None if _texts(missing) in ((), ("none",)) else missing
            apart = {"columns": columns, "ignore_label": ignore_label, "missing": gone, "schema": schema}
            for what, given in apart.items():
                if given is not None:
                    raise InputError(f"these scores were made already: say {what}= where they are made")
            return scores._again(outputs, tuple(map(str, class_names)), beside, by)
        key, sources = _by(by)
        void = {"missing": _texts(missing), "ignore_label": _texts(ignore_label)}
        known = {"outputs": outputs, "columns": columns, "class_names": tuple(map(str, class_names)), **void}
        said = _schema(schema).under({**known, "by": key})
        wanted, table = _schema(expected), _as_table(scores)
        said["by"] = said["by"] or (None if table is None else wanted.by)
        asked = _asked(said, wanted)
        given = {what: one for what, one in {**beside, "source": sources}.items() if one is not None}
        given = aligned(scores, given)
        if table is not None:
            source = of_columns(table, asked, {**asked.beside, **given})
        elif columns is not None:
            raise InputError("columns are of frames and tables; of an array choose them by indexing")
        else:
            # Other columns that a schema names are of its tables; sources must be there.
            needed = {} if said["by"] is None else {"source": said["by"]}
            source = of_arrays(as_array(scores, name), {**needed, **given})
        found = made(replace(source, name=name), said, expected=wanted)
        return _in_names(found, said, expected)

    @classmethod
    def of_logits(
        cls,
        logits: Any,
        labels: Any,
        outputs: Outputs,
        *,
        class_names: Sequence[str] = (),
        name: str = "the scores",
    ) -> Scores:
        """Make scores of logits that ``to_logits`` made of a model's scores.

        Args:
            logits: (n, K).
            labels: Class ids (n,).
            outputs: Kind of the model's scores.
            class_names: Names of the classes (K,).
            name: Name of the scores in messages.
        """
        z: Floats = as_array(logits, name)
        kinds: dict[Outputs, Outputs] = {"logits": "logits", "logit": "logit"}
        kind = "label_logits" if outputs in LABELS else kinds.get(outputs, "log_probs")
        values = z[:, 1:] - z[:, :1] if kind == "logit" else z
        return cls.of(values, labels, outputs=kind, class_names=class_names, name=name)

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        split: str | None = None,
        labels: str | Path | None = None,
        outputs: str | None = None,
        columns: Sequence[str] | None = None,
        class_names: Sequence[Any] = (),
        sample_weight: str | Path | None = None,
        groups: str | Path | None = None,
        by: str | None = None,
        ignore_label: Any = None,
        missing: Any = None,
        schema: Schema | str | Path | None = None,
        expected: Schema | Outputs | None = None,
    ) -> Scores:
        """Read one split of a file: npz, npy, csv, tsv, jsonl (also gz), parquet.

        See ``calib_serve.scores.files``.

        Args:
            path: File.
            split: Split to read, such as "test", where the file has several.
            labels: Column or array of the file, or an npy file.
            outputs: Kind or scale of the scores; see ``of``.
            columns: Names of the classes' columns.
            class_names: Names of the classes (K,).
            sample_weight: Column or array of the file, or an npy file.
            groups: Column or array of the file, or an npy file.
            by: Column or array of the file that says the source of each sample, by which they are calibrated.
            ignore_label: One or more labels whose samples are left out.
            missing: One or more scores that stand for none; see ``of``.
            schema: What else is said of them, or its file.
            expected: Kind and classes where nobody says so; see ``of``.

        Raises:
            InputError: Where it cannot be read; it names the file, row and column.
        """
        from calib_serve.scores.files import read_source  # noqa: PLC0415 - readers of files alone
        from calib_serve.scores.rows import naming  # noqa: PLC0415

        texts = {"labels": labels, "sample_weight": sample_weight, "groups": groups}
        given: dict[str, Any] = {name: None if v is None else str(v) for name, v in texts.items()}
        given |= {"outputs": outputs, "columns": columns, "class_names": tuple(map(str, class_names))}
        wanted = _schema(expected)
        given |= {"missing": _texts(missing), "ignore_label": _texts(ignore_label)}
        said = _schema(schema).under({**given, "by": by or wanted.by})
        if (said["outputs"] or "").startswith(OF_ANSWERS):
            if split is not None:
                raise InputError("a file of answers has no splits: give a file of each")
            return _of_answers(Path(path), said, wanted)
        source = read_source(Path(path), _asked(said, wanted), split)
        with naming(path):
            return _in_names(made(source, said, expected=wanted), said, expected)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def classes(self) -> int:
        """K, at least 2; the number of labels of a multi-label model."""
        return class_count(self.outputs, self.values.shape[1])

    @property
    def clusters(self) -> NDArray[Any] | None:
        """Which samples count as one for intervals and verdicts (n,): groups, else copies."""
        return self.copies if self.groups is None else self.groups

    @property
    def is_multilabel(self) -> bool:
        """Tell whether any number of labels may be true of a sample."""
        return self.outputs in LABELS

    @cached_property
    def logits(self) -> Floats:
        """The logits that calibrations act on, (n, K); (n, L) log-odds of labels."""
        return to_logits(self.values, self.outputs)

    @property
    def probs(self) -> ProbsView:
        """The probabilities (n, K) of the scores, made block by block where they are read."""
        return ProbsView(self.values, self.outputs)

    def with_confidence(self, confidence: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Probabilities (n, K) whose largest are others; the other classes keep their shares of the rest.

        Args:
            confidence: The probability of each sample's likeliest class (n,).
        """
        found, at = self.probs[:], np.arange(len(self))
        top = found.argmax(axis=1)
        found[at, top] = 0
        rest = found.sum(axis=1, keepdims=True)
        found = np.where(rest > 0, found / np.where(rest > 0, rest, 1), 1 / (self.classes - 1))
        found *= 1 - confidence[:, None]
        found[at, top] = confidence
        return found

    def labelled(self) -> NDArray[Any]:
        """Return the labels; InputError where they are not known."""
        if self.labels is None:
            raise InputError(
                f"{self.name} have no labels: give them (labels=, --labels), or name their column 'label'"
            )
        return self.labels

    def take(self, index: NDArray[Any] | slice) -> Scores:
        """Return some of the samples.

        Args:
            index: Positions or a mask.
        """
        parts: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[index]
            for name in ("labels", "weights", "groups", "copies", "ids", "sources", "bounds")
        }
        return replace(self, values=self.values[index], **parts)

    def in_order(self, names: Sequence[str], *, of: str = "the artifact") -> Scores:
        """Put the columns into the order of ``names``; without names on either side they stay where they are.

        Args:
            names: Names of the classes.
            of: Owner of the names, in messages.

        Raises:
            InputError: Where the names differ.
        """
        own = self.class_names
        if not own or not names or own == tuple(names) or self.outputs in ONE_COLUMN:
            return self
        if set(own) != set(names):
            strange = [name for name in own if name not in names] or [n for n in names if n not in own]
            raise InputError(
                f"the classes of {self.name} are {few(own)}, those of {of} {few(names)}: {few(strange)} "
                "is not in both; name the columns alike, or choose them (--columns, columns=)"
            )
        # By name alone: columns in another order give wrong probabilities that look right.
        order = np.array([own.index(name) for name in names])
        labels = self.labels
        if labels is not None:
            labels = np.argsort(order)[labels] if labels.ndim == 1 else labels[:, order]
        said = f"columns are put into the order of {of}, by their names"
        return replace(
            self,
            values=self.values[:, order],
            labels=labels,
            class_names=tuple(names),
            remarks=(*self.remarks, said),
        )

    def _again(
        self, outputs: str | None, class_names: tuple[str, ...], beside: Mapping[str, Any], by: Any
    ) -> Scores:
        """The same scores with labels, weights, groups, ids, sources or class names that they lack."""
        if outputs is not None and scaled_kind(outputs, self.values.shape[1]) != self.outputs:
            raise InputError(f"these scores are {self.outputs} already, and outputs= says {outputs}")
        names = class_names or self.class_names
        if self.class_names and names != self.class_names:
            raise InputError(
                f"these scores are of the classes {few(self.class_names)} already, and class_names= says "
                f"{few(names)}"
            )
        if len(names) not in (0, self.classes):
            raise ShapeError(f"{self.classes} classes but {len(names)} class names")
        check_names(names)
        found = self if names == self.class_names else replace(self, class_names=names)
        labels, weight, group, ids = (beside[what] for what in ("label", "weight", "group", "id"))
        if labels is not None and labels is not self.labels:
            given = RawScores(self.values, {"label": labels}, class_names=names, name=self.name)
            said = {**Schema(outputs=self.outputs).under({}), "missing": ("none",)}
            found = replace(found, labels=made(given, said, expected=Schema()).labels)
        if weight is not None:
            found = replace(found, weights=row_weights(weight, len(self)))
        if group is not None:
            found = replace(found, groups=_column(group, len(self), "groups"))
        if by is not None:
            key, sources = _by(by, beside=True)
            own = source_names(sources, len(self), key)
            found = replace(found, sources=own, schema=replace(self.schema, by=key))
        return found if ids is None else replace(found, ids=_column(ids, len(self), "ids"))


class ProbsView:
    """Probabilities (n, K) of scores, not held in memory: rows are computed when they are read.

    Args:
        values: Scores, (n, K), (n,) or (n, 1).
        outputs: Kind of the scores.

    >>> view = Scores.of([[0.0, 0.0], [1.0, 1.0]], outputs="logits").probs
    >>> view.shape, view[:1].tolist()
    ((2, 2), [[0.5, 0.5]])
    """

    def __init__(self, values: Floats, outputs: Outputs) -> None:
        self._values, self._outputs = values, outputs
        self.shape = (len(values), class_count(outputs, values.shape[1]))
        self.dtype, self.ndim = np.dtype(np.float64), 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if isinstance(rows, tuple):  # as an array: rows and columns
            return self[rows[0]][
                (slice(None) if isinstance(rows[0], slice) else np.arange(len(rows[0])), rows[1])
            ]
        values = np.asarray(self._values[rows])
        if self._outputs not in PROBABILITIES:
            return to_probs(values, self._outputs)
        p = values.astype(np.float64)
        if self._outputs == "probability":
            return np.concatenate([1 - p, p], axis=1)
        if self._outputs == "probabilities":
            total = p.sum(axis=1, keepdims=True)
            # Half precision rounds rows further from 1 than metrics in float64 may see.
            if np.abs(total - 1).max(initial=0) > 1e-6:
                p /= total
        return p

    def take(self, rows: NDArray[np.intp], axis: int = 0) -> ProbsView:
        """Some rows, as a view.

        Args:
            rows: Positions (m,).
            axis: 0, as numpy's ``take`` has it.
        """
        return ProbsView(self._values.take(rows, axis=0), self._outputs)

    def described(self, rows: slice, labels: NDArray[np.intp]) -> tuple[NDArray[np.float64], ...]:
        """Describe some rows: probabilities (m, K), -log p_y (m,), finite of logits, and entropies (m,).

        Args:
            rows: Slice of m rows.
            labels: Class ids of these (m,).
        """
        if self._outputs in PROBABILITIES:
            p = self[rows]
            logs = np.log(np.maximum(p, np.finfo(np.float64).tiny))
            with np.errstate(divide="ignore"):
                lost = np.abs(np.log(p[np.arange(len(p)), labels]))
            return p, lost, np.maximum(-np.einsum("nk,nk->n", p, logs), 0)
        z = to_logits(self._values[rows], self._outputs).astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        true = z[np.arange(len(z)), labels]
        np.maximum(z, -800.0, out=z)  # whose probability is 0
        p = np.exp(z)
        total = np.einsum("nk->n", p)
        p /= total[:, None]
        log_total = np.log(total)
        return p, log_total - true, log_total - np.einsum("nk,nk->n", p, z)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)


def _schema(given: Schema | Outputs | str | Path | None) -> Schema:
    """What is said: a schema, its file, or a kind of scores alone."""
    if isinstance(given, Schema):
        return given
    if given is None or given in get_args(Outputs):
        return Schema(outputs=None if given is None else str(given))
    return Schema.load(given)


def _asked(said: Mapping[str, Any], expected: Schema) -> Asked:
    """What is asked of a table, by what was said of it and what is expected of its scores."""
    names = {"label": "labels", "weight": "sample_weight", "group": "groups", "source": "by"}
    return Asked(
        said["columns"],
        {what: said[name] for what, name in names.items() if said[name] is not None},
        expected=expected.columns,
        classes=said["class_names"] or expected.class_names,
        told=said["outputs"] is not None or expected.outputs is not None,
    )


def _by(by: Any, *, beside: bool = False) -> tuple[Any, Any]:
    """The name of the sources, and the sources (n,) where they are ``beside`` the scores."""
    if not beside and (by is None or isinstance(by, str)):
        return by, None
    if not isinstance(by, Mapping) or len(by) != 1:
        raise InputError(f"by is the name of a column, or a mapping of it to the sources, got {shown(by)}")
    return next(iter(by.items()))


def _texts(given: Any) -> tuple[str, ...]:
    """Labels or scores that stand for none, each as the text that names it."""
    several = () if given is None else [given] if np.ndim(given) == 0 else list(given)
    return tuple("nan" if (text := plain_label(one)) is None else str(text) for one in several)


def made(source: RawScores, said: Mapping[str, Any], *, expected: Schema) -> Scores:
    """Check scores from a file or a caller, and make ``Scores`` of them.

    ``said``: entries of ``Schema`` that the user said.
    """
    names = said["class_names"] or source.class_names
    # First: a void label often stands beside a void score.
    source, left_out = _kept(source, said["ignore_label"] or (), names or expected.class_names)
    source = _filled(source, said["missing"] or ()) if source.gaps else source
    source, none = _scored(source, said["missing"]) if said["missing"] else (source, [])
    n, columns = source.values.shape
    if not n:
        raise InputError("there is no sample")
    outputs = None if said["outputs"] is None else Scaled.parse(said["outputs"])
    beside = source.beside
    labels = _shaped(as_array(beside["label"], "labels"), source.values) if "label" in beside else None
    called = source.roles.scores if len(source.roles.scores) == columns else names if columns > 1 else ()
    place = replace(source.place, names=tuple(called))
    found, scale = _recognised(source, outputs, expected, place)
    kind = found.outputs
    if not said["missing"]:
        check_sentinels(found.values, kind, place)
    if source.gaps and kind not in PROBABILITIES:
        raise InputError(f"a class that a row does not name may have the probability 0, and these are {kind}")
    classes = class_count(kind, columns)
    if names and len(names) not in (classes, columns):
        raise ShapeError(f"{classes} classes but {len(names)} class names")
    own = tuple(names) if len(names) == classes else ()
    remarks = []
    if labels is not None:
        if labels.ndim == 2 and kind not in LABELS and not _is_soft(labels):
            raise InputError(
                f"labels are ({', '.join(map(str, labels.shape))}), any number of which may be true, and the "
                f"scores are {kind}: say --outputs label_probabilities or label_logits (outputs=)"
            )
        column = source.class_names[0] if len(source.class_names) == 1 != classes else ""
        labels, own, remark = _labels_of(labels, kind, classes, column, replace(place, names=own))
        remarks += [remark] if remark else []
        if not said["labels"]:
            _check_truths(found.values, kind, labels, source)
    check_names(own)
    read = f"{n:,} rows of {scale if scale and scale.scale else kind} ({found.why})"
    read += f" of {few(own)}" if own else ""
    read += f"; labels in {shown(source.roles.label)}" if source.roles.label is not None else ""
    groups = _column(beside["group"], n, "groups") if "group" in beside else None
    ids = _column(beside["id"], n, "ids") if "id" in beside else None
    if groups is None and ids is not None and kind not in LABELS and (said_of_ids := groups_of_ids(ids)):
        groups, remarks = ids, [*remarks, said_of_ids]
    copies = None
    if groups is None and labels is not None and labels.ndim == 1 and kind not in LABELS:
        copies = copies_of(found.values, labels, kind)
    if copies is not None:
        remarks += [f"rows repeat with their labels: copies of each of {copies.max() + 1:,} rows are a group"]
    taken = [f"{shown(name)} {TAKEN[what]}" for what, name in source.roles.beside.items() if what in TAKEN]
    remarks = [*taken, *source.remarks, *left_out, *none, *remarks]
    reading = "; ".join([f"{source.name}: {read}", *remarks])
    log.info("%s", reading)
    return Scores(
        values=found.values,
        outputs=kind,
        labels=labels,
        class_names=own,
        weights=row_weights(beside["weight"], n) if "weight" in beside else None,
        groups=groups,
        copies=copies,
        ids=ids,
        sources=source_names(beside["source"], n, said["by"]) if "source" in beside else None,
        remarks=tuple(remarks),
        name=source.name,
        calibrated_by=source.calibrated_by,
        schema=Schema(
            outputs=scale.text if scale and scale.scale else kind,
            class_names=own,
            columns=source.roles.scores,
            # What is said may be a file beside the scores, which has no role among their columns.
            labels=said["labels"] or source.roles.label,
            groups=said["groups"] or source.roles.group,
            sample_weight=said["sample_weight"] or source.roles.weight,
            by=said["by"],
            missing=tuple(said["missing"] or ()),
            ignore_label=tuple(said["ignore_label"] or ()),
        ),
        reading=reading,
        class_axis=source.class_axis,
        bounds=source.bounds,
    )


def _of_answers(path: Path, said: Mapping[str, Any], expected: Schema) -> Scores:
    """Read a file of answers of a language model; ``said`` names the file of its words."""
    from calib_serve.scores.answers import LabelWords, answers_in  # noqa: PLC0415 - few scores are answers
    from calib_serve.scores.rows import naming  # noqa: PLC0415

    words = LabelWords.load(said["outputs"].removeprefix(OF_ANSWERS))
    if given := [name for name in ("columns", "class_names") if said[name]]:
        raise InputError(f"the words of answers name the classes; leave {given[0]} out")
    with naming(path):
        source = answers_in(path, words, _asked(said, expected).beside)
        source = replace(source, name=path.name.partition(".")[0])
        return made(source, {**said, "outputs": "probabilities"}, expected=expected)


def _in_names(scores: Scores, said: Mapping[str, Any], expected: Schema | Outputs | None) -> Scores:
    """The scores; InputError where only they, or only the artifact that expects them, name the classes."""
    read, own = scores.schema.columns, scores.class_names
    by_position = said["columns"] or said["class_names"] or not read or scores.outputs in ONE_COLUMN
    if not isinstance(expected, Schema) or by_position or expected.columns == read:
        return scores
    if expected.class_names and not own:
        raise InputError(
            f"the artifact's classes are {few(expected.class_names)}, and {scores.name} name none: say "
            f"whose the columns are, in order (schema --class-names, class_names=)"
        )
    if own and not expected.class_names and own != tuple(map(str, range(len(own)))):
        raise InputError(
            f"the columns are {few(own)}, and the artifact's classes have no names: say in which order the "
            "columns are its classes (--columns, columns=)"
        )
    return scores


def _recognised(
    source: RawScores, outputs: Scaled | None, expected: Schema, place: CellNames
) -> tuple[Recognised, Scaled | None]:
    """The scores of a kind, and what said or named it."""
    values, columns = source.values, source.values.shape[1]
    named, why = _named(source, expected, columns, outputs)
    scale = outputs or named
    sure = why == "by name" or len(values) >= FEW
    if outputs is None and named is not None and named.text == "percent" and sure and values.max() <= 1:
        raise InputError(
            f"{place.columns(columns)} should hold percent ({why}), and no number is above 1: say "
            f"--outputs percent (outputs=), or {exact('probabilities', columns)} of fractions"
        )
    if scale is not None:
        values = scale.values(values, place)
    kind_said = None if outputs is None else outputs.kind
    kind_named = None if named is None else named.kind
    found = recognise(values, kind_said, named=kind_named, why=why, place=place)
    if outputs is None and expected.outputs is None:
        check_ranks(found.values, found.outputs, place)
    return found, scale


def _named(
    source: RawScores, expected: Schema, columns: int, said: Scaled | None
) -> tuple[Scaled | None, str]:
    """The kind by the names of the scores, else the expected one, and who says so."""
    own = None if source.outputs is None else Scaled.parse(source.outputs)
    wanted = None if expected.outputs is None else Scaled.parse(expected.outputs)
    # Logits of classes and of labels are both called logits.
    if own is not None and not (own.kind == "logits" and wanted is not None and wanted.kind in LABELS):
        # Log-probabilities of some classes alone are logits.
        kinds = [exact(own.kind, columns), *(["logits"] if own.kind == "log_probs" else [])]
        if said is not None and exact(said.kind, columns) not in kinds:
            raise InputError(
                f"the scores are named {own.text}, and --outputs (outputs=) says {said.text}: leave it "
                "out, or name other columns (--columns, columns=)"
            )
        return own, "by name"
    if wanted is None:
        return None, ""
    several: dict[Outputs, Outputs] = {"logit": "logits", "probability": "probabilities"}
    kind = several.get(wanted.kind, wanted.kind) if columns > 1 else wanted.kind
    return replace(wanted, kind=kind), "as expected"


def _filled(source: RawScores, missing: Sequence[str]) -> RawScores:
    """Take classes that a row does not name for 0 where that is said, else refuse them.

    Others that sum to 1 are no proof: a float32 softmax rounds to 1 above a rest of 6e-8.
    """
    if "nan" in missing:
        return replace(source, gaps=False)
    gone = np.isnan(source.values)
    if _ABSENT in missing:
        return replace(source, values=np.where(gone, 0, source.values))
    row = int(gone.any(axis=1).argmax())
    lacks = [name for name, lacks in zip(source.class_names, gone[row], strict=True) if lacks]
    raise InputError(
        f"column {source.roles.scores[0]!r}, {source.place.row(row)} has no score of {few(lacks)}, and an "
        f"unknown rest is not 0: write all scores (top_k=None), say schema --missing {_ABSENT} (missing=) if "
        "the others are 0 or schema --missing nan to leave such rows out, or calibrate the ranks"
    )


def _scored(source: RawScores, missing: Sequence[str]) -> tuple[RawScores, list[str]]:
    """Leave out samples with a score that stands for none."""
    missing = [one for one in missing if one != _ABSENT]
    if not missing or missing == ["none"]:
        return source, []
    try:
        wanted = [float(one) for one in missing]
    except ValueError:
        given = ", ".join(missing)
        raise InputError(f"schema --missing (missing=) is numbers, nan or none, got {given}") from None
    cells = np.isin(source.values, wanted) | (np.isnan(source.values) & any(map(math.isnan, wanted)))
    gone = np.asarray(cells.any(axis=1))
    said = f"{int(gone.sum())} of {len(gone)} rows are left out: their score is {', '.join(missing)}"
    return (source.take(~gone), [said]) if gone.any() else (source, [])


def _check_truths(values: Floats, kind: Outputs, labels: NDArray[Any], source: RawScores) -> None:
    """Raise InputError where a column that is called a label holds the predicted class of each row.

    Not where the scores are so sure that all of them may be right.
    """
    name = source.roles.label
    if name is None or labels.ndim != 1 or kind in LABELS or len(labels) < FEW:
        return
    looked_at = slice(100_000)
    probs = to_probs(values[looked_at], kind)
    # All are right with the chance of a millionth, by the scores.
    if (probs.argmax(axis=1) != labels[looked_at]).any() or np.log(probs.max(axis=1)).sum() > -14.0:
        return
    raise InputError(
        f"{shown(name)} is the predicted class in all of {len(labels)} rows, which the scores "
        f"make unlikely: if it is the truth, say --labels {name} (labels=), else name the truth"
    )


def _kept(source: RawScores, ignored: Sequence[str], names: Sequence[str]) -> tuple[RawScores, list[str]]:
    """Leave out samples with an ``ignored`` label; a class that is called as none is one."""
    if not ignored or "label" not in source.beside:
        return source, []
    kept = without(as_array(source.beside["label"], "labels", missing=True), ignored, names)
    out = int((~kept).sum())
    if not out:
        return source, []
    labels = ", ".join(map(str, ignored))
    return source.take(kept), [f"{out} of {len(kept)} samples are left out, as their label is {labels}"]


def _labels_of(
    labels: NDArray[Any], kind: Outputs, classes: int, column: str, place: CellNames
) -> tuple[NDArray[Any], tuple[str, ...], str]:
    """Class ids (n,), truths (n, L) or soft labels (n, K), the class names, and a remark."""
    names = place.names
    if kind in LABELS:
        return labels01(labels, (len(labels), classes), place), names, ""
    if labels.ndim == 1:
        return class_ids(labels, classes, names, column=column, place=place)
    soft = as_floats(labels, "labels")
    if soft.shape[1] != classes:
        raise ShapeError(f"soft labels are (n, {classes}), got {soft.shape}")
    if np.isin(soft, (0, 1)).all():
        return soft.argmax(axis=1), names, "labels are one-hot"
    return soft, names, "labels are soft: each row is the share of each class"


def _is_soft(labels: NDArray[Any]) -> bool:
    """Whether rows (n, K) are shares of classes, or one-hot."""
    if labels.dtype.kind not in "fiub" or labels.shape[1] < 2:
        return False
    shares = labels.astype(np.float64)
    return bool((shares >= 0).all() and (np.abs(shares.sum(axis=1) - 1) < 1e-6).all())


def labels01(labels: Any, shape: tuple[int, ...], place: CellNames = NUMBERED) -> NDArray[np.intp]:
    """Check labels of 0 and 1, and return them as integers (n, L).

    Args:
        labels: (n, L); of a single label (n,) will do.
        shape: (n, L).
        place: Names of rows and labels in errors.

    Raises:
        InputError: Where a label is neither; it names its place.
        ShapeError: Where the shape is another.
    """
    given = as_array(labels, "labels")
    y = given[:, None] if given.ndim == 1 and shape[1:] == (1,) else given
    if y.shape != shape:
        raise ShapeError(f"labels must be {shape}, 0 or 1 for each label of each sample, got {given.shape}")
    try:
        numbers = y.astype(np.float64)
    except ValueError as error:
        raise InputError(f"each label must be 0 or 1, {error}") from None
    wrong = np.argwhere(~np.isin(numbers, (0, 1)))
    if len(wrong):
        row, k = (int(i) for i in wrong[0])
        what = "is missing" if np.isnan(numbers[row, k]) else f"is {numbers[row, k]:g}, not 0 or 1"
        raise InputError(
            f"the label in {place.cell(row, k)} {what}; leave such rows out, or say schema --ignore-label "
            "(ignore_label=)"
        )
    return numbers.astype(np.intp)


def _shaped(labels: NDArray[Any], values: Floats) -> NDArray[Any]:
    """Labels (n,) or (n, L).

    A single column is (n,), unless scores are one column too and it is 0 or 1.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim not in (1, 2) or len(labels) != len(values) or (labels.ndim == 2 and values.shape[1] < 2):
        raise ShapeError(
            f"labels must be ({len(values)},), one for each row of the scores, got {labels.shape}"
        )
    return labels


def row_weights(given: Any, n: int) -> NDArray[np.float64]:
    """Check weights, and return them as float64.

    Args:
        given: Weights (n,), finite, not negative and not all zero.
        n: Number of samples.

    Raises:
        InputError: Where weights are no such numbers.
        ShapeError: Where their shape is another.
    """
    weights = as_floats(given, "sample_weight")
    if weights.shape != (n,):
        raise ShapeError(f"sample_weight must be ({n},), got {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise InputError("weights must be finite, not negative and not all zero")
    return weights


def check_ungrouped(groups: Any) -> None:
    """Raise InputError for groups of multi-label samples."""
    if groups is not None:
        raise InputError(
            "groups are for one class a sample, not for labels: leave groups= out, and drop a "
            "column or array that is called group"
        )


def _column(given: Any, n: int, what: str) -> NDArray[Any]:
    column = as_array(given, what)
    if column.shape != (n,):
        raise ShapeError(f"{what} must be ({n},), one for each row of the scores, got {column.shape}")
    return column


def _as_table(scores: Any) -> Mapping[str, NDArray[Any]] | None:
    """A frame of pandas or polars, an Arrow table, a mapping, or named scores a row, as columns by name.

    None of anything else.
    """
    if isinstance(scores, (list, tuple)) and (cells := _named_cells(scores)) is not None:
        columns, values = named_scores("scores", scores)
        whole = columns and not np.isnan(values).any()
        return {name: values[:, k] for k, name in enumerate(columns)} if whole else {"scores": cells}
    names = getattr(scores, "column_names", None)  # pyarrow
    names = getattr(scores, "columns", None) if names is None else names
    if isinstance(scores, Mapping):
        names = list(scores)
    if names is None or isinstance(scores, np.ndarray) or not hasattr(scores, "__getitem__"):
        return None
    texts = [str(name) for name in names]
    if len(set(texts)) < len(texts):
        raise InputError(f"a column is named twice: {shown(next(t for t in texts if texts.count(t) > 1))}")
    found = {}
    for text, name in zip(texts, names, strict=True):
        cells = _named_cells(scores[name])
        found[text] = as_array(scores[name], text, missing=True) if cells is None else cells
    return found


def _named_cells(column: Any) -> NDArray[Any] | None:
    """A column whose cells are mappings, or lists of mappings or pairs, as objects; None of others."""
    if any(kind in str(getattr(column, "type", "")) for kind in ("struct<", "map<")):
        column = column.to_pylist()  # of pyarrow
    cells = column if hasattr(column, "__len__") and np.ndim(column[:0]) == 1 else ()
    first = next((cell for cell in cells if cell is not None), None)
    inside = first[0] if isinstance(first, (list, tuple, np.ndarray)) and len(first) else first
    return np.fromiter(cells, object, len(cells)) if isinstance(inside, (Mapping, tuple)) else None


def aligned(scores: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Put what belongs to the rows into their order by the index, where both have one.

    Args:
        scores: A frame, or anything without an index.
        beside: Labels and others, by what they are.

    Raises:
        InputError: Where the indices are of other rows.
    """
    index: Any = getattr(scores, "index", None)
    found = dict(beside)
    if not hasattr(index, "equals"):
        return found
    for what, given in beside.items():
        other: Any = getattr(given, "index", None)
        if not hasattr(other, "equals") or index.equals(other):
            continue
        if len(index) != len(other) or not (index.is_unique and other.is_unique and index.isin(other).all()):
            raise InputError(
                f"the index of the {what} is not that of the scores: give both one index, or arrays "
                "(to_numpy()) to go by position"
            )
        found[what] = given.loc[index]
    return found
