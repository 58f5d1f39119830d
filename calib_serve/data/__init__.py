"""Calibration data from files: inputs of a model, texts, or requests, with labels."""

from calib_serve.data.dataset import Dataset, check_input_shape, layout_advice, load_data
from calib_serve.data.labelled import LabelledRequests, LabelledTexts, read_requests, read_texts

__all__ = [
    "Dataset", "LabelledRequests", "LabelledTexts", "check_input_shape",
    "layout_advice", "load_data", "read_requests",
    "read_texts",
]  # fmt: skip
