"""Options of the check of a host."""

from dataclasses import dataclass
from pathlib import Path

from calib_serve.core.options.base import Checked


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(Checked):
    """Options of ``examine``."""

    for_: tuple[str, ...] = ()
    """What the host is for, such as torch,torchserve,watch; by default what is installed."""
    keyring: Path | None = None
    """The keyring that will be used."""
    ledger: str | None = None
    """Where labels will be counted, such as ledger.db."""
    store: Path | None = None
    """The model store."""
    folder: Path | None = None
    """Where calib-serve serve runs: tokens, keyring, ledger."""
