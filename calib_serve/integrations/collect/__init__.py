"""Collectors: labels from Kafka or files to the watch; each is counted once, and none is lost."""

from calib_serve.integrations.collect.collector import Collector, Totals
from calib_serve.integrations.collect.opening import open_dead_letters, open_source
from calib_serve.integrations.collect.reading import LabelFields
from calib_serve.integrations.collect.sending import Sent, send_label_file
from calib_serve.integrations.collect.source import DeadLetter, DeadLetters, Piece, Source, Stream

__all__ = [
    "Collector", "DeadLetter", "DeadLetters", "LabelFields", "Piece", "Sent", "Source", "Stream", "Totals",
    "open_dead_letters", "open_source", "send_label_file",
]  # fmt: skip
