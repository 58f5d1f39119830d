"""Whether a model is calibrated, decided by equivalence: one verdict, wherever it is shown.

``judge`` decides from probabilities and labels; ``Verdict`` is also what the watch page says of live ones.
"""

from calib_serve.judgement.bets import Evidence, MeanBets, share_bets
from calib_serve.judgement.conclude import CALIBRATE, DEPLOY, Level, Tested, Verdict
from calib_serve.judgement.decide import judge
from calib_serve.judgement.words import MINUS, chance, percent, points, rounded_up, signed_points

__all__ = [
    "CALIBRATE",
    "DEPLOY",
    "MINUS",
    "Evidence",
    "Level",
    "MeanBets",
    "Tested",
    "Verdict",
    "chance",
    "judge",
    "percent",
    "points",
    "rounded_up",
    "share_bets",
    "signed_points",
]
