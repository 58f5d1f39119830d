"""Options of TorchServe archives: how they are packed, and how they answer."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from calib_serve.core.names import parse_duration
from calib_serve.core.options.base import (
    MAX_PIXELS,
    PYTHON,
    Checked,
    LastLayer,
    check,
    check_between,
    check_default,
    check_positive,
    given_fields,
)
from calib_serve.core.options.data import ModelScores, ProofOptions, TrialOptions
from calib_serve.core.options.servers import WatchOptions


@dataclass(frozen=True, kw_only=True)
class Wrapped(Checked):
    """Options of a wrapped handler."""

    receipts: Annotated[Literal["header", "body"], PYTHON] = "header"
    """Where the handler's replies carry receipts."""


@dataclass(frozen=True, kw_only=True)
class Flushed(Checked):
    """Options of reporting counts."""

    # Below every scrape interval, so that nobody waits for it; tests ask for less.
    flush_seconds: Annotated[float, PYTHON] = 1.0
    """Seconds between a worker's reports."""

    def _check(self) -> None:
        check_positive("flush_seconds", self.flush_seconds)


@dataclass(frozen=True, kw_only=True)
class Handled(Flushed):
    """Options of every handler of ours."""

    threshold: Annotated[float, PYTHON] = 0.5
    """The probability from which on a label of several is predicted."""
    workers: Annotated[int | None, PYTHON] = None
    """Processes, each with its copy of the model; by default 1, or as many as the archive has."""

    def _check(self) -> None:
        check_between("threshold", self.threshold)
        check(self.workers is None or self.workers >= 1, "workers", f"must be 1 or more, got {self.workers}")


@dataclass(frozen=True, kw_only=True)
class ReplyOptions(LastLayer):
    """Options of a packed model's replies, and of its workers' resources."""

    abstain_below: Annotated[float | None, PYTHON] = None
    """Confidence under which a reply says abstain."""
    top: Annotated[int, PYTHON] = 5
    """Classes that a reply lists, likeliest first."""
    probabilities: Annotated[bool, PYTHON] = True
    """List the probabilities of all classes in a reply."""
    threads: Annotated[int | None, PYTHON] = None
    """Cores of a worker; by default all are shared evenly by the workers."""
    max_pixels: Annotated[int, PYTHON] = MAX_PIXELS
    """The most pixels of a picture that is sent."""

    def _check(self) -> None:
        known = self.abstain_below
        check(known is None or 0 <= known <= 1, "abstain_below", f"must lie in [0, 1], got {known}")
        check(self.top >= 0, "top", f"must be 0 or more, got {self.top}")
        check(self.max_pixels >= 1, "max_pixels", f"must be 1 or more, got {self.max_pixels}")
        check(self.threads is None or self.threads >= 1, "threads", f"must be 1 or more, got {self.threads}")


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(Handled, ReplyOptions):
    """How a packed model answers; ``calib_serve.torchserve.mar_options.ModelOptions`` are these and more."""


@dataclass(frozen=True, kw_only=True)
class Packed(Handled, ModelScores, ProofOptions):
    """Options of every archive of a model."""

    version: str | None = None
    """The model's version; by default 1.0, or that of the archive and -calibrated."""
    batch_size: int | None = None
    """Most requests in one call of the model; by default 8, or as many as the archive has."""

    def _check(self) -> None:
        most = self.batch_size
        check(most is None or most >= 1, "batch_size", f"must be 1 or more, got {most}")


@dataclass(frozen=True, kw_only=True)
class ModelPack(ReplyOptions):
    """Options of a model's archive alone."""

    inputs: Any = None
    """An npz of inputs by name, to compare the model's scores on with --against."""
    input_shape: tuple[int | None, ...] | None = None
    """One input's shape, such as 3,224,224, -1 for any size; by default as the artifact says."""
    shadow: Any = None
    """Another artifact, of which receipts say what it would have served."""


@dataclass(frozen=True, kw_only=True)
class PackOptions(Packed, ModelPack):
    """Options of ``pack``."""


@dataclass(frozen=True, kw_only=True)
class ArchivePack(TrialOptions, Wrapped):
    """Options of an archive that is packed again around its own handler."""

    probe_data: str | None = None
    """Samples to try the handler with, as DATA of calib-serve fit; by default arrays of the fitted shape."""
    untried: bool = False
    """Pack without trying the handler: it needs more than is here."""

    def _check(self) -> None:
        if self.untried:
            of_trial = ("probe_data", "probe_timeout")
            check_default(self, of_trial, "is of a trial, and untried says that there is none")


@dataclass(frozen=True, kw_only=True)
class AroundOptions(Packed, ArchivePack):
    """Options of ``pack_around``."""


@dataclass(frozen=True, kw_only=True)
class FeedbackPack(Checked):
    """Options of the feedback archive alone; the first four are by default those of a watch."""

    arl: Annotated[float | None, PYTHON] = None
    """Labels between two false drift alarms."""
    tolerance: Annotated[float | None, PYTHON] = None
    """How far accuracy may be from confidence."""
    block: Annotated[int | None, PYTHON] = None
    """Labels that may depend on one another."""
    maturity: Annotated[str | None, PYTHON] = None
    """The age at which labels are in, such as 6h, or auto."""
    ttl_days: Annotated[float, PYTHON] = 30.0
    """Days after its prediction in which a label is taken."""

    def _check(self) -> None:
        WatchOptions(**given_fields(FeedbackPack, self))
        if self.maturity not in (None, "auto"):
            parse_duration(str(self.maturity), what='maturity, if not "auto",')


@dataclass(frozen=True, kw_only=True)
class FeedbackOptions(FeedbackPack, Flushed):
    """Options of ``pack_feedback``."""
