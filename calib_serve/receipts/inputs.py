"""Arguments of a reporter, read and checked: artifact, keyring, shadow, arrays, tags and ids."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.receipts.batch import OTHER, is_id, is_segment
from calib_serve.receipts.environment import KEYRING, from_environment
from calib_serve.receipts.keyring import Keyring, LiveKeyring
from calib_serve.receipts.recorder import Tag
from calib_serve.receipts.wire import shadow_tag

if TYPE_CHECKING:
    from calib_serve.artifact import Artifact

log = logging.getLogger(__name__)


def optional_artifact(what: Artifact | str | Path | int) -> Artifact | None:
    """The artifact, or None where the number of classes is given."""
    if isinstance(what, int):
        if what < 2:
            raise InputError(f"a classifier has at least 2 classes, got {what}")
        return None
    from calib_serve.artifact import Artifact  # noqa: PLC0415 - of no use where classes are counted alone

    return what if isinstance(what, Artifact) else Artifact.load(what)


def keyring_of(given: Keyring | LiveKeyring | str | Path | None) -> Keyring | LiveKeyring | None:
    """The given keyring, or the one that the environment names; None, and a warning, where there is none."""
    if given is None and (given := from_environment(KEYRING)) is None:
        log.warning(
            "receipts are off: no keyring is given, and %s names none (calib-serve keys new FILE)", KEYRING
        )
        return None
    return LiveKeyring(given) if isinstance(given, (str, Path)) else given


def array_of(probs: ArrayLike) -> NDArray[Any]:
    """Numbers in an array; InputError for anything else."""
    try:
        p = np.asarray(probs)
    except Exception as error:  # tensors that need gradients, or are on a GPU, raise types of their own
        raise InputError(f"probs are no array: {error}") from error
    if p.dtype.kind not in "fiu":
        raise InputError(f"probs must be numbers, got an array of {p.dtype}")
    return p


def are_probabilities(p: NDArray[Any]) -> bool:
    """Whether rows (n, K) or (K,) sum to 1; rows that are not finite are not judged here."""
    if not p.size:
        return True
    sums = np.atleast_1d(p.sum(axis=-1, dtype=np.float64))
    sums = sums[np.isfinite(sums)]
    return bool((np.abs(sums - 1) <= 0.02).all())  # as far as sums in half precision may be from 1


def logits_in_shape(logits: ArrayLike, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Logits of this shape; ShapeError for any other."""
    z = np.atleast_2d(np.asarray(logits, np.float64))
    if z.shape != shape:
        raise ShapeError(f"logits must have the shape of probs, {shape}, got {z.shape}")
    return z


def tags_of(
    segment: str | Sequence[str], group: str | Sequence[str], count: int, *, failed: Callable[..., None]
) -> list[Tag]:
    """The tag of each of ``count`` predictions; a segment that no watch takes is counted as ``other``.

    Names from clients must not raise into their predictions: ``failed("segment")`` counts bad ones.
    """
    segments = each_of(segment, "segment", count)
    wrong = [one for one in segments if not is_segment(one)]
    if wrong:
        failed("segment", times=len(wrong))
        segments = [one if is_segment(one) else OTHER for one in segments]
    return list(map(Tag, segments, each_of(group, "group", count)))


def ids_of(id: str | Sequence[str], count: int, *, failed: Callable[..., None]) -> Sequence[str]:
    """Read ids of ``count`` predictions; an invalid id becomes "", and is reported by ``failed("ids")``."""
    found = each_of(id, "id", count)
    wrong = sum(1 for one in found if one and not is_id(one))
    if not wrong:
        return found
    failed("ids", times=wrong)
    return [one if is_id(one) else "" for one in found]


def each_of(given: str | Sequence[str], what: str, count: int) -> Sequence[str]:
    """Read one text for each of ``count`` predictions; a single text serves for all, but not as an id."""
    found = [given] * count if isinstance(given, str) else list(given)
    if len(found) != count or (what == "id" and given and isinstance(given, str) and count > 1):
        raise InputError(f"give one {what} for each of {count} predictions")
    if not all(isinstance(one, str) for one in found):
        raise InputError(f"a {what} is a text")
    return found


class ReporterShadow:
    """Runs a shadow of the served artifact: it is measured, and never answers.

    Args:
        what: Artifact or its folder.
        served: Artifact beside which it runs, or the number of classes.

    Raises:
        InputError: Where it cannot act on what the served one acts on.
    """

    def __init__(self, what: Artifact | str | Path, served: Artifact | int) -> None:
        self.classes = served if isinstance(served, int) else served.classes
        from calib_serve.artifact import Artifact  # noqa: PLC0415 - of no use without a shadow

        shadow = what if isinstance(what, Artifact) else Artifact.load(what)
        shadow.check_beside(
            Artifact((), method="none", classes=served) if isinstance(served, int) else served
        )
        self.artifact, self.tag = shadow, shadow_tag(shadow.fingerprint)

    def says(
        self, rows: Sequence[int], *, probs: ArrayLike | None, logits: NDArray[np.float64] | None
    ) -> list[tuple[int, float]]:
        """The shadow's class and confidence of some rows.

        Args:
            rows: Positions (m,).
            probs: Its own probabilities, (n, K) or (K,); None: it computes them.
            logits: Logits of all rows (n, K).

        Raises:
            InputError: Where there are neither probabilities nor logits.
            ShapeError: Where probabilities have another shape.
        """
        if not rows:
            return []
        if probs is not None:
            p = np.atleast_2d(array_of(probs))
        elif logits is not None:
            p = self.artifact.of_logits(logits[list(rows)])
            rows = range(len(rows))
        else:
            raise InputError("a shadow needs logits, or its own probabilities")
        if p.ndim != 2 or p.shape[1] != self.classes or len(p) <= max(rows):
            raise ShapeError(f"the shadow's probabilities must be (n, {self.classes}), got {p.shape}")
        best = p[list(rows)].argmax(axis=1)
        return list(zip(best.tolist(), p[list(rows), best].tolist(), strict=True))
