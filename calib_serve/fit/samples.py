"""The calibration set as every fitter sees it: checked once, and read in chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import AnyFloats, Codes, are_counts, as_floats, repeated, some_of
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.fit.measured import MEASURED
from calib_serve.fit.threads import cores
from calib_serve.metrics import group_codes
from calib_serve.scores import Outputs, Scores, check_ungrouped

if TYPE_CHECKING:
    from typing_extensions import Self

Out = TypeVar("Out")
ClassWeight = Union[ArrayLike, Literal["balanced"], None]

# Values a chunk holds: a few chunks in float64 fit a core's cache, and never double the memory of
# logits that are memory-mapped from disk.
_CHUNK = 1 << 17


@dataclass(frozen=True, eq=False)
class Samples:
    """Logits, class ids and weights that a calibration is fitted to.

    Weights may be counts (``core.arrays.are_counts``): the row is there as often. Others weigh. In both
    ways a weight of 0 leaves the row out before anything else: nothing, no fold either, depends on it.

    Args:
        logits: (n, K) of any float type; may be memory-mapped and larger than memory: read them by
            ``chunks``.
        labels: Class ids of these samples (n,); of a multi-label model (n, L), 0 or 1.
        weight: (n,), of mean 1; None: all weigh the same.
        rows: Rows of ``logits`` that belong to these samples (n,), so that a fold copies nothing; None: all.
        outputs: Kind of the scores before they became logits.
        groups: Group of each sample, from 0 (n,); None: each is its own.
        part: Whether they are a part of others, such as a fold.
        sources: Source of each sample (n,), by which they are calibrated; None: one for all.
    """

    logits: AnyFloats
    labels: NDArray[np.intp]
    weight: NDArray[np.float64] | None = None
    rows: NDArray[np.intp] | None = None
    outputs: Outputs = "logits"
    groups: NDArray[np.intp] | None = None
    part: bool = False
    sources: NDArray[np.str_] | None = None

    @classmethod
    def of(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        sample_weight: ArrayLike | None = None,
        class_weight: ClassWeight = None,
        outputs: Outputs | None = None,
        groups: ArrayLike | None = None,
    ) -> Samples:
        """Check ``Scores``, or what makes them.

        A row of soft labels counts for each class, by its share.

        Args:
            logits: Class scores (n, K), log-odds (n, L) of labels, or ``Scores``.
            labels: Class ids (n,) or names; shares of the classes (n, K); of labels (n, L), 0 or 1; None
                where ``Scores`` have them.
            sample_weight: (n,).
            class_weight: (K,), times the weight of its samples; "balanced": every class that occurs weighs
                the same.
            outputs: Kind of the scores; None: logits.
            groups: Which samples belong together (n,), numbers or text.

        Raises:
            InputError: Where scores, labels or weights cannot be right, and for class weights and groups of
                labels.
            ShapeError: Where shapes do not fit.
        """
        beside: dict[str, Any] = {"sample_weight": sample_weight, "groups": groups}
        given = Scores.of(logits, labels, outputs=outputs, expected="logits", **beside)
        if given.is_multilabel:
            if class_weight is not None:
                raise InputError("class_weight is for one class a sample; give each sample a weight instead")
            check_ungrouped(given.groups)  # folds could keep them whole, and no interval of a label would
        y, codes = given.labelled(), group_codes(given.groups, len(given))
        counted = cls(given.logits, y, outputs=given.outputs, groups=codes, sources=given.sources)
        if y.ndim > 1 and not given.is_multilabel:
            counted = counted._shared_out(y, given.weights)
        elif given.weights is not None:
            counted = counted._counted(given.weights)
        return replace(counted, weight=_weights(counted, class_weight))

    def _counted(self, weight: NDArray[np.float64]) -> Self:
        """Leave out rows of weight 0; repeat each row as its weight says, where weights are counts."""
        counts = are_counts(weight)
        rows = repeated(weight) if counts else np.flatnonzero(weight)
        # All rows in order need no index: chunks are then views of the file.
        whole = np.array_equal(rows, np.arange(len(self)))
        return self._at(rows, weight=None if counts else weight[rows], rows=None if whole else rows)

    def _at(self, index: Any, **more: Any) -> Self:
        groups = None if self.groups is None else _recoded(self.groups[index])
        sources = None if self.sources is None else self.sources[index]
        return replace(self, **{"labels": self.labels[index], "groups": groups, "sources": sources, **more})

    def probs(self, artifact: Artifact, part: slice, logits: AnyFloats) -> NDArray[np.float64]:
        """Calibrate a run of samples, each as of its source.

        Args:
            artifact: A calibration.
            part: The run, of m samples.
            logits: Their logits (m, K).
        """
        sources = None if self.sources is None else self.sources[part]
        return artifact.of_segments(logits, sources)[0]

    def _shared_out(self, soft: NDArray[np.float64], weight: NDArray[np.float64] | None) -> Self:
        """Repeat each row once for each class that it may be of, weighted by that share, in one group."""
        shares = soft if weight is None else soft * weight[:, None]
        rows, labels = np.nonzero(shares)
        groups = _recoded(rows if self.groups is None else self.groups[rows])
        return self._at(rows, labels=labels, weight=shares[rows, labels], rows=rows, groups=groups)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def is_multilabel(self) -> bool:
        """Whether any number of labels may be true of a sample."""
        return self.labels.ndim > 1

    @property
    def classes(self) -> int:
        """The number K of classes, or L of labels."""
        return int(self.logits.shape[1])

    @property
    def size(self) -> int:
        """The number of logits."""
        return len(self) * self.classes

    @property
    def weights(self) -> NDArray[np.float64]:
        """The weights (n,), ones where all are equal."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @property
    def units(self) -> int:
        """The number of independent units: samples, or groups of samples."""
        return len(self) if self.groups is None else int(self.groups.max()) + 1

    @property
    def size_said(self) -> str:
        """The number of independent units, in words."""
        return f"{self.units} samples" if self.groups is None else f"{self.units} groups of samples"

    def weighted_sum(self, terms: NDArray[Any], part: slice = slice(None)) -> Any:
        """Sum terms (..., m) of a run of samples, each times its weight.

        Args:
            terms: Numbers (..., m), one a sample of the run.
            part: The run, of m samples.
        """
        return terms.sum(axis=-1) if self.weight is None else terms @ self.weight[part]

    def mean(self) -> NDArray[np.float64]:
        """The weighted mean logit (K,) of each class."""
        sums = (self.weighted_sum(z.T, part) for part, z in self.chunks(np.float64))
        return np.asarray(sum(sums) / len(self), np.float64)

    def parts(self, values: int = _CHUNK, *, within: slice | None = None) -> Iterator[slice]:
        """Yield runs of samples, as slices.

        Args:
            values: Number of logits of a run, about.
            within: Run whose samples are divided; None: all samples.
        """
        step = max(1, values // self.classes)
        first, last = (0, len(self)) if within is None else (within.start, within.stop)
        for start in range(first, last, step):
            yield slice(start, min(start + step, last))

    def read(self, part: slice, dtype: type[np.floating[Any]] | None = None) -> AnyFloats:
        """The logits (m, K) of a run of samples.

        Args:
            part: Run of m samples.
            dtype: Type to convert them to; None: as they are.
        """
        chunk = self.logits[part if self.rows is None else self.rows[part]]
        return np.asarray(chunk if dtype is None else chunk.astype(dtype, copy=False))

    def chunks(
        self, dtype: type[np.floating[Any]] | None = None, *, values: int = _CHUNK
    ) -> Iterator[tuple[slice, AnyFloats]]:
        """Yield runs of samples with their logits, one after the other.

        Args:
            dtype: Type of the logits; None: as they are.
            values: Number of logits of a run, about.
        """
        for part in self.parts(values):
            # By column: maxima and sums along short rows take four times as long as all else.
            yield part, np.asfortranarray(self.read(part, dtype))

    def over_cores(self, function: Callable[[slice], Out]) -> list[Out]:
        """Call ``function`` with runs of samples that cover them, in order, on all cores if that pays."""
        n = len(self)
        if self.size < MEASURED.values_worth_threads or cores() == 1:
            return [function(slice(0, n))]
        step = -(-n // (4 * cores()))  # four runs a core balance the load
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(function, (slice(i, min(i + step, n)) for i in range(0, n, step))))

    def held_out(self, fold: Codes, fits: Sequence[Artifact]) -> Iterator[tuple[Codes, NDArray[np.float64]]]:
        """Yield rows of each fold, a chunk at a time, and their probabilities under a fit to the others.

        Args:
            fold: Fold of each sample, from 0 (n,).
            fits: Of each fold the fit to all others.
        """
        for f, artifact in enumerate(fits):
            index = np.flatnonzero(fold == f)
            held = self.take(index)
            for part, z in held.chunks(np.float64):
                yield index[part], held.probs(artifact, part, z)

    def take(self, index: slice | NDArray[Any]) -> Self:
        """Take a part of the samples, by position or mask; weights get mean 1 again.

        Args:
            index: Positions, a slice or a mask (n,).
        """
        rows = (np.arange(len(self)) if self.rows is None else self.rows)[index]
        weight = None if self.weight is None else self.weight[index]
        if weight is not None:
            # Of mean 1 in every part, so that a penalty weighs the same against the NLL.
            total = weight.sum()
            weight = weight * (len(weight) / total) if total > 0 else np.ones(len(weight))
        return self._at(index, weight=weight, rows=rows, part=True)

    def some(self, most: int) -> Self:
        """All samples, or ``most`` of them, evenly spread."""
        return self if len(self) <= most else self.take(some_of(len(self), most))


def has_names(scores: Any) -> bool:
    """Tell whether scores are a frame or a mapping, whose columns have names."""
    return hasattr(scores, "columns") or hasattr(scores, "column_names") or isinstance(scores, Mapping)


def _recoded(groups: NDArray[np.intp]) -> NDArray[np.intp]:
    """Codes from 0 without gaps."""
    return np.unique(groups, return_inverse=True)[1].astype(np.intp)


def _weights(samples: Samples, of_class: ClassWeight) -> NDArray[np.float64] | None:
    """The samples' weights times those of their classes, (n,) of mean 1; None where neither are given."""
    if of_class is None and samples.weight is None:
        return None
    weight, labels = samples.weights, samples.labels
    if isinstance(of_class, str):
        if of_class != "balanced":
            raise InputError(f"class_weight must be (K,) numbers or 'balanced', got {of_class!r}")
        weight = weight / np.bincount(labels, weights=weight)[labels]
    elif of_class is not None:
        per_class = as_floats(of_class, "class_weight")
        if per_class.shape != (samples.classes,):
            raise ShapeError(f"class_weight must be ({samples.classes},), got {per_class.shape}")
        weight = weight * per_class[labels]
    if not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise InputError("weights must be finite, not negative and not all zero")
    weight = weight / weight.max()  # the sum of very large ones is infinite
    return np.asarray(weight * (len(weight) / weight.sum()))
