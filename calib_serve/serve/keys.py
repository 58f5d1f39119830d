"""The keyring of a TorchServe worker: it follows its file, and says when it cannot."""

from __future__ import annotations

from calib_serve.receipts import LiveKeyring
from calib_serve.serve.emit import Emitter
from calib_serve.signals import on_hangup

__all__ = ["live_keyring"]


def live_keyring(path: str, emitter: Emitter) -> LiveKeyring:
    """The keyring in ``path``, read again when it changed and on SIGHUP; a failure of that is counted.

    KeyringError where it cannot be read to begin with.
    """
    ring = LiveKeyring(path, failed=lambda: emitter.failed("keyring"))
    on_hangup(ring.again)
    return ring
