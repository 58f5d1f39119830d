"""Whether an artifact belongs to the model that it is to be put into."""

from __future__ import annotations

from pathlib import Path

from calib_serve.artifact import Artifact
from calib_serve.errors import FuseError

__all__ = ["UNKNOWN", "check_owner"]

UNKNOWN = (
    "the artifact does not say what its scores were, as an earlier version wrote it or it was made by hand, "
    "and its scale for each class makes other probabilities of logits than of log-probabilities; say what "
    "they were with --fitted-on (artifact.model.outputs)"
)


def check_owner(artifact: Artifact, sha256: str, source: Path, *, force: bool) -> None:
    """Raises FuseError where the artifact was fitted on another file than ``source``, unless ``force``."""
    fitted = artifact.model
    if not force and not fitted.fits(sha256):
        raise FuseError(
            f"the artifact was fitted for model {str(fitted.sha256)[:12]}, {source} is {sha256[:12]}; "
            "fit it for this model, or force where this is another export of the same one"
        )
