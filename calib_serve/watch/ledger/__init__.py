"""The record of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.watch.ledger.protocol import Ledger, open_ledger
from calib_serve.watch.ledger.sqlite import SqliteLedger, quarantine
from calib_serve.watch.ledger.sums import Key, Sums, Version

__all__ = ["Key", "Ledger", "SqliteLedger", "Sums", "Version", "open_ledger", "quarantine"]
