"""The artifact: the result of a fit, as steps that any runtime can execute.

Fitters make artifacts; fusers, handlers and reports read them and depend on steps only, not on algorithms. On
disk an artifact is a folder of two files, ``manifest.yaml`` and ``params.safetensors``; the manifest holds
the sha256 of both, and nothing is ever unpickled.
"""

from __future__ import annotations

import secrets
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError

from calib_serve.artifact.contract import Contract
from calib_serve.artifact.decisions import Abstain, Choice, DecisionFacts, PredictionSets
from calib_serve.artifact.facts import (
    FitRecord,
    ModelFacts,
    Selection,
    read_metrics,
)
from calib_serve.artifact.kept_rows import KeptRows
from calib_serve.artifact.manifest import (
    MANIFEST,
    PARAMS,
    PARAMS_LIMIT,
    SCHEMA,
    digest,
    folder_id,
    pack_tensors,
    place_folder,
    plain,
    read_bytes,
    read_manifest,
    step_facts,
    unpack,
    write_manifest,
)
from calib_serve.artifact.steps import (
    STEPS,
    Examples,
    Head,
    InputShift,
    LogitMap,
    Mixture,
    ProbTable,
    SourceMaps,
    Sources,
    Step,
)
from calib_serve.core.arrays import AnyFloats, as_array, as_floats
from calib_serve.core.bins import Bins
from calib_serve.core.errors import ArtifactError, InputError, IntegrityError, SchemaError, ShapeError
from calib_serve.core.files import sha256, write_whole
from calib_serve.core.names import check_names
from calib_serve.metrics import Estimate
from calib_serve.scores import (
    LABELS,
    MASKED,
    ONE_COLUMN,
    Aggregate,
    Outputs,
    Places,
    Schema,
    Scores,
    aligned,
    alike,
    few,
    sigmoid,
    softmax,
    to_logits,
    two_columns,
)

S = TypeVar("S", bound=Step)

_MOST_COUNTED = 2**53  # beyond it floats do not count


@dataclass(frozen=True, eq=False, repr=False)
class Artifact:
    """The result of a fit and its metadata.

    Args:
        steps: In the order they act: at most one InputShift, at most one Head, any LogitMaps, at most one
            each of SourceMaps, Mixture and ProbTable.
        method: Name of the method that was fitted.
        classes: Number of classes K, at least 2; of labels L, at least 1, each with a sigmoid of its own and
            with neither Mixture nor map on log-probabilities.
        model: Facts of the model, or a mapping of them; its ``outputs`` "label_logits" or
            "label_probabilities" make the classes labels.
        data: Plain facts of the calibration set: str, numbers, lists, mappings.
        fit: Plain facts of the fit.
        before: Metrics without the calibration on held-out data: value, low and high by name.
        after: The same with the calibration.
        reference: Bins of the calibrated model on the calibration set.
        class_names: Names (K,), or ().
        versions: Version of each library that took part, by name.
        reference_classes: Predictions of each class on the calibration set (K,); () where not counted.
        examples: A few of the fit's own scores with their calibrated probabilities.
        sets: Prediction sets of calibrated probabilities, which they do not change.
        abstain: Threshold below which no prediction is made.
        contract: Promises of its confidence in production.
        kept: Rows that the model was run on, by which another file of it is known.
        choice: The action that each prediction leads to.

    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> artifact.of_logits(np.array([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """

    steps: tuple[Step, ...]
    method: str
    classes: int
    model: ModelFacts = field(default_factory=ModelFacts)
    data: Mapping[str, Any] = field(default_factory=dict)
    fit: FitRecord = field(default_factory=FitRecord)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    reference: Bins | None = None
    class_names: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    reference_classes: tuple[int, ...] = ()
    examples: Examples | None = None
    sets: PredictionSets | None = None
    abstain: Abstain | None = None
    contract: Contract | None = None
    kept: KeptRows | None = None
    choice: Choice | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", ModelFacts.of(self.model))
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if self.classes < (1 if self.is_multilabel else 2):
            raise InputError(f"a classifier has at least 2 classes, got {self.classes}")
        if self.model.outputs in ONE_COLUMN and self.classes != 2:
            raise InputError(f"{self.model.outputs} is of two classes, but there are {self.classes}")
        check_names(self.class_names)
        object.__setattr__(self, "reference_classes", tuple(int(n) for n in self.reference_classes))
        if any(not 0 <= n <= _MOST_COUNTED for n in self.reference_classes):
            raise InputError("reference_classes must be counts, and none negative")
        if self.reference is not None:
            _check_possible(self.reference)
        order = [STEPS.index(type(step)) for step in self.steps]
        single = [i for i in order if STEPS[i] is not LogitMap]
        if order != sorted(order) or len(single) != len(set(single)):
            kinds = ", ".join(step.kind for step in self.steps)
            wanted = "input_shift, head, logit_map ..., source_maps, mixture, prob_table"
            raise InputError(f"steps must be: {wanted}; got {kinds}")
        if self.contract is not None:
            self.contract.check_classes(self.classes)
        for step in self.steps:
            if step.classes not in (None, self.classes):
                raise ShapeError(
                    f"the {step.kind} step is for {step.classes} classes, the artifact for {self.classes}"
                )
        if self.is_multilabel:
            self._check_of_labels()
        object.__setattr__(self, "fit", FitRecord.of(self.fit))
        self._check_counts()
        for name in ("data", "before", "after", "versions"):
            object.__setattr__(self, name, plain(getattr(self, name), name))

    def _check_counts(self) -> None:
        """Raise ShapeError where class names, counts, thresholds or examples are of other classes."""
        prior = self.fit.prior
        found = {
            "class names": len(self.class_names) or None,
            "counts of them": len(self.reference_classes) or None,
            "thresholds of sets": None if self.sets is None else self.sets.classes,
            "classes of its decisions": None if self.choice is None else self.choice.classes,
            "old class shares": None if prior is None else len(prior.old),
            "new class shares": None if prior is None else len(prior.new),
            "columns of examples": None if self.examples is None else self.examples.logits.shape[1],
            "columns of kept rows": None if self.kept is None else self.kept.logits.shape[1],
        }
        for what, number in found.items():
            if number not in (None, self.classes):
                raise ShapeError(f"{self.classes} classes but {number} {what}")

    def _check_of_labels(self) -> None:
        if self.source_maps is not None:
            raise InputError("sources are of samples of one class each, not of labels")
        joint = self.mixture is not None or any(m.on == "log_probs" for m in self.logit_maps)
        full = any(m.weight.ndim == 2 for m in self.logit_maps)
        if joint or full or (self.table is not None and len(self.table.edges) != self.classes):
            raise InputError("a label is calibrated alone: by scales and biases (L,), or a table (L, B)")
        if any(one is not None for one in (self.sets, self.abstain, self.choice)):
            raise InputError("sets, abstention and actions are for one class a sample, not for labels")
        if self.contract is not None:
            raise InputError("a contract is for one class a sample, not for labels")

    @cached_property
    def is_multilabel(self) -> bool:
        """Tell whether its classes are labels, of which any number may be true."""
        return self.model.outputs in LABELS

    @property
    def depends_on_kind(self) -> bool:
        """Tell whether logits and log-probabilities of one model get different probabilities."""
        for step in self._of(LogitMap):
            if step.on == "log_probs" or not step.ignores_shift:
                return step.on == "logits"
        return self.is_multilabel

    def takes(self, outputs: Outputs) -> bool:
        """Tell whether scores of the kind ``outputs`` get the probabilities that the fitted kind gets.

        False where it was not recorded what these were, and it matters.
        """
        if self.is_multilabel or outputs in LABELS:
            return self.is_multilabel and outputs in LABELS
        fitted = self.model.outputs
        return not self.depends_on_kind or (fitted is not None and alike(fitted, outputs))

    def check_takes(self, outputs: Outputs | None, what: str) -> None:
        """Raise InputError where scores are not of the kind that it was fitted on.

        Args:
            outputs: Kind of the scores; None is not checked.
            what: Name of the scores in the message.
        """
        fitted = self.model.outputs
        if outputs is not None and fitted is not None and not self.takes(outputs):
            raise InputError(
                f"the calibration was fitted on {fitted}, and {what} are {outputs}: it makes other "
                f"probabilities of them; fit it on {outputs}, or say with --outputs what they are"
            )

    def has_model_steps_of(self, other: Artifact) -> bool:
        """Tell whether its input shift and head are those of ``other``: both then act on the same logits."""
        own, others = (
            ([step_facts(step) for step in one.model_steps], pack_tensors(one.model_steps))
            for one in (self, other)
        )
        return own == others

    def check_beside(self, served: Artifact) -> None:
        """Raise InputError unless it can run in the shadow of ``served``, on the same logits."""
        if self.classes != served.classes or self.is_multilabel or served.is_multilabel:
            raise InputError(
                f"a shadow has the {served.classes} classes of what is served, one a sample; got {self!r}"
            )
        if self.source_maps is not None:
            raise self._by_source("a shadow has one for all: take that of one source")
        if not self.has_model_steps_of(served):
            raise InputError(
                "the shadow changes the model in other ways than what is served, so its logits are others: "
                "run it as a model of its own, and give a reporter its fingerprint, and its probabilities "
                "with each prediction"
            )

    @property
    def input_shift(self) -> InputShift | None:
        """The step on the input, if any."""
        return next(iter(self._of(InputShift)), None)

    @property
    def head(self) -> Head | None:
        """The new last layers, if any."""
        return next(iter(self._of(Head)), None)

    @cached_property
    def logit_maps(self) -> tuple[LogitMap, ...]:
        """The steps on the logits; InputError where one of them is of each sample's source."""
        if self.source_maps is not None:
            raise self._by_source("this needs one map of all samples")
        return self._of(LogitMap)

    @cached_property
    def maps(self) -> tuple[LogitMap | SourceMaps, ...]:
        """The steps on the logits, those by source among them."""
        return (*self._of(LogitMap), *self._of(SourceMaps))

    @cached_property
    def source_maps(self) -> SourceMaps | None:
        """The step that has a map for each source, if any."""
        return next(iter(self._of(SourceMaps)), None)

    def _by_source(self, why: str) -> InputError:
        by = "" if self.source_maps is None else self.source_maps.by
        return InputError(
            f"the calibration has a map for each {by}, and {why}: say of which each sample is (sources=), or "
            'take the map of one, or by "" the common one, with Artifact.at'
        )

    def at(self, source: str) -> Artifact:
        """Return the calibration of one source; the common one for a source that is not known.

        What was measured, counted and promised is of all sources together, and is left out.

        Args:
            source: Its name.

        >>> both = Artifact((SourceMaps("site", ["a"], [1.0, 0.5]),), method="temperature", classes=2)
        >>> both.at("a").temperature, both.at("elsewhere").temperature
        (2.0, 1.0)
        """
        if self.source_maps is None:
            return self
        steps = tuple(step.at(source) if isinstance(step, SourceMaps) else step for step in self.steps)
        data = {name: self.data[name] for name in ("samples", "sha256") if name in self.data}
        alone = replace(self.only(*steps), data=data, contract=self.contract)
        return replace(alone, reference=None, reference_classes=(), before={}, after={})

    @cached_property
    def mixture(self) -> Mixture | None:
        """The step from logits to probabilities, where that is no softmax."""
        return next(iter(self._of(Mixture)), None)

    @cached_property
    def table(self) -> ProbTable | None:
        """The step on probabilities, if any."""
        return next(iter(self._of(ProbTable)), None)

    @property
    def model_steps(self) -> tuple[Step, ...]:
        """The steps inside the model: its InputShift and its Head."""
        return (*self._of(InputShift), *self._of(Head))

    @property
    def output_steps(self) -> tuple[LogitMap | SourceMaps | Mixture | ProbTable, ...]:
        """The steps that need the logits alone, and of which source each sample is."""
        return (*self.maps, *self._of(Mixture), *self._of(ProbTable))

    def only(self, *steps: Step) -> Artifact:
        """Make an artifact of these steps alone, without the examples and decisions of the whole.

        Args:
            *steps: Those of ``steps`` to keep.
        """
        fit = replace(self.fit, decisions=DecisionFacts())
        bare = replace(self, sets=None, abstain=None, contract=None, choice=None)
        return replace(bare, steps=steps, fit=fit, examples=None)

    def _of(self, kind: type[S]) -> tuple[S, ...]:
        return tuple(step for step in self.steps if isinstance(step, kind))

    @property
    def schema(self) -> Schema:
        """What its model's scores are, for whatever reads others of them."""
        model = self.model
        outputs = model.scale or model.outputs or "logits"
        by = None if self.source_maps is None else self.source_maps.by
        return Schema(outputs=outputs, class_names=self.class_names, columns=model.columns, by=by)

    def accepted(self, scores: Scores) -> Scores:
        """Return the scores with their columns in this artifact's order, by name.

        Raises:
            InputError: Where their classes or their kind are not those that it was fitted on, or a calibrated
                model made them, so that they would be calibrated twice.
            ShapeError: Where the number of classes differs.
        """
        if scores.calibrated_by:
            raise InputError(
                f"{scores.name} are calibrated probabilities already, and would be calibrated twice; give "
                "the model's own scores"
            )
        by = None if self.source_maps is None else self.source_maps.by
        if by is not None and scores.sources is not None and scores.schema.by != by:
            raise InputError(f"the sources of {scores.name} are by {scores.schema.by}, and maps are by {by}")
        found = scores.in_order(self.class_names)
        if found.classes != self.classes:
            raise ShapeError(f"the artifact is of {self.classes} classes, {found.name} of {found.classes}")
        self.check_takes(found.outputs, found.name)
        return found

    def probs(
        self,
        scores: Any,
        *,
        outputs: Outputs | None = None,
        class_axis: int | None = None,
        sources: Sources | None = None,
    ) -> NDArray[np.float64]:
        """Return calibrated probabilities (n, K) of a model's scores, of the kind that it was fitted on.

        Args:
            scores: Scores, a frame, whose columns are found by the class names, or an array (n, K), or (n,)
                of one column; of tokens, pixels or frames an array (n, ..., K) or (n, K, ...), and the
                probabilities have its axes. Where the artifact has an InputShift or a Head, they must come
                from the model with these already in place.
            outputs: Kind of the scores, where it is another.
            class_axis: Axis of the classes among more axes, 1 or -1, where it is another than in the fit.
            sources: Source of each sample, one text or n, as in ``of_logits``; None: the frame's column, or
                those of the ``Scores``.

        Raises:
            InputError: For scores of another kind, and without sources where the fit has them.
            ShapeError: For other classes, or axes of which two may hold them.

        >>> artifact = Artifact((), method="none", classes=2, model={"outputs": "probabilities"})
        >>> artifact.probs([[0.25, 0.75]]).round(9).tolist()
        [[0.25, 0.75]]
        """
        if (places := self._places(scores, outputs, class_axis)) is not None:
            each = places.of_each(sources)
            rows = places.rows(as_array(scores, "the scores"))
            return places.restored(self.probs(rows, outputs=outputs, sources=each))
        sources = aligned(scores, {"sources": sources})["sources"]
        outputs, expected = outputs or self._said_kind(), self.schema
        expected = expected if sources is None else replace(expected, by=None)
        found = self.accepted(Scores.of(scores, outputs=outputs, expected=expected, missing="none"))
        if sources is None and self.source_maps is not None:
            sources = found.sources
        return self._known(found.logits, sources)

    def one_place(
        self,
        probs: Any,
        aggregate: Aggregate,
        *,
        among: Any = None,
        class_axis: int | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the probabilities (n, K) of one place of each sample, and which place that is (n,).

        A receipt is of one class with one confidence: of a sequence or a picture, it is of this place, and
        its label is this place's class. The place is numbered in the order of its axes; where none takes
        part it is -1, and the row NaN, which gets no receipt.

        Args:
            probs: Calibrated probabilities of tokens, pixels or frames, as of ``probs``.
            aggregate: "least": the least confident place, which is the one to look at; right as often as it
                says where places err independently. "drawn": one drawn at random, of which that holds
                always.
            among: Which places take part (n, ...), such as those that are no padding; None: all.
            class_axis: Axis of the classes, 1 or -1, where it is another than in the fit.
            rng: What draws; None: a new generator.

        Raises:
            InputError: For another aggregate.
            ShapeError: For probabilities without places.
        """
        if aggregate not in get_args(Aggregate):
            raise InputError(f"aggregate must be least or drawn, got {aggregate!r}")
        p = as_floats(probs, "the probabilities")
        if p.ndim < 3:
            raise ShapeError(f"the probabilities must be (n, ..., K) or (n, K, ...), got {p.shape}")
        places = Places.of(p.shape, self.classes, axis=class_axis or self.model.class_axis)
        drawing = np.random.default_rng() if rng is None else rng
        return places.one_of_each(places.rows(p), aggregate, among=among, rng=drawing)

    def _places(self, scores: Any, outputs: Outputs | None, class_axis: int | None) -> Places | None:
        """The places of an array of more axes than (n, K), None of all else; ShapeError as ``probs``."""
        shape = tuple(getattr(scores, "shape", ()))
        if len(shape) < 3:
            return None
        columns = 1 if (outputs or self.model.outputs) in ONE_COLUMN else self.classes
        return Places.of(shape, columns, axis=class_axis or self.model.class_axis)

    def _said_kind(self) -> Outputs | None:
        """The kind of one column within [0, 1] that the fit was told is no probability, as cosines are."""
        if self.examples is None or self.model.outputs != "logit":
            return None
        z = np.diff(self.examples.logits, axis=1)
        return "logit" if ((z >= 0) & (z <= 1)).all() else None

    def calibrated(self, scores: Scores) -> Scores:
        """Return the scores as calibrated probabilities, with all that belongs to their samples."""
        found = self.accepted(scores)
        sources = found.sources if self.source_maps else None
        values = self._known(found.logits, sources)
        bounds, top = None, values.argmax(axis=1)[:, None]
        if found.bounds is not None:  # which a table of probabilities may turn around
            both = [to_logits(found.with_confidence(c), "probabilities") for c in found.bounds.T]
            ends = [self._known(z, sources) for z in both]
            all_of_it = [np.take_along_axis(p, top, axis=1) for p in (values, *ends)]
            bounds = np.concatenate([np.min(all_of_it, axis=0), np.max(all_of_it, axis=0)], axis=1)
        return replace(
            found,
            values=values,
            bounds=bounds,
            outputs="label_probabilities" if self.is_multilabel else "probabilities",
            class_names=self.class_names or found.class_names,
            calibrated_by=self.fingerprint,
        )

    def _known(self, logits: NDArray[np.floating[Any]], sources: Any = None) -> NDArray[np.float64]:
        """Calibrate logits (n, K); InputError where a mask left none of a class that a matrix reads."""
        probs = self.of_logits(logits, sources)
        lost = np.isnan(probs).any(axis=1) & (np.asarray(logits, np.float64) <= MASKED).any(axis=1)
        if lost.any():
            raise InputError(
                f"row {int(lost.argmax()) + 1} and {int(lost.sum()) - 1} others have masked classes, at "
                f"{MASKED:g} or less, and a matrix needs the logits of all: calibrate those before the mask, "
                "or fit without a matrix: --method temperature or vector (method=)"
            )
        return probs

    def of_logits(self, logits: ArrayLike, sources: Sources | None = None) -> NDArray[np.float64]:
        """Return calibrated probabilities (n, K) of logits (n, K), by the output steps.

        A row that is not finite, or so large that a step overflows, gets NaN and spoils no other: in a
        server's batch they are of others. ``probs`` refuses such scores. A masked class, at -9e8 and less,
        stays at 0, and the others share its probability; of a matrix, which needs all logits, its row is NaN.

        Args:
            logits: (n, K); of a binary model (n,) or (n, 1) too, where class 0 gets logit 0; of labels (n, L)
                log-odds. ``calib_serve.scores.to_logits`` makes them of probabilities. Where the artifact has
                an InputShift or a Head, they must come from the model with these already in place.
            sources: Source of each sample, one text or n, where the artifact has maps by source; "" asks for
                the common map, which one that it does not know gets, too, with a RuntimeWarning.

        Raises:
            InputError: Without sources where the artifact has maps by source, and with them where it has not.
            ShapeError: For another number of classes or sources.
        """
        maps = self.source_maps
        if maps is None and sources is not None:
            raise InputError("sources are given, and the calibration is one for all: leave sources= out")
        if maps is not None and sources is not None:
            names = [sources] if isinstance(sources, str) else sources
            if strange := sorted({str(one) for one in names} - {"", *maps.sources}):
                told = f"the common map is taken for sources that the fit did not know: {few(strange)}"
                warnings.warn(told, RuntimeWarning, stacklevel=2)
        return self.of_segments(logits, sources)[0]

    def of_segments(self, logits: ArrayLike, segments: Sources | None) -> tuple[NDArray[np.float64], int]:
        """Return probabilities as servers do, and how many of them the common map made.

        Args:
            logits: As of ``of_logits``.
            segments: Segment of each, one text or n: its source, where the artifact has maps by source.
        """
        maps = self.source_maps
        if maps is not None and segments is None:
            raise self._by_source("no sources are given")
        z: AnyFloats = as_floats(logits, "logits") if self.is_multilabel else two_columns(logits)
        if z.shape[1:] != (self.classes,):
            raise ShapeError(f"logits must be (n, {self.classes}), got {z.shape}")
        given = z
        with np.errstate(over="ignore", invalid="ignore"):
            for step in self.maps:
                z = step(z, segments)
            if self.maps and not np.isfinite(z.sum()):
                lost = np.asarray(np.isfinite(given).all(axis=1) & ~np.isfinite(z).all(axis=1))
                z = np.where(lost[:, None], np.nan, z)
        if self.is_multilabel:
            p = sigmoid(z)
            p = p if self.table is None else self.table.of_each(p)
        else:
            p = softmax(z) if self.mixture is None else self.mixture(z)
            p = p if self.table is None else self.table(p)
        unknown = 0 if maps is None or segments is None else int((maps.rows(segments, len(z)) == 0).sum())
        masked = given.astype(np.float64, copy=False) <= MASKED
        if not masked.any():
            return p, unknown
        p = np.where(masked & ~np.isnan(p), 0.0, p)
        with np.errstate(invalid="ignore"):  # of a row without any class
            return p if self.is_multilabel else p / p.sum(axis=1, keepdims=True), unknown

    def rounds(self, n: int) -> list[list[str] | None]:
        """Name n sources, in as many rounds as show each and an unknown one; [None] of one map for all.

        Args:
            n: Number of samples.
        """
        if self.source_maps is None:
            return [None]
        names = ("", *self.source_maps.sources)
        return [[names[i % len(names)] for i in range(at, at + n)] for at in range(0, len(names), n)]

    @property
    def temperature(self) -> float | None:
        """Return T where the output steps are one division by it, else None."""
        match self.output_steps:
            case [LogitMap(weight=weight, bias=None)] if weight.ndim == 0:
                return 1 / float(weight)
        return None

    @property
    def selection(self) -> Selection | None:
        """Selection of the method among others, or None where there was none."""
        return self.fit.selection

    @property
    def metrics_before(self) -> dict[str, Estimate]:
        """Metrics on held-out data without the calibration, by name; empty where not measured."""
        return read_metrics(self.before)

    @property
    def metrics_after(self) -> dict[str, Estimate]:
        """Metrics on held-out data with the calibration, by name."""
        return read_metrics(self.after)

    def __repr__(self) -> str:
        return f"Artifact({self._line()})"

    def _line(self) -> str:
        kinds = ", ".join(step.kind for step in self.steps) or "none"
        line = (
            f"{self.method}, {self.classes} {'labels' if self.is_multilabel else 'classes'}, steps: {kinds}"
        )
        ece = "positive_ece" if self.is_multilabel else "ece"
        measured = [found[ece] for found in (self.metrics_before, self.metrics_after) if ece in found]
        line += f", ECE {' -> '.join(f'{value:.4f}' for value in measured)}" if measured else ""
        sets = "" if self.sets is None else f", sets of {self.sets.coverage:.4g} ({self.sets.score})"
        abstains = f", abstains below {self.abstain.threshold:.4g}" if self.abstain else ""
        clauses = 0 if self.contract is None else len(self.contract.clauses)
        contract = f", a contract of {clauses} clause{'s' * (clauses > 1)}" if clauses else ""
        choice = "" if self.choice is None else f", decides by {self.choice.goal}"
        return line + sets + abstains + contract + choice

    @property
    def fingerprint(self) -> str:
        """The sha256 of everything in the artifact."""
        params = pack_tensors(self.steps, self.examples, self.sets, self.kept, self.choice)
        return str(self._manifest(sha256(params))["sha256"])

    def save(self, path: str | Path) -> Path:
        """Write the artifact atomically and return its folder.

        Args:
            path: Folder; an artifact that is there is replaced.

        Raises:
            ArtifactError: Where something else is there, or it cannot be written.
        """
        path = Path(path)
        params = pack_tensors(self.steps, self.examples, self.sets, self.kept, self.choice)
        manifest = write_manifest(self._manifest(sha256(params)))
        # Beside its place, on the same file system: only there is a rename atomic.
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            if path.exists() and not (
                path.is_dir() and {p.name for p in path.iterdir()} <= {MANIFEST, PARAMS}
            ):
                raise ArtifactError(f"{path} exists and is not an artifact; choose another folder")
            partial.mkdir(parents=True)
            write_whole(partial / PARAMS, params)
            write_whole(partial / MANIFEST, manifest)
            place_folder(partial, path)
        except OSError as error:
            raise ArtifactError(f"cannot write the artifact {path}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Artifact:
        """Read and check a folder written by ``save``.

        Raises:
            SchemaError: For a manifest that is not ours.
            IntegrityError: Where a hash does not match.
        """
        path = Path(path)
        while True:
            there = folder_id(path)
            try:
                return cls._load(path)
            except ArtifactError:
                if folder_id(path) == there:
                    raise
                # Another process replaced it between the two reads.

    @classmethod
    def _load(cls, path: Path) -> Artifact:
        manifest = read_manifest(path / MANIFEST)
        params = read_bytes(path / PARAMS, limit=PARAMS_LIMIT)
        # Before anything is parsed: a damaged file is refused whole.
        if sha256(params) != manifest.get("params_sha256"):
            raise IntegrityError(
                f"{path / PARAMS} is not the file the manifest was written for; fit or copy it again"
            )
        try:
            artifact = _build(manifest, params)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, SafetensorError) as error:
            raise SchemaError(f"{path} is not a valid artifact: {error}") from error
        return artifact

    def _manifest(self, params_sha256: str) -> dict[str, Any]:
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "method": self.method,
            "classes": self.classes,
            "class_names": list(self.class_names),
            "steps": [step_facts(step) for step in self.steps],
            "model": self.model.as_dict(),
            "data": self.data,
            "fit": self.fit.as_dict(),
            "before": self.before,
            "after": self.after,
            "reference": None
            if self.reference is None
            else {
                name: getattr(self.reference, name).tolist() for name in ("count", "confidence", "correct")
            },
            "reference_classes": list(self.reference_classes),
            "versions": self.versions,
            "params_sha256": params_sha256,
        }
        decisions = {n: getattr(self, n) for n in ("sets", "abstain", "contract", "choice")}
        content |= {name: rule.facts for name, rule in decisions.items() if rule is not None}
        return {**content, "sha256": digest(content)}


def _build(manifest: Mapping[str, Any], params: bytes) -> Artifact:
    reference = manifest["reference"]
    decided = (manifest.get(name) for name in ("sets", "choice"))
    steps, examples, sets, kept, choice = unpack(manifest["steps"], params, *decided)
    abstain, contract = manifest.get("abstain"), manifest.get("contract")
    return Artifact(
        steps,
        method=str(manifest["method"]),
        classes=int(manifest["classes"]),
        **{
            name: manifest[name]
            for name in ("model", "data", "fit", "before", "after", "versions", "class_names")
        },
        reference=None if reference is None else Bins(**reference),
        reference_classes=tuple(manifest["reference_classes"]),
        examples=examples,
        sets=sets,
        abstain=None if abstain is None else Abstain(**abstain),
        contract=None if contract is None else Contract.of(contract),
        kept=kept,
        choice=choice,
    )


def _check_possible(bins: Bins) -> None:
    """Raise InputError for bins with counts or sums that no predictions can have."""
    count, sums = bins.count, np.stack([bins.confidence, bins.correct])
    counts = np.isfinite(count).all() and (count >= 0).all() and (count <= _MOST_COUNTED).all()
    # Sums are rounded; NaN fails, too.
    if not (counts and (sums >= 0).all() and (sums <= count * (1 + 1e-9)).all()):
        raise InputError(
            "the reference bins are of no predictions: there are counts, and sums of confidence and correct "
            "between 0 and the count of their bin"
        )
