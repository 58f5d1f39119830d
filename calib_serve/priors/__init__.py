"""Class shares other than those of the calibration set: known ones, and such as unlabelled traffic tells.

Under label shift the shares of the classes change, and what each class looks like stays: p(y) moves,
p(x | y) does not. Then calibrated probabilities are corrected by Bayes' rule, and shares can be estimated
without labels.
"""

from calib_serve.priors.confusion import Confusion
from calib_serve.priors.em import ChiSquared, EmShares, em
from calib_serve.priors.estimate import LEVEL, ShareEstimate, bbse
from calib_serve.priors.shares import Given, as_shares, checked_probs, corrected

__all__ = [
    "LEVEL",
    "ChiSquared",
    "Confusion",
    "EmShares",
    "Given",
    "ShareEstimate",
    "as_shares",
    "bbse",
    "checked_probs",
    "corrected",
    "em",
]
