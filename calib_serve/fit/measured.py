"""Bounds of fits that a measurement set or several files share, each with its reason."""

from __future__ import annotations

from typing import NamedTuple


class FitBounds(NamedTuple):
    """The bounds, by name."""

    values_worth_threads: int = 1 << 20
    """Logits, or numbers of a matrix, from which several threads pay.

    On two cores, matrices of 77 classes and 5,000 samples take less than half the time on one thread.
    """

    slope_in_float32: float = 1e-6
    """|d NLL / d log T| at which the search for a temperature ends where passes are in float32.

    The NLL is then within 1e-12 of its least.
    """

    log_t_between_knots: float = 0.2
    """Distance of the temperatures, in log T, between which a grid of ECEs interpolates confidences.

    Quintics are then accurate to a few 1e-7.
    """

    error_of_an_interpolated_ece: float = 2e-6
    """The most that an ECE by quintics is off: within twice this of the least, it is evaluated exactly."""

    gap_of_folds: float = 1e-4
    """Gap of the objective that a fit to folds may leave: far below what folds can tell apart."""

    uniform_share_of_a_base: float = 0.25
    """Weight, in samples, of the uniform share beside a temperature, from which structured scaling starts.

    With 50 samples of three easy classes a whole sample's weight raises the NLL by a tenth; without any, a
    forest's certain errors double it.
    """

    least_strength_by_samples_of_a_class: float = 5.0
    """The least strength of structured scaling in ``auto``, times the samples a class.

    Weaker ones learn single samples by heart. ``benchmarks/choose_outputs.py``: with this bound the worst of
    57 sets costs 9.2 % of the NLL (150 classes of 20 different samples, where a weaker one is best), and 50
    classes of ten paraphrases 2.8 %.
    """

    flatter_than_beside_an_offset: float = 3.0
    """Times that the best temperature is above the best beside an offset, from which it is no centre of maps.

    Of the sets of ``benchmarks/choose_outputs.py`` where it leaves half the entropy of class shares, it is
    at most 1.4 times above. Raw scores begin at 3; at 1.7, structured maps lose .001 of the NLL, at 100 a
    fifth.
    """

    samples_compared_a_parameter: int = 500
    """Samples for each number of a matrix and a bias, on which ``auto`` compares methods."""

    most_samples_compared: int = 1_000_000
    """Samples that ``auto`` compares methods on; of more, as many, evenly spread.

    ``benchmarks/large.py``: with this bound and the two below, ten million rows are fitted in 2.5 times the
    file's memory, and in 3.2 times numpy's time for a softmax, a sum and a sort.
    """

    most_samples_counted: int = 1_000_000
    """Samples of which the confusion is counted that corrections of class shares need."""

    most_samples_cross_validated: int = 100_000
    """Samples on which a calibration is measured, ``auto`` chooses, and a floor is chosen."""

    samples_for_two_folds: int = 20_000
    """Samples of which half teach a recalibration as much as four fifths: two folds serve as well as five."""

    most_logits_for_a_map: int = 1 << 20
    """Logits above which a loss is decomposed by a temperature alone: other recalibrations take minutes."""


MEASURED = FitBounds()
