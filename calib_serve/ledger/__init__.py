"""The record of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.ledger.database import check_address
from calib_serve.ledger.entries import (
    SPANS,
    Entry,
    Fate,
    Held,
    LabelRecord,
    Progress,
    Published,
    Shadowed,
    State,
    WindowSums,
)
from calib_serve.ledger.ledger import Ledger, Revoked
from calib_serve.ledger.schema import export_ledger

__all__ = [
    "SPANS",
    "Entry",
    "Fate",
    "Held",
    "LabelRecord",
    "Ledger",
    "Progress",
    "Published",
    "Revoked",
    "Shadowed",
    "State",
    "WindowSums",
    "check_address",
    "export_ledger",
]  # fmt: skip
