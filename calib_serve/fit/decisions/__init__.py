"""Thresholds that turn calibrated probabilities into decisions with a promise: sets, and abstention."""

from calib_serve.fit.decisions.abstain import fit_abstain
from calib_serve.fit.decisions.sets import always_in, fit_sets, kept_for_options

__all__ = ["always_in", "fit_abstain", "fit_sets", "kept_for_options"]
