"""Refits: the served calibration, fitted again on recent samples and kept if there is evidence for it.

The evidence is prequential: every label is predicted by a fit to those before it alone, so that all labels
judge, and it may be read after any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.arrays import Floats
from calib_serve.core.bins import Bins, bin_index, psi
from calib_serve.core.errors import CalibServeError, FitError, InputError
from calib_serve.core.options.base import changed
from calib_serve.core.options.fit import RefitOptions
from calib_serve.core.text import percent
from calib_serve.fit.from_scores import fit_samples
from calib_serve.fit.progress import Progress
from calib_serve.fit.samples import Samples
from calib_serve.scores import Outputs, Scores, log_probs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import RefitKeywords

LEAST = 200  # labelled samples, below which nothing is fitted
Probs = Callable[[NDArray[np.floating[Any]]], Floats]
"""Logits (n, K) -> probabilities (n, K)."""


@dataclass(frozen=True, eq=False)
class Refitted:
    """The new artifact, where the evidence for it suffices, and the numbers that decided.

    Args:
        artifact: The new one; None where the evidence is too weak.
        samples: Number of samples.
        held_out: Number of the latest ones, which are measured under fits to earlier ones; of groups the
            first of each.
        nll: Of the current and the new artifact on these.
        ece: Of the current and the new artifact on these.
        gain: Fall of the NLL, in pairs.
        error: Standard error of the gain.
        evidence: Wealth of a stake of 1 that was bet, label by label, on a fit to the labels before against
            the current artifact (``calib_serve.fit.refitting``); the new one is kept from ``1 / alpha`` on.
        alpha: Chance of keeping a new one, at most, while labels are drawn from the current calibration.
        lost: Decisions of the current artifact that the new one does not have.
        shift: How far confidences and predicted classes of all samples are from those of the calibration set:
            the population stability index, and how much of one chance alone would show.
    """

    artifact: Artifact | None
    samples: int
    held_out: int
    nll: tuple[float, float]
    ece: tuple[float, float]
    gain: float
    error: float
    evidence: float
    alpha: float
    lost: tuple[str, ...] = ()
    shift: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "kept": self.artifact is not None,
            "method": self.artifact.method if self.artifact else None,
            "samples": self.samples,
            "held_out": self.held_out,
            "nll": {"current": self.nll[0], "new": self.nll[1]},
            "ece": {"current": self.ece[0], "new": self.ece[1]},
            "gain": self.gain,
            "standard_error": self.error,
            "evidence": self.evidence,
            "needed": 1 / self.alpha,
            "alpha": self.alpha,
            "lost": list(self.lost),
            "shift": {name: {"psi": psi, "by_chance": chance} for name, (psi, chance) in self.shift.items()},
        }

    def says(self) -> str:
        """The decision in some lines, for a person."""
        lines = [
            f"{name} against those of the calibration set: PSI {psi:.2f}, {chance:.2f} by chance"
            for name, (psi, chance) in self.shift.items()
        ]
        lines += [
            f"on the latest {self.held_out} of {self.samples} samples: NLL {self.nll[0]:.4f} -> "
            f"{self.nll[1]:.4f}, ECE {percent(self.ece[0])} -> {percent(self.ece[1])}",
            f"evidence against the current calibration: {self.evidence:.3g}, {1 / self.alpha:.3g} needed; a "
            f"calibration that is right is replaced with a chance of at most {100 * self.alpha:.3g} %, "
            "however often this is asked",
        ]
        if self.artifact is None:
            return "\n".join([*lines, "not enough evidence that a new one is better; the current one stays"])
        lines.append(f"better: {self.artifact.method}, fitted on all of them")
        if self.lost:
            lines.append(
                f"the new one has no {' and no '.join(self.lost)}: those of the current one hold for its "
                "own probabilities; fit them again"
            )
        if self.artifact.contract is not None:
            lines.append(
                "the contract stays as it is; whether the new one keeps it, say labels that it has not seen: "
                "calib-serve contract check"
            )
        return "\n".join(lines)


def refit(
    current: Artifact,
    scores: Any,
    labels: Any = None,
    options: RefitOptions | None = None,
    *,
    progress: Progress | None = None,
    **keywords: Unpack[RefitKeywords],
) -> Refitted:
    """Fit the output steps again; the input shift and the head stay.

    Every label is predicted by a fit to those before it. How far these would move the current one, which was
    fitted to ``current.data["samples"]`` itself, is no evidence. The new artifact, fitted on all, is kept
    where the evidence for it reaches ``1 / alpha``: while labels are drawn from the current calibration that
    happens with a chance of at most ``alpha``, even if asked again whenever there are more samples at the
    end. That needs the same first sample every time; each other first sample has a chance of its own. Of a
    group the first label alone judges.

    Args:
        current: The calibration that is served now.
        scores: What was served since then, oldest first, as ``current.probs`` takes it: scores (n, K) of the
            model with its input shift and head in place.
        labels: Class ids or names (n,); by default those in ``scores``.
        options: A ``RefitOptions``; keywords replace its fields.
        progress: Called with a stage, and how much of it is done, of how much.
        **keywords: Fields of ``RefitOptions``: ``alpha``, ``class_names``, ``columns``, ``groups``,
            ``ignore_label``, ``method``, ``missing``, ``outputs``, ``sample_weight``, ``schema``, ``seed``.

    Raises:
        FitError: For fewer than 200 samples.
        InputError: For arrays and options that cannot be right; ShapeError for other shapes.
    """
    options = changed(options or RefitOptions(), keywords, refit)
    if current.is_multilabel:
        raise InputError(
            "a refit is for one class a sample, and this artifact is multi-label; fit it on new data, with "
            "calib-serve fit"
        )
    if current.source_maps is not None:
        by = current.source_maps.by
        raise InputError(
            f"a refit is of one map for all, and this artifact has one for each {by}: fit it on new data, "
            f"with calib-serve fit --by {by}"
        )
    expected: Outputs = current.model.outputs or "logits"
    found = Scores.of(scores, labels, expected=expected, name="the samples", **options.of_scores)
    samples = Samples.of(current.accepted(found))
    if samples.units < LEAST:
        raise FitError(f"{samples.size_said} with labels; at least {LEAST} are needed to fit and to judge")
    samples = replace(samples, outputs=current.model.outputs or samples.outputs)

    def fit(part: Samples) -> Artifact:
        return _fitted(current, part, options, progress)

    # Every label judges, and none is lost to a part that is held out for it.
    n = current.data.get("samples")
    fitted_to = float(n) if isinstance(n, int) and n > 0 else math.inf  # unknown, as if it were exact
    ahead = prequential(samples, current.of_logits, lambda part: fit(part).of_logits, fitted_to=fitted_to)
    # The latest, of which NLL and ECE are told.
    held = ahead.judging[len(ahead.judging) - int(len(ahead.judging) * 0.3) :]
    old, new = ahead.nll[:, held]
    gains = old - new
    before, after = (
        Bins.tally(c, right).ece()
        for c, right in zip(ahead.confidence[:, held], ahead.right[:, held], strict=True)
    )
    # Ville 1939: while the current one is right, this is reached with a chance of at most alpha.
    enough = ahead.log_evidence[-1] >= -math.log(options.alpha)
    decisions = (
        ("prediction sets", current.sets),
        ("abstention", current.abstain),
        ("actions", current.choice),
    )
    return Refitted(
        fit(samples) if enough else None,
        samples=len(samples),
        held_out=len(gains),
        nll=(float(old.mean()), float(new.mean())),
        ece=(before, after),
        gain=float(gains.mean()),
        error=float(gains.std(ddof=1) / math.sqrt(len(gains))),
        evidence=math.exp(min(float(ahead.log_evidence[-1]), 700.0)),  # finite
        alpha=options.alpha,
        lost=tuple(name for name, rule in decisions if rule is not None),
        shift=_shift(current, current.of_logits(samples.logits)),
    )


def _shift(current: Artifact, probs: NDArray[np.float64]) -> dict[str, tuple[float, float]]:
    """Compare served predictions with the artifact's reference, as far as it has one."""
    pairs = {}
    if current.reference is not None and current.reference.n:
        bins = bin_index(np.minimum(probs.max(axis=1), 1.0), bins=len(current.reference))
        pairs["confidences"] = (bins, current.reference.count)
    if sum(current.reference_classes):
        pairs["predicted classes"] = (probs.argmax(axis=1), np.array(current.reference_classes))
    found = {}
    for name, (served, known) in pairs.items():
        # The mean of a PSI where nothing has moved: its degrees of freedom over both sample sizes.
        chance = (np.count_nonzero(known) - 1) * (1 / len(served) + 1 / known.sum())
        found[name] = (psi(np.bincount(served, minlength=len(known)), known), float(chance))
    return found


def _fitted(
    current: Artifact, samples: Samples, options: RefitOptions, progress: Progress | None
) -> Artifact:
    """Fit new output steps of the current artifact, with the reference bins of these samples."""
    fresh = fit_samples(
        samples,
        options.method,
        {},
        class_names=current.class_names,
        cross_validate=False,
        seed=options.seed,
        progress=progress,
    )
    return replace(
        fresh,
        steps=(*current.model_steps, *fresh.steps),
        model=current.model,
        data={**fresh.data, "refit_of": current.fingerprint},
        contract=current.contract,  # a promise to users, whatever it is kept with
    )


@dataclass(frozen=True, eq=False)
class Prequential:
    """The probabilities of the current and the new calibrations for each label, oldest first.

    Each array is (2, n), of the current one and of a fit to earlier blocks: the ``nll`` of the label, the
    ``confidence`` of the top class and whether it was ``right``. In the first block, and in one after which
    nothing could be fitted, the second row is the current one's. ``log_evidence`` (n,) is after each label.
    ``judging`` (m,) are the rows that judge: all, or of each group the first, which no fit to those before it
    has seen.
    """

    nll: Floats
    confidence: Floats
    right: NDArray[np.bool_]
    log_evidence: Floats
    judging: NDArray[np.intp]


def prequential(
    samples: Samples, current: Probs, fit: Callable[[Samples], Probs], *, fitted_to: float = math.inf
) -> Prequential:
    """Judge the current calibration against a ``fit`` to all that came before each block of samples.

    ``fitted_to`` is how many samples the current one was fitted to. Raises the error of the last block's fit
    where no block could be fitted.
    """
    n, y = len(samples), samples.labels
    nll, confidence, right = np.empty((2, n)), np.empty((2, n)), np.empty((2, n), np.bool_)
    pays = np.zeros(n)

    def judge(row: int, part: slice, probs: Floats) -> None:
        top = probs.argmax(axis=1)
        rows = np.arange(len(probs))
        nll[row, part] = -log_probs(probs[rows, y[part]])
        confidence[row, part] = np.minimum(probs[rows, top], 1.0)
        right[row, part] = top == y[part]

    for part, z in samples.chunks(np.float64):
        judge(0, part, current(z))
    nll[1], confidence[1], right[1] = nll[0], confidence[0], right[0]
    starts, failed = block_starts(n), list[CalibServeError]()
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        try:
            new = fit(samples.take(slice(0, start)))
        except CalibServeError as error:  # such as no finite optimum: then nothing is bet on this block
            failed.append(error)
            continue
        # So far would as many served samples move a fit to the calibration set, by chance alone.
        share = start / (fitted_to + start)
        for part in samples.parts(within=slice(start, stop)):
            z = samples.read(part, np.float64)
            probs = new(z)
            judge(1, part, probs)
            pays[part] = payoff(current(z), probs, y[part], share=share)
    if len(failed) == len(starts):
        raise failed[-1]
    judging = np.arange(n)
    if samples.groups is not None:
        # Labels of a group come together: a bet that wins one would win them all.
        judging = np.sort(np.unique(samples.groups, return_index=True)[1])
        pays[np.setdiff1d(np.arange(n), judging)] = 0
    return Prequential(nll, confidence, right, log_evidence(pays, starts), judging)


def block_starts(n: int) -> list[int]:
    """Return the first sample of each block: after 100 samples, then at half as many again.

    They do not depend on n, so with more samples at the end the same evidence goes on.

    >>> block_starts(300)
    [100, 150, 225]
    """
    found = [100]
    while (following := math.ceil(found[-1] * 1.5)) < n:
        found.append(following)
    return found


def payoff(old: Floats, new: Floats, labels: NDArray[np.intp], *, share: float) -> Floats:
    """Return the payoff of a bet on each label (n,), as a logarithm: log q(y) over r(y).

    ``old`` (n, K) are the current p, ``new`` those of a fit to what came before. q is nearly all of
    the new ones and a little of p, and r is p moved to q by ``share``: proportional to p^(1 - share)
    q^share, as a calibration that was fitted to few samples would itself be moved by so many served ones.
    While labels follow p, or r, its exponential is at most 1 in expectation: the sums over classes of p q / r
    and of q are at most 1 (Hoelder's inequality).

    >>> p, q = np.array([[0.5, 0.5]]), np.array([[1.0, 0.0]])
    >>> np.exp(payoff(p, q, np.array([0]), share=0.0)).round(4).tolist()  # (0.98 + 0.02 / 2) / 0.5
    [1.98]
    """
    log_p = log_probs(old)
    # The current calibration's share of what is bet on, 0.02: a label costs at most its logarithm.
    log_q = np.logaddexp(math.log(0.98) + log_probs(new), math.log(0.02) + log_p)
    moved = np.exp((1 - share) * log_p + share * log_q).sum(axis=1)
    rows = np.arange(len(labels))
    return np.asarray((1 - share) * (log_q - log_p)[rows, labels] + np.log(moved))


def log_evidence(pays: Floats, starts: list[int]) -> Floats:
    """Return the logarithm of the evidence against the current calibration after each label, (n,).

    ``pays`` (n,) is what each label's bet pays. The evidence that began at label s is what a stake of 1 has
    become from there on: a test supermartingale while labels follow the current calibration (Ramdas 2023,
    section 3.2), so with a chance of at most alpha it ever reaches 1 / alpha (Ville 1939). The stake is split
    over the ``starts``, 1 / ((j + 1) (j + 2)) to the j-th: what early fits to few samples lose need not be
    made good (van Erven 2012, the switch distribution).

    >>> bets = log_evidence(np.log([1.98, 1.98]), [0, 1])
    >>> np.exp(bets).round(4).tolist()  # 1.98 / 2 + 1 / 2, then 1.98 ** 2 / 2 + 1.98 / 6 + 1 / 3
    [1.49, 2.6235]
    """
    worth = np.concatenate([[0.0], np.cumsum(pays)])
    # What is left for starts that are still to come is not bet.
    total = np.full(len(pays), -math.log(len(starts) + 1))
    for j, start in enumerate(starts):
        path = np.where(np.arange(len(pays)) < start, 0.0, worth[1:] - worth[start])
        total = np.logaddexp(total, path - math.log((j + 1) * (j + 2)))
    return np.asarray(total)
