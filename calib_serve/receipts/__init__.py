"""Receipts: signed records of served predictions, which clients cannot forge.

The client gets a receipt with each prediction and sends it back with the label, to any worker on any host. It
holds all that is needed to count the label, so no prediction has to be looked up. ``wire`` holds its bytes.
"""

from calib_serve.receipts.keyring import SKEW, Keyring, KeyTimes, LiveKeyring, told_time
from calib_serve.receipts.wire import (
    DAY,
    TAG,
    VERSION,
    Label,
    Mark,
    Receipt,
    Shadow,
    SignedReceipt,
    group_number,
    nonce_of,
    shadow_tag,
)

__all__ = [
    "DAY", "SKEW", "TAG", "VERSION", "KeyTimes", "Keyring", "Label", "LiveKeyring", "Mark", "Receipt",
    "Shadow", "SignedReceipt", "group_number", "nonce_of", "shadow_tag", "told_time",
]  # fmt: skip
