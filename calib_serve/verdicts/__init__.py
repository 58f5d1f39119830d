"""Verdicts: whether a model is calibrated, decided by equivalence tests, the same wherever it is shown.

``judge`` decides from scores and labels; ``Verdict`` is also what the watch page says of live ones.
"""

from calib_serve.verdicts.conclude import (
    CALIBRATE,
    DEPLOY,
    MORE,
    TOLERANCE,
    Level,
    Tested,
    Verdict,
    gain_of,
    of_own_samples,
)
from calib_serve.verdicts.decide import judge

__all__ = [
    "CALIBRATE",
    "DEPLOY",
    "MORE",
    "TOLERANCE",
    "Level",
    "Tested",
    "Verdict",
    "gain_of",
    "judge",
    "of_own_samples",
]
