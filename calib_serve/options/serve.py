"""Options of a TorchServe over calibrated archives."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from calib_serve.options.base import PYTHON, check_positive
from calib_serve.options.watch import SampleOptions

__all__ = ["ServeOptions", "variable"]


@dataclass(frozen=True, kw_only=True)
class ServeOptions(SampleOptions):
    """Options of ``Server``."""

    folder: str | Path = Path("serving")
    """Where it runs: configuration, logs, tokens, keyring and ledger."""
    properties: str | Path | None = None
    """A config.properties to start from; by default the safe one."""
    keyring: str | Path | None = None
    """Keys that sign receipts; by default FOLDER/keyring.json, made if missing."""
    ledger: str | Path | None = None
    """Where labels are counted: a file, or postgresql://HOST/DATABASE; by default in FOLDER."""
    sample_seconds: Annotated[float, PYTHON] = 60
    """Seconds between two writes of samples."""

    def _check(self) -> None:
        check_positive(sample_seconds=self.sample_seconds)


def variable(option: str) -> str:
    """Return the environment variable by which an option of ``ServeOptions`` reaches TorchServe's workers.

    >>> variable("sample_rate")
    'CALIB_SERVE_SAMPLE_RATE'
    """
    if option not in {field.name for field in fields(ServeOptions)}:
        raise KeyError(option)
    return f"CALIB_SERVE_{option.upper()}"
