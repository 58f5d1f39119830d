"""Bounds of metrics and verdicts that a measurement set, each with that measurement."""

from __future__ import annotations

STEPS_OF_AN_INFLUENCE = 10_000
"""Confidences, of all distinct ones, at which the influence of a prediction on an area is computed."""

MOST_SAMPLES_JUDGED = 500_000
"""Samples that a verdict takes; of more, as many, evenly spread."""

MOST_SAMPLES_SHAPED = 100_000
"""Samples that the test of shape takes."""

LABELS_A_CLASS_THAT_TELL = 10
"""Labels a class, in mean, that tell which classes are off; of fewer a classwise ECE's interval is wider.

``benchmarks/interval_coverage.py``: of 2 to 1,000 classes and 200 samples or more, 95 % intervals of ECE and
its kin hold the truth in 93.5 % of the worst cases.
"""

MOST_ENTRIES_OF_A_CONFUSION = 20_000
"""Counts other than 0 that facts may hold: a fifth of a manifest's bytes."""
