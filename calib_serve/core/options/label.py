"""Options of sending labels: those of a file, or of a folder, bucket or topic as they come."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from calib_serve.core.options.base import PYTHON, Checked, check, check_positive

_MOST_LABELS = 10_000  # that the watch takes in one request


@dataclass(frozen=True, kw_only=True)
class LabelColumns(Checked):
    """How labels are read."""

    receipt_column: Annotated[str | None, PYTHON] = None
    """The column, or field, of receipts; by default receipt, where there is one."""
    id_column: Annotated[str | None, PYTHON] = None
    """The column, or field, of your own ids of predictions; by default id, where there is one."""
    label_column: Annotated[str, PYTHON] = "label"
    """The column, or field, of labels."""
    by: Literal["id", "name"] | None = None
    """What labels are: by default names, else ids, and refused where both."""


@dataclass(frozen=True, kw_only=True)
class SendLimits(Checked):
    """How labels are sent."""

    batch: Annotated[int, PYTHON] = 1000
    """Labels a request."""
    replaces: bool = False
    """They count in the place of other labels of their predictions; the token needs the scope correct."""

    def _check(self) -> None:
        check(1 <= self.batch <= _MOST_LABELS, "batch", f"must be 1 to {_MOST_LABELS}, got {self.batch}")


@dataclass(frozen=True, kw_only=True)
class LabelOptions(LabelColumns, SendLimits):
    """Options of ``send_label_file``."""

    url: str = "http://127.0.0.1:9300/v1/labels"
    """The address that takes labels."""
    refused: str | Path | None = None
    """Of a file: write refused rows here, JSON lines with the reason, to be mended and sent again."""
    tries: Annotated[int, PYTHON] = 7
    """How often a request is tried."""

    def _check(self) -> None:
        check(self.tries >= 1, "tries", f"must be 1 or more, got {self.tries}")


@dataclass(frozen=True, kw_only=True)
class FollowOptions(Checked):
    """How a folder, bucket or topic is followed; in Python ``wait`` is also seconds."""

    wait: Any = "10m"
    """For how long a label waits for its prediction to be known: 90s, 10m or 6h."""
    state: str | Path = Path("collect.db")
    """The file that says which files were read."""
    settle: float = 5
    """Seconds for which a file must not have changed."""
    every: Annotated[float, PYTHON] = 5
    """Seconds between two looks for files."""

    def _check(self) -> None:
        check_positive("every", self.every)
        check(self.settle >= 0, "settle", f"must be 0 or more, got {self.settle:g}")


@dataclass(frozen=True, kw_only=True)
class CollectOptions(LabelColumns, SendLimits, FollowOptions):
    """Options of ``Collector`` and ``open_source``."""
