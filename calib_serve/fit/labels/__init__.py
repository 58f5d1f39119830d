"""Calibrators of multi-label models: one for each label, and the choice among them."""

from calib_serve.fit.labels.fitters import LABEL_METHODS, fit_labels, label_options
from calib_serve.fit.labels.samples import LabelSamples
from calib_serve.fit.labels.selection import held_out_label_facts, select_labels

__all__ = [
    "LABEL_METHODS",
    "LabelSamples",
    "fit_labels",
    "held_out_label_facts",
    "label_options",
    "select_labels",
]
