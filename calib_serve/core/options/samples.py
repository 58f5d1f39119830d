"""Options of samples, apart from those of servers: a ``Reporter`` needs no others, and is imported faster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calib_serve.core.options.base import Checked, check_default, check_share

OF_FOLDER = "is of samples: name the folder to keep them in"
"""Why an option of samples is refused where none are kept."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Checked):
    """Options of the label budget, and of kept logits and labels, to refit on."""

    label_budget: Any = ""
    """Labels to ask for of predictions signed here: 500/day, or a rate 0.05."""
    samples: Any = None
    """Keep logits and labels in this folder, to refit on; by default none are kept."""
    sample_rate: float = 0.1
    """The share of predictions to keep there."""

    def _check(self) -> None:
        check_share("sample_rate", self.sample_rate)
        if not isinstance(self.samples, (str, Path)):
            check_default(self, ["sample_rate"], OF_FOLDER)
