"""Calibration data from files: scores, inputs of a model, texts, or requests, with labels."""

from calib_serve.data.dataset import Dataset, check_input_shape, layout_advice, load_data
from calib_serve.data.labelled import LabelledScores, read_groups, read_labelled
from calib_serve.data.logits_file import LogitsFile, read_logits
from calib_serve.data.requests import LabelledRequests, read_requests
from calib_serve.data.texts import LabelledTexts, read_texts

__all__ = [
    "Dataset", "LabelledRequests", "LabelledScores", "LabelledTexts", "LogitsFile", "check_input_shape",
    "layout_advice", "load_data", "read_groups", "read_labelled", "read_logits", "read_requests",
    "read_texts",
]  # fmt: skip
