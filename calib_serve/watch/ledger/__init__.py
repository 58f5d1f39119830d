"""The record of accepted labels: each is counted once, whoever sends it, however often."""

from calib_serve.watch.ledger.database import check_address
from calib_serve.watch.ledger.entries import (
    SPANS,
    Dated,
    Entry,
    Fate,
    Held,
    Noted,
    Once,
    Progress,
    Published,
    Shadowed,
    State,
)
from calib_serve.watch.ledger.ledger import Ledger, Revoked
from calib_serve.watch.ledger.schema import export_ledger

__all__ = [
    "SPANS", "Dated", "Entry", "Fate", "Held", "Ledger", "Noted", "Once", "Progress", "Published", "Revoked",
    "Shadowed", "State", "check_address",
    "export_ledger",
]  # fmt: skip
