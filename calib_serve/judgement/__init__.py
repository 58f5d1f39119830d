"""Whether a model is calibrated, decided by equivalence: one verdict, wherever it is shown.

``judge`` decides from scores and labels; ``Verdict`` is also what the watch page says of live ones.
"""

from calib_serve.judgement.bets import Evidence, MeanBets, share_bets
from calib_serve.judgement.conclude import (
    CALIBRATE,
    DEPLOY,
    TOLERANCE,
    Level,
    Tested,
    Verdict,
    of_own_samples,
)
from calib_serve.judgement.of_scores import judge
from calib_serve.judgement.words import MINUS, chance, percent, points, rounded_up, signed_points

__all__ = [
    "CALIBRATE",
    "DEPLOY",
    "MINUS",
    "TOLERANCE",
    "Evidence",
    "Level",
    "MeanBets",
    "Tested",
    "Verdict",
    "chance",
    "judge",
    "of_own_samples",
    "percent",
    "points",
    "rounded_up",
    "share_bets",
    "signed_points",
]
