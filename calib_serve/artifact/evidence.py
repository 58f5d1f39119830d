"""Measure an artifact's sets, abstention and actions on labelled samples, and say what they promise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from calib_serve.artifact.artifact import Artifact
from calib_serve.artifact.decisions import (
    Abstain,
    AbstainFacts,
    Choice,
    ChoiceFacts,
    PredictionSets,
    SetFacts,
    ThresholdFacts,
)
from calib_serve.core.text import NAMED_IN_A_SENTENCE, a_few
from calib_serve.metrics import (
    ChoiceEvaluation,
    SelectiveEvaluation,
    SetEvaluation,
    checked,
    coverage_range,
    evaluate_abstention,
    evaluate_choice,
    evaluate_sets,
)


@dataclass(frozen=True, eq=False)
class DecisionsEvaluation:
    """Measures of an artifact's decisions on labelled samples; None where the artifact has none.

    Args:
        sets: Measures of the prediction sets.
        abstain: Measures of the abstention.
        choice: Measures of the chosen actions.
    """

    sets: SetEvaluation | None = None
    abstain: SelectiveEvaluation | None = None
    choice: ChoiceEvaluation | None = None

    def __bool__(self) -> bool:
        return any(one is not None for one in vars(self).values())

    def says(self, class_names: tuple[str, ...] = ()) -> list[str]:
        """The measures in sentences."""
        return [
            *([self.sets.says(class_names)] if self.sets else []),
            *([self.abstain.says()] if self.abstain else []),
            *([self.choice.says()] if self.choice else []),
        ]

    def as_dict(self) -> dict[str, Any]:
        """The measures that there are, as plain values for JSON."""
        return {name: one.as_dict() for name, one in vars(self).items() if one is not None}


def evaluate_decisions(
    artifact: Artifact,
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    level: float = 0.95,
    groups: ArrayLike | None = None,
) -> DecisionsEvaluation:
    """Measure an artifact's decisions on samples that nothing was fitted to.

    Args:
        artifact: Artifact whose decisions are measured.
        probs: Calibrated probabilities (n, K).
        labels: Class ids (n,).
        level: Coverage of the intervals, a fraction.
        groups: Which samples belong together (n,).
    """
    sets, abstain, choice = artifact.sets, artifact.abstain, artifact.choice
    if sets is None and abstain is None and choice is None:
        return DecisionsEvaluation()
    p, y = checked(probs, labels)
    facts = artifact.fit.decisions.sets
    return DecisionsEvaluation(
        None
        if sets is None
        else evaluate_sets(
            sets(p),
            y,
            promised=sets.coverage,
            fitted_on=facts.exact(sets) if facts else None,
            level=level,
            groups=groups,
        ),
        None
        if abstain is None
        else evaluate_abstention(
            p,
            y,
            threshold=abstain.threshold,
            promised=abstain.risk,
            promised_answered=abstain.answered,
            fitted_on=_exact(artifact.fit.decisions.abstain),
            level=level,
            groups=groups,
        ),
        None
        if choice is None
        else evaluate_choice(
            *choice.outcomes(p, y), choice.goal, choice.promised, level=level, groups=groups
        ),
    )


def promises(artifact: Artifact) -> list[str]:
    """What an artifact's decisions promise, in sentences, and the samples that each promise rests on.

    >>> from calib_serve.artifact import Artifact, LogitMap
    >>> artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=2)
    >>> promises(artifact)
    []
    """
    sets, abstain, facts = artifact.sets, artifact.abstain, artifact.fit.decisions
    return [
        *(_of_sets(sets, artifact, facts.sets) if sets else ()),
        *(_of_abstain(abstain, facts.abstain) if abstain else ()),
        *(_of_choice(artifact.choice, artifact, facts.choice) if artifact.choice else ()),
        *(artifact.contract.says(artifact.class_names) if artifact.contract else ()),
    ]


def _of_sets(sets: PredictionSets, artifact: Artifact, facts: SetFacts | None) -> list[str]:
    whom = "the samples of every class" if sets.classes else "new samples"
    said = [
        f"Sets hold the true class of {_percent(sets.coverage)} of {whom} ({sets.score}), {_ground(facts)}."
    ]
    if not sets.classes:
        alone = ", from one sample of each group" if facts and facts.groups else ""
        said.append(
            "That is of all classes together: a rare class may be left out of every set. --per-class "
            f"(per_class=True) promises it of each class{alone}."
        )
    if facts is None:
        return said
    most = sets.coverage
    if exact := facts.exact(sets):
        reached = coverage_range(exact, sets.coverage)
        most = reached.high
        said.append(
            "Over draws of so many samples the share lies between "
            f"{_percent(reached.low)} and {_percent(most)}, 95 times in 100."
        )
    if not sets.classes and facts.held > most:
        why = "as many samples have the same score"
        if facts.top_right > most:
            why = "as the most likely class is in every set; a higher coverage says more"
        said.append(f"They hold more, {_percent(facts.held)} of these samples, {why}.")
    if always := facts.always_in:
        names = a_few(artifact.class_names[k] if artifact.class_names else k for k in always)
        said.append(
            f"Every set holds {names} ({len(always)} of {artifact.classes} classes): so few samples, or so "
            "many at probability 0, allow none of them to be left out."
        )
    return said


def _of_abstain(abstain: Abstain, facts: AbstainFacts | None) -> list[str]:
    answered = f"; {_percent(facts.answered)} of these are answered" if facts else ""
    if abstain.known_refused is not None:
        said = [
            f"At most {_percent(abstain.known_refused)} of new samples of the known classes are refused as "
            f"none of these, below {abstain.threshold:.4f} confidence, {_ground(facts)}{answered}. Of "
            "samples of other classes nothing is promised."
        ]
        if (exact := _exact(facts)) and abstain.answered:
            kept = coverage_range(exact, abstain.answered)
            ends = f"{_percent(1 - kept.high)} and {_percent(1 - kept.low)}"
            said.append(f"Over draws of so many samples the share lies between {ends}, 95 times in 100.")
        return said
    risk = _percent(abstain.risk or 0)
    return [
        f"Answers from {abstain.threshold:.4f} confidence on are wrong in at most {risk}, "
        f"with probability {abstain.level:.4g}, {_ground(facts)}{answered}."
    ]


def _exact(facts: AbstainFacts | None) -> int | None:
    """The samples of which the range of what is answered is known: without groups."""
    return facts.samples if facts and not facts.groups else None


def _of_choice(choice: Choice, artifact: Artifact, facts: ChoiceFacts | None) -> list[str]:
    name, share = choice.actions[-1], _percent(choice.promised)
    promised = {
        "cost": f"Decisions cost {choice.promised:.4g} a sample on average, at most",
        "precision": f"Of samples decided to be {name}, {share} or more are",
        "recall": f"Of the samples of {name}, {share} or more are decided to be",
        "budget": f"Of all samples, {share} or fewer are decided to be {name}",
    }[choice.goal]
    by = "" if choice.threshold is None else f" (from probability {choice.threshold:.4f} on)"
    said = [f"{promised}{by}, with probability {choice.level:.4g}, {_ground(facts)}."]
    if facts is not None:
        shown = f"{facts.measured:.4g}" if choice.goal == "cost" else _percent(facts.measured)
        pairs = zip(choice.actions[:NAMED_IN_A_SENTENCE], facts.taken, strict=False)
        taken = ", ".join(f"{action} {_percent(part)}" for action, part in pairs)
        said.append(f"On these it is {shown}; they are decided: {taken}.")
    # A receipt holds the top class and its probability: that of class 1 below a half is not in it.
    if choice.goal == "precision" and choice.threshold is not None and choice.threshold > 0.5:
        key = json.dumps(name, ensure_ascii=False) if artifact.class_names else "1"
        act = f"{{above: {choice.threshold!r}, accuracy: {choice.promised!r}}}"
        said.append(
            f"To watch it live, set this contract: {{contract: 1, classes: {{{key}: {{act: {act}}}}}}}"
        )
    return said


def _ground(facts: ThresholdFacts | None) -> str:
    if facts is None:
        return "on whatever ground its maker had"
    groups = f" in {facts.groups} groups" if facts.groups else ""
    return f"by {facts.samples} samples{groups}"


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
