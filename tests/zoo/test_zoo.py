"""Graphs that nobody here wrote: fused, every runtime gives what numpy does; or a refusal says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from cells import Cage, Outcome
from specimens import Specimen
from zoo_graphs import LARGE, SMALL


def cells() -> Iterator[Any]:
    """By day a third of the kinds of artifacts of each small graph, others of the next one."""
    for i, graph in enumerate([*SMALL, *LARGE]):
        for j, kind in enumerate(graph.kinds):
            by_day = i < len(SMALL) and (i + j) % 3 == 0
            yield pytest.param(graph, kind, marks=() if by_day else pytest.mark.nightly)


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Specimen], Cage]:
    return cache(lambda specimen: Cage(specimen, tmp_path_factory.mktemp("cage")))


@pytest.mark.parametrize(("specimen", "kind"), list(cells()), ids=str)
def test_every_runtime_calibrates_it_or_a_refusal_says_why(specimen, kind, cage):
    for runtime, outcome in cage(specimen).fuse(kind).items():
        assert outcome.kind in ("equal", "raw") or allowed(outcome, specimen, kind), (runtime, outcome)


def allowed(outcome: Outcome, specimen: Specimen, kind: str) -> bool:
    """Whether it is a refusal that was to be expected, in one sentence."""
    expected = specimen.refusals.get(kind, specimen.refusals.get(""))
    said = outcome.kind == "refused" and "\n" not in outcome.why and "report" not in outcome.why
    return expected is not None and said and expected in outcome.why
