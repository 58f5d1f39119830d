"""The record of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.watch.ledger.batches import Once
from calib_serve.watch.ledger.entries import SPANS, Dated, Entry, Fate, Mark, Noted, noted
from calib_serve.watch.ledger.protocol import Ledger, open_ledger
from calib_serve.watch.ledger.sqlite import SqliteLedger, quarantine
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, add_at, merge_slices

__all__ = [
    "SPANS", "Dated", "Emission", "Entry", "Fate", "Key", "Kind", "Ledger", "Mark", "Noted", "Once",
    "SqliteLedger", "Sums", "Version", "add_at", "merge_slices", "noted", "open_ledger", "quarantine",
]  # fmt: skip
