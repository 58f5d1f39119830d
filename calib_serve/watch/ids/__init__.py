"""Receipts by the user's own prediction ids, so that labels may name predictions by these."""

from calib_serve.watch.ids.bindings import (
    FATES,
    LONGEST_ID,
    MOST_IDS,
    Binder,
    Binding,
    ReceiptIds,
    UnboundReceipt,
    is_id,
    receipt_of,
)
from calib_serve.watch.ids.opening import open_ids

__all__ = [
    "FATES", "LONGEST_ID", "MOST_IDS", "Binder", "Binding", "ReceiptIds", "UnboundReceipt", "is_id",
    "open_ids", "receipt_of",
]  # fmt: skip
