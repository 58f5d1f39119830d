"""A tree of classes, and the same metrics and verdict at each of its levels.

The probability of an inner node is the sum of those of the classes below it: whatever calibrates the classes,
the probabilities of a node's children add up to its own. That those of the classes are calibrated says
nothing of the sums, nor do the sums of the classes: each level is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calib_serve.core.arrays import Codes
from calib_serve.core.errors import InputError
from calib_serve.core.names import shown
from calib_serve.core.options.evaluate import MeasureOptions, VerdictOptions
from calib_serve.metrics.conclusion import Verdict, of_own_samples
from calib_serve.metrics.evaluation import Evaluation, evaluate_probs
from calib_serve.metrics.judging import judge_probs
from calib_serve.metrics.samples import row_slices
from calib_serve.scores import PROBABILITIES, Scores, few, to_logits

_SEPARATOR = "sep:"
_TWICE = "{} is there twice in the tree; write each name once"
Names = tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """The inner nodes above each class, each name of a class or node once.

    A class of a higher level stands for itself on the levels below.

    Args:
        paths: Names of the nodes from the top down to each class, whose name is the last (K,).

    Raises:
        InputError: Where a name is there twice, no class has an inner node, or all are below one.

    >>> tree = Tree.of({"animal": ["cat", "dog"], "vehicle": ["car"]}, ["car", "cat", "dog"])
    >>> tree.nodes(1), tree.of_class(1).tolist()
    (('vehicle', 'animal'), [0, 1, 1])
    >>> tree.at(Scores.of([[0.5, 0.25, 0.25]], [2], outputs="probabilities"), 1).probs[:].tolist()
    [[0.5, 0.5]]
    """

    paths: tuple[Names, ...]

    def __post_init__(self) -> None:
        if not all(path and all(isinstance(name, str) and name for name in path) for path in self.paths):
            raise InputError("each name in the tree is a text that is not empty")
        classes = [path[-1] for path in self.paths]
        inner = {path[: i + 1] for path in self.paths for i in range(len(path) - 1)}
        if twice := _first_twice(classes) or _first_twice([path[-1] for path in sorted(inner)]):
            raise InputError(_TWICE.format(shown(twice)))
        if both := sorted({path[-1] for path in inner} & set(classes)):
            raise InputError(f"{shown(both[0])} is a class and an inner node; name the node in another way")
        if not inner:
            raise InputError(
                "the tree has no inner node: put classes below a name, as in {animal: [cat, dog]}"
            )
        if len({path[0] for path in self.paths}) == 1:
            root = shown(self.paths[0][0])
            raise InputError(f"all classes are below {root}, which is always true; leave it out")

    @classmethod
    def of(cls, said: Any, class_names: Sequence[str]) -> Tree:
        """Make the tree of some classes.

        Args:
            said: Nested mappings and lists, whose keys are inner nodes and whose items are classes; or "sep:"
                and what parts the nodes in the classes' own names, as in "sep:/"; or a Tree.
            class_names: Names of the classes, in order (K,).

        Raises:
            InputError: For a class that is missing, twice or none of these, and as the class does.
        """
        if isinstance(said, str):
            paths = _parted(said, class_names)
        else:
            try:
                paths = list(said.paths if isinstance(said, Tree) else _paths(said, ()))
            except RecursionError:
                raise InputError("the tree is too deep; does a node hold itself?") from None
        place, there = {name: k for k, name in enumerate(class_names)}, {path[-1] for path in paths}
        if strange := sorted(there - place.keys()):
            raise InputError(f"{shown(strange[0])} is no class; the tree is of {few(class_names)}")
        if missing := [name for name in class_names if name not in there]:
            raise InputError(f"the class {shown(missing[0])} is missing in the tree; each stands in it once")
        return cls(tuple(sorted(paths, key=lambda path: place[path[-1]])))

    @property
    def depth(self) -> int:
        """Number of levels of inner nodes."""
        return max(map(len, self.paths)) - 1

    def nodes(self, level: int) -> Names:
        """Return the names of the nodes of a level, from 1, in the order of their first classes."""
        if not 1 <= level <= self.depth:
            raise InputError(f"the tree has the levels 1 to {self.depth}, got {level}")
        return tuple(dict.fromkeys(path[:level][-1] for path in self.paths))

    def of_class(self, level: int) -> Codes:
        """Return the node of each class at a level (K,)."""
        at = {name: i for i, name in enumerate(self.nodes(level))}
        return np.array([at[path[:level][-1]] for path in self.paths], np.intp)

    def at(self, scores: Scores, level: int) -> Scores:
        """Sum the classes of each node: scores of a level's nodes, and the same samples.

        Args:
            scores: Scores of the classes.
            level: Level of the tree, from 1.

        Raises:
            InputError: For scores of other classes, or where any number of labels may be true.
        """
        y = scores.labelled()
        if scores.is_multilabel or y.ndim > 1:
            raise InputError("a tree is of classes, one class a sample, and these are labels of several")
        if scores.bounds is not None:
            raise InputError(
                "a tree is of probabilities that are known, and those of these answers have bounds"
            )
        if scores.classes != len(self.paths):
            raise InputError(f"the tree is of {len(self.paths)} classes, and the scores of {scores.classes}")
        names, node = self.nodes(level), self.of_class(level)
        order = np.argsort(node, kind="stable")
        first = np.searchsorted(node[order], np.arange(len(names)))
        given = scores.outputs in PROBABILITIES
        values = np.empty((len(y), len(names)))
        for rows in row_slices((len(y), len(node))):
            # Sums of logits' softmaxes by their logarithms: the NLL of a level then never becomes infinite.
            part = scores.probs[rows] if given else to_logits(scores.values[rows], scores.outputs)
            add = np.add if given else np.logaddexp
            values[rows] = add.reduceat(part.astype(np.float64)[:, order], first, axis=1)
        outputs: Any = "probabilities" if given else "logits"
        return replace(scores, values=values, outputs=outputs, labels=node[y], class_names=names, remarks=())


def _paths(said: Any, above: Names) -> Iterator[Names]:
    """Yield the path to each class below a node."""
    if isinstance(said, Mapping):
        below = list(said.items())
    elif isinstance(said, (list, tuple)):
        below = [pair for one in said for pair in (one.items() if isinstance(one, Mapping) else [(one, ...)])]
    else:
        where = shown(above[-1]) if above else "the tree"
        raise InputError(f"{where} must be a list or mapping of what is below it, got {repr(said)[:40]}")
    if above and not below:
        raise InputError(f"{shown(above[-1])} holds no class")
    # A number or a truth value, as YAML reads some names, is a name: it must be a class's own text.
    names = [str(name) if isinstance(name, (str, int, float)) else "" for name, _ in below]
    if twice := _first_twice(names):
        raise InputError(_TWICE.format(shown(twice)))
    for name, (_, part) in zip(names, below, strict=True):
        if part is ...:
            yield (*above, name)
        else:
            yield from _paths(part, (*above, name))


def _parted(said: str, class_names: Sequence[str]) -> list[Names]:
    separator = said.removeprefix(_SEPARATOR)
    if separator == said or not separator:
        raise InputError(
            f"a tree in the names of classes is {_SEPARATOR} and what parts them, as sep:/, got {said!r}"
        )
    parts = [name.split(separator) for name in class_names]
    if odd := [name for name, own in zip(class_names, parts, strict=True) if not all(own)]:
        raise InputError(f"{shown(odd[0])} has an empty name between two {separator!r}, or at an end")
    # A node is called by its whole path: a/x and b/x are two.
    return [tuple(separator.join(own[: i + 1]) for i in range(len(own))) for own in parts]


def _first_twice(names: Sequence[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


@dataclass(frozen=True, eq=False)
class LevelEvaluation:
    """Metrics and verdict of one level of a tree.

    Args:
        level: Its number, from 1 at the top.
        nodes: Names of its nodes.
        metrics: Metrics of the nodes' probabilities.
        verdict: Verdict on these.
    """

    level: int
    nodes: Names
    metrics: Evaluation
    verdict: Verdict

    def as_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        metrics, verdict = self.metrics.as_dict(), self.verdict.as_dict()
        return {"level": self.level, "nodes": list(self.nodes), "metrics": metrics, "verdict": verdict}


def evaluate_levels(
    scores: Scores,
    tree: Tree,
    measure: MeasureOptions | None = None,
    judge: VerdictOptions | None = None,
    own: str | None = None,
) -> tuple[LevelEvaluation, ...]:
    """Evaluate and judge the probabilities of the nodes of each level of a tree, from the top down.

    Args:
        scores: Scores of the classes, with labels.
        tree: Tree of the classes.
        measure: Options of the metrics; None: those of ``evaluate``.
        judge: Options of the verdicts; None: those of ``judge``.
        own: Says that a calibration was fitted on these samples, if it was.

    Raises:
        InputError: For scores of other classes than the tree's, or where any number of labels may be true.
    """

    def one(level: int) -> LevelEvaluation:
        found = tree.at(scores, level)
        p, y, names = found.probs, found.labelled(), found.class_names
        beside: dict[str, Any] = {"sample_weight": found.weights, "groups": found.clusters}
        metrics = evaluate_probs(p, y, measure, **beside)
        verdict = judge_probs(p, y, judge, **beside, class_names=names)
        return LevelEvaluation(level, names, metrics, of_own_samples(verdict, own) if own else verdict)

    return tuple(map(one, range(1, tree.depth + 1)))
