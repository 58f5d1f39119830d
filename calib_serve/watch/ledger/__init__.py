"""The record of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.watch.ledger.entries import SPANS, Dated, Entry, Fate, Noted
from calib_serve.watch.ledger.generations import WENT_BACK, Generation, read_generation
from calib_serve.watch.ledger.leases import WriterLease
from calib_serve.watch.ledger.protocol import Ledger, open_ledger
from calib_serve.watch.ledger.sqlite import SqliteLedger, quarantine
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, add_at, merge_slices

__all__ = [
    "SPANS", "WENT_BACK", "Dated", "Emission", "Entry", "Fate", "Generation", "Key", "Kind", "Ledger",
    "Noted", "SqliteLedger", "Sums", "Version", "WriterLease", "add_at", "merge_slices", "open_ledger",
    "quarantine", "read_generation",
]  # fmt: skip
