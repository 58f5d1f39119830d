"""Bounds of fits that a measurement set, each with that measurement."""

from __future__ import annotations

VALUES_WORTH_THREADS = 1 << 20
"""Logits, or numbers of a matrix, from which several threads pay.

On two cores, matrices of 77 classes and 5,000 samples take less than half the time on one thread.
"""

SLOPE_IN_FLOAT32 = 1e-6
"""|d NLL / d log T| at which the search for a temperature ends where passes are in float32.

The NLL is then within 1e-12 of its least.
"""

LOG_T_BETWEEN_KNOTS = 0.2
"""Distance of the temperatures, in log T, between which a grid of ECEs interpolates confidences.

Quintics are then accurate to a few 1e-7.
"""

ERROR_OF_AN_INTERPOLATED_ECE = 2e-6
"""The most that an ECE by these quintics is off: within twice this of the least, it is evaluated exactly."""

UNIFORM_SHARE_OF_A_BASE = 0.25
"""Weight, in samples, of the uniform share beside a temperature, from which structured scaling starts.

With 50 samples of three easy classes a whole sample's weight raises the NLL by a tenth; without any, a
forest's certain errors double it.
"""

LEAST_STRENGTH_BY_SAMPLES_OF_A_CLASS = 5.0
"""The least strength of structured scaling in ``auto``, times the samples a class.

Weaker ones learn single samples by heart. ``benchmarks/choose_outputs.py``: with this bound the worst of 57
sets costs 9.2 % of the NLL (150 classes of 20 different samples, where a weaker one is best), and 50 classes
of ten paraphrases 2.8 %.
"""

FLATTER_THAN_BESIDE_AN_OFFSET = 3.0
"""Times that the best temperature is above the best beside an offset, from which it is no centre of maps.

Of the sets of ``benchmarks/choose_outputs.py`` where it leaves half the entropy of the class shares, it is at
most 1.4 times above. Raw scores begin at 3; at 1.7, structured maps lose .001 of the NLL, at 100 a fifth.
"""

SAMPLES_COMPARED_A_PARAMETER = 500
"""Samples for each number of a matrix and a bias, on which ``auto`` begins to compare methods."""

MOST_SAMPLES_COMPARED = 1_000_000
"""Samples that ``auto`` compares methods on; of more, as many, evenly spread.

``benchmarks/large.py``: with this bound and the two below, ten million rows are fitted in 2.5 times the
file's memory, and in 3.2 times numpy's time for a softmax, a sum and a sort.
"""

MOST_SAMPLES_COUNTED = 1_000_000
"""Samples of which the confusion is counted that corrections of class shares need."""

MOST_SAMPLES_CROSS_VALIDATED = 100_000
"""Samples that a calibration is measured on, or a floor of probabilities chosen on, by fits to folds.

``auto`` begins with as many, and takes more where its choice is in doubt."""

SAMPLES_FOR_TWO_FOLDS = 20_000
"""Samples of which half teach a recalibration as much as four fifths: two folds serve as well as five."""

MOST_LOGITS_FOR_A_MAP = 1 << 20
"""Logits above which a loss is decomposed by a temperature alone: other recalibrations take minutes."""
