"""The readings of MaC-Cal (Ni 2025) by name: ours, the paper's as printed, and the control without masks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from calib_serve.errors import InputError
from calib_serve.fit.masked.retention import Retention
from calib_serve.fit.masked.training import Masking

__all__ = ["PAPER", "READINGS", "UNMASKED", "reading"]

PAPER = Masking(
    inference="unmasked",
    retention=Retention(adapt="training", gamma=0.95, bounds=(0.0, 1.0), warm_up=0.0),
    schedule="constant",
    scaled=False,
)
"""MaC-Cal as it is printed (algorithm 1, section 5.1).

q starts at .5 and moves after every epoch within [0, 1] (eq. 12), its step bounded by .1 falling to .001
(eq. 13); 40 epochs of batches of 128 at a rate of .1, momentum .9, decay 5e-4; features as they come,
weights as they are at the end. The paper leaves open: gamma (.95 is ours), the bottleneck's width (128) and
activation (ReLU), a mask per batch (algorithm 1) or per epoch (its text), the start (torch's).
"""

UNMASKED = Masking(inference="unmasked", retention=Retention(first=1.0, adapt=None))
"""The control: the same head, trained in the same way as the default, and no weight ever masked."""

READINGS: Mapping[str, Masking] = MappingProxyType(
    {"expected": Masking(), "paper": PAPER, "no-mask": UNMASKED}
)
"""By the names that ``reading`` takes; "expected" is the default."""


def reading(name: str, n: int) -> Masking:
    """The settings called ``name`` for n training samples.

    "paper" stays as printed; the others train longer where samples are few. InputError for another name.
    """
    if name not in READINGS:
        raise InputError(f"reading must be one of {', '.join(READINGS)}, got {name!r}")
    return PAPER if name == "paper" else READINGS[name].suited(n)
