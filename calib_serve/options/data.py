"""Options that say what is fitted on or measured: a file of scores, or a model or archive and its data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from calib_serve.options.base import RARE, Checked, Factory, Seeded, check, check_positive
from calib_serve.options.fit import Prior
from calib_serve.options.scores import Kind, SplitData

__all__ = ["ArchiveData", "ArchiveFitOptions", "ArchiveOptions", "DataOptions", "ModelData", "TrialOptions"]


@dataclass(frozen=True, kw_only=True)
class ModelData(SplitData, Factory):
    """Where scores come from: DATA alone holds them, else it holds the inputs of a model."""

    model: str | None = None
    """A model that DATA are the inputs and labels of: a file, a Hugging Face folder, or module:factory."""


@dataclass(frozen=True, kw_only=True)
class TrialOptions(Checked):
    """How a TorchServe archive's own handler is asked for its scores."""

    seam: str | None = None
    """Where the class scores pass in the archive's handler: PLACE, or PLACE:OUTPUT, as in model:logits."""
    probe_timeout: Annotated[float, RARE] = 60
    """Seconds that the archive's handler may take to answer."""

    def _check(self) -> None:
        check_positive(probe_timeout=self.probe_timeout)
        check(self.seam not in ("", ":"), "seam", f"is PLACE, PLACE:OUTPUT or :OUTPUT, got {self.seam!r}")

    @property
    def place(self) -> str | None:
        """Return where the class scores pass."""
        return None if self.seam is None else self.seam.partition(":")[0] or None

    @property
    def output(self) -> str | None:
        """Return where the scores lie in what passes there."""
        return None if self.seam is None else self.seam.partition(":")[2] or None


@dataclass(frozen=True, kw_only=True)
class ArchiveData(SplitData, TrialOptions):
    """Where scores come from: DATA alone holds them, else it holds the requests of an archive."""

    from_: Path | None = None
    """A TorchServe archive that DATA are the requests and labels of; its own handler is asked."""

    def _check(self) -> None:
        check(
            self.seam is None or self.from_ is not None,
            "seam",
            "is a place in the handler of an archive, and none is given",
        )


@dataclass(frozen=True, kw_only=True)
class DataOptions(ModelData, ArchiveData):
    """Where scores come from: DATA alone holds them, else it holds the inputs of a model or an archive."""

    def _check(self) -> None:
        check(
            self.model is None or self.from_ is None,
            "from_",
            "names an archive, and there is a model: give one of both",
        )
        check(
            self.weights is None or self.model is not None,
            "weights",
            "are those of a model that is a factory, and none is given",
        )


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(TrialOptions):
    """Options of ``scores_of_archive``."""

    outputs: Kind | None = None
    """What passes, where its numbers do not say it, as in ``ScoresOptions``."""
    batch_size: Annotated[int | None, RARE] = None
    """Requests at once; by default the archive's, if it is proved which row of a batch is whose."""


@dataclass(frozen=True, kw_only=True)
class ArchiveFitOptions(ArchiveOptions, Prior, Seeded):
    """Options of ``calibrate_archive``."""
