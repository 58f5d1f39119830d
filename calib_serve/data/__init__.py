"""Calibration data from files: scores with labels, and the inputs of a model with labels."""

from calib_serve.data.dataset import Dataset, load_data
from calib_serve.data.labelled import LabelledScores, read_groups, read_labelled
from calib_serve.data.logits_file import LogitsFile, read_logits

__all__ = [
    "Dataset", "LabelledScores", "LogitsFile", "load_data", "read_groups", "read_labelled", "read_logits",
]  # fmt: skip
