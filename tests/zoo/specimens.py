"""What the zoo is made of: a graph that an exporter of others writes, and what a test must know about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Feeds = dict[str, np.ndarray]
ROWS = 16
KINDS = ["temperature", "vector", "matrix", "dirichlet", "mixture", "top", "classwise", "head", "shift"]


@dataclass(frozen=True, eq=False)
class Specimen:
    """One graph: ``make`` writes the file and gives inputs of ROWS samples by name.

    ``means`` says what its scores are, ``options`` what ``fuse_onnx`` must be told, ``image`` names the input
    that may be shifted, ``head`` whether its last layer may be replaced. ``tolerance`` is of probabilities.
    ``wrong``: the runtimes that compute the raw graph wrongly, and how. ``refusals``: what a refusal that
    is allowed says, by the artifact's kind ("": of every kind).
    """

    name: str
    make: Callable[[Path], Feeds]
    classes: int
    means: Literal["logits", "log_probs", "probabilities"] = "logits"
    options: Mapping[str, Any] = field(default_factory=dict)
    image: str | None = None
    head: bool = False
    tolerance: float = 1e-5
    wrong: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def kinds(self) -> list[str]:
        """The kinds of artifacts that have a place in this graph."""
        lacking = {"head": not self.head, "shift": self.image is None}
        return [kind for kind in KINDS if not lacking.get(kind)]


@contextmanager
def quiet() -> Iterator[None]:
    """Exporters warn of much that is nobody's fault here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
