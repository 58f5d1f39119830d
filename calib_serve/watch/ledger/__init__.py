"""The record of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.watch.ledger.address import (
    REDIS_PASSWORD,
    REDIS_PASSWORD_FILE,
    check_address,
    is_redis,
    redis_password,
)
from calib_serve.watch.ledger.backup import (
    Pruned,
    Restored,
    backup_ledger,
    existing_ledger,
    prune_ledger,
    restore_ledger,
    set_aside_rows,
    verify_ledger,
)
from calib_serve.watch.ledger.entries import SPANS, Dated, Entry, Fate, Mark, Noted, Once, Shadowed, noted
from calib_serve.watch.ledger.generations import WENT_BACK, Generation, read_generation
from calib_serve.watch.ledger.inspection import verify_file
from calib_serve.watch.ledger.leases import WriterLease
from calib_serve.watch.ledger.opening import open_ledger
from calib_serve.watch.ledger.partitioned import PartitionedLedger
from calib_serve.watch.ledger.protocol import Ledger
from calib_serve.watch.ledger.sqlite import SqliteLedger
from calib_serve.watch.ledger.sqlite_store import quarantine
from calib_serve.watch.ledger.sums import Emission, Key, Kind, Sums, Version, add_at, merge_slices

__all__ = [
    "REDIS_PASSWORD", "REDIS_PASSWORD_FILE", "SPANS", "WENT_BACK", "Dated", "Emission", "Entry", "Fate",
    "Generation", "Key", "Kind", "Ledger", "Mark", "Noted", "Once", "PartitionedLedger", "Pruned", "Restored",
    "Shadowed", "SqliteLedger", "Sums", "Version", "WriterLease", "add_at", "backup_ledger", "check_address",
    "existing_ledger", "is_redis", "merge_slices", "noted", "open_ledger", "prune_ledger", "quarantine",
    "read_generation", "redis_password", "restore_ledger", "set_aside_rows", "verify_file", "verify_ledger",
]  # fmt: skip
