"""Options of sending labels: those of a file, or of a topic as they come."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from calib_serve.core.errors import InputError
from calib_serve.core.options.base import PYTHON, Checked


@dataclass(frozen=True, kw_only=True)
class LabelColumns(Checked):
    """How labels are read; ``model`` and ``segment`` are read where they are there.

    >>> LabelColumns(id_column="order_id", label_column="outcome").names
    {'id': 'order_id', 'label': 'outcome', 'model': 'model', 'by': 'by', 'segment': 'segment'}
    """

    receipt_column: Annotated[str | None, PYTHON] = None
    """The column, or field, of receipts; by default receipt, where there is one."""
    id_column: Annotated[str | None, PYTHON] = None
    """The column, or field, of your own ids of predictions; by default id, where there is one."""
    label_column: Annotated[str, PYTHON] = "label"
    """The column, or field, of labels."""
    by: Literal["id", "name"] | None = None
    """What labels are: by default names, else ids, and refused where both."""

    def _check(self) -> None:
        if len(set(self.asked)) < len(self.asked) or "" in self.asked:
            raise InputError(f"receipt, id and label are columns of their own, got {self.asked}")

    @property
    def asked(self) -> list[str]:
        """The columns that are named."""
        return [one for one in (self.receipt_column, self.id_column, self.label_column) if one is not None]

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """The column of each field."""
        of = {"receipt": self.receipt_column, "id": self.id_column}
        if self.receipt_column is self.id_column is None:
            of = {name: name for name in ("receipt", "id") if name != self.label_column}
        found = {name: column for name, column in of.items() if column} | {"label": self.label_column}
        return found | {name: name for name in ("model", "by", "segment") if name not in found.values()}


@dataclass(frozen=True, kw_only=True)
class SentLabels(LabelColumns):
    """How labels are read, and where they are sent."""

    url: str = "http://127.0.0.1:9300/v1/labels"
    """The address that takes labels."""
    replaces: bool = False
    """They count in the place of other labels of their predictions; the token needs the scope correct."""


@dataclass(frozen=True, kw_only=True)
class LabelOptions(SentLabels):
    """Options of ``send_label_file``."""

    refused: str | Path | None = None
    """Of a file: write refused rows here, JSON lines with the reason, to be mended and sent again."""


@dataclass(frozen=True, kw_only=True)
class CollectOptions(SentLabels):
    """Options of ``Collector``; in Python ``wait`` is also seconds."""

    wait: Any = "10m"
    """For how long a label waits for its prediction to be known: 90s, 10m or 6h."""
