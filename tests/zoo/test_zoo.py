"""Graphs that nobody here wrote: fused, every runtime gives what numpy does; or a refusal says why."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from cells import Cage, Outcome
from sizes import sized
from specimens import Specimen
from zoo_graphs import LARGE, SMALL

EVERY = sized(3, 1)
"""Of a graph's kinds of artifacts, each third is tried in CI, in turn: of a family's graphs all are."""


def cells() -> list[tuple[Specimen, str]]:
    graphs = sized(SMALL, [*SMALL, *LARGE])
    return [(g, kind) for i, g in enumerate(graphs) for j, kind in enumerate(g.kinds) if (i + j) % EVERY == 0]


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Specimen], Cage]:
    return cache(lambda specimen: Cage(specimen, tmp_path_factory.mktemp("cage")))


@pytest.mark.parametrize(("specimen", "kind"), cells(), ids=str)
def test_every_runtime_calibrates_it_or_a_refusal_says_why(specimen, kind, cage):
    for runtime, outcome in cage(specimen).fuse(kind).items():
        assert outcome.kind in ("equal", "raw") or allowed(outcome, specimen, kind), (runtime, outcome)


def allowed(outcome: Outcome, specimen: Specimen, kind: str) -> bool:
    """Whether it is a refusal that was to be expected, in one sentence."""
    expected = specimen.refusals.get(kind, specimen.refusals.get(""))
    said = outcome.kind == "refused" and "\n" not in outcome.why and "report" not in outcome.why
    return expected is not None and said and expected in outcome.why
