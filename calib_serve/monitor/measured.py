"""Numbers of the watch that a measurement set."""

from __future__ import annotations

FIRST_STAKE = 0.7
"""Share of a bet against a promise that is set at the first label, the rest for breaches that begin later:
breaches of 1 and 3 points, from the first label on and after 10,000 (``benchmarks/contracts.py``)."""

LABELS_OF_LATER_STAKES = 1000.0
"""Labels after which 30 % of the rest is set, and ever less later; by the same measurement."""

SURPRISES_IN_VARIANCE = 2.0
"""Wrong labels of a calibrated model that its variance counts as in a bin, as few labels all agree by chance:
the least for which 95 % intervals hold where few predictions are wrong (``benchmarks/selection.py``)."""

SIGNED_STAKE, BINS_STAKE, CLASSES_STAKE = 0.8, 0.12, 0.08
"""Shares of the stake of the drift detector on one direction, on bins and on classes. Errors that cancel over
bins or classes are found ten times sooner by bets on these than by any sum over all labels, so that a small
share will do; one direction is what others find as well (``benchmarks/detectors.py``)."""

VERSIONS_A_TRANSACTION = 16
"""Versions whose labels are fed in one transaction: to write it takes longer than what is written, as seen
with a thousand versions (``benchmarks/deployment.py``)."""
