"""One model version behind the gateway: its scores calibrated, and the outputs added to its replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.oip import Tensor
from calib_serve.receipts import Reporter, SignedReceipt, Tag
from calib_serve.scores import OF_ANSWERS, ONE_COLUMN, LabelWords, Outputs, from_probs, to_logits, to_probs

Array = NDArray[Any]

ADDED = frozenset(("confidence", "receipt", "abstain", "set", "label_wanted"))
"""The outputs that a reply may get; ``act`` and ``decision`` only where the artifact says so."""


class CalibratedOutput(NamedTuple):
    """The calibrated output, in its original shape and datatype, and the added outputs."""

    values: Array
    added: list[Tensor]


class Calibration:
    """Calibrates the output ``output`` of a model version; ``kind`` is the kind of the model's scores.

    ``what``: the artifact, or the number of classes of a model whose output is calibrated already, which
    then stays as it is. Raises InputError for an artifact that cannot act on an output alone.
    """

    def __init__(
        self,
        model: str,
        version: str,
        what: Artifact | int,
        *,
        output: str,
        kind: Outputs,
        reports: Reporter,
    ) -> None:
        self.model, self.version, self.output, self.kind = model, version, output, kind
        self.words: LabelWords | None = None
        self.artifact = what if isinstance(what, Artifact) else None
        self.contract = None if self.artifact is None else self.artifact.contract
        self.classes = what if isinstance(what, int) else what.classes
        self._reports = reports
        if output.startswith(OF_ANSWERS):
            self.words = LabelWords.load(output.removeprefix(OF_ANSWERS))
            own = (self.artifact.class_names if self.artifact else ()) or self.words.names
            if kind != "probabilities" or self.words.names != own or len(own) != self.classes:
                raise InputError(
                    f"answers are probabilities of {', '.join(self.words.names)}, and the calibration of "
                    f"{model} is of {kind} of {', '.join(own) or self.classes}"
                )
        if kind in ("label_logits", "label_probabilities"):
            raise InputError(f"the gateway serves models of one class a sample, and {model} is of labels")
        if self.artifact is None:
            return
        if self.artifact.model_steps:
            raise InputError(
                f"the calibration of {model} changes the model itself; put it in with calib-serve fuse, and "
                f"say {model}:{version}={self.classes} here: its output is calibrated then"
            )
        self.artifact.check_takes(kind, f"the scores of {model}")

    def __call__(self, raw: Array, about: Tag) -> CalibratedOutput:
        """Calibrate ``raw`` of shape (n, K), (K,) or with further axes of 1; InputError for any other."""
        rows = self._rows(raw)
        scores = rows.astype(np.float64)
        logits = to_logits(scores, self.kind)
        finite = np.asarray(np.isfinite(logits).all(axis=1))
        whole = bool(finite.all())
        if self.artifact is None:
            values = raw
            probs = to_probs(scores if whole else np.where(finite[:, None], scores, 0.5), self.kind)
        else:
            known = logits if whole else np.where(finite[:, None], logits, 0.0)
            probs, _ = self.artifact.of_segments(known, about.segment)  # the reporter counts unknown sources
            values = from_probs(probs, scores, self.kind).reshape(raw.shape).astype(raw.dtype)
        # What is not finite gets no receipt, and is counted as invalid.
        probs[~finite] = np.nan
        ids = [about.of_row(row, len(probs)).id for row in range(len(probs))] if about.id else ""
        receipts = self._reports.served(
            probs, segment=about.segment, group=about.group, id=ids, logits=logits
        )
        return CalibratedOutput(values, self._added(probs, receipts, about.segment))

    def _rows(self, raw: Array) -> Array:
        columns = 1 if self.kind in ONE_COLUMN else self.classes
        if raw.ndim > 1 and raw.size == len(raw) * columns and columns in (*raw.shape[1:], 1):
            return raw.reshape(len(raw), columns)
        if raw.ndim == 1 and (columns == 1 or len(raw) == columns):
            return raw.reshape(-1, columns)
        raise ShapeError(f"{self.output} must be (n, {columns}), got {raw.shape}")

    def _added(
        self, probs: NDArray[np.float64], receipts: Sequence[SignedReceipt | None], segment: str
    ) -> list[Tensor]:
        added = [Tensor("confidence", "FP64", probs.max(axis=1))]
        if any(one is not None for one in receipts):
            signed = [b"" if one is None else one.encode() for one in receipts]
            added.append(Tensor("receipt", "BYTES", np.array(signed, object)))
            wanted = [one is not None and one.wanted for one in receipts]
            if not all(wanted):
                added.append(Tensor("label_wanted", "BOOL", np.array(wanted)))
        if self.artifact is not None and self.artifact.abstain is not None:
            added.append(Tensor("abstain", "BOOL", self.artifact.abstain(probs)))
        if self.artifact is not None and self.artifact.sets is not None:
            # What is not finite has no set: all classes are in it.
            found = np.isnan(probs).any(axis=1, keepdims=True)
            inside = self.artifact.sets(np.where(found, 1 / self.classes, probs))
            added.append(Tensor("set", "BOOL", inside | found))
        if self.contract is not None:
            acts = self.contract.acts(probs.max(axis=1), probs.argmax(axis=1), segment)
            added.append(Tensor("act", "BOOL", acts))
        if self.artifact is not None and self.artifact.choice is not None:
            named = [name.encode() for name in self.artifact.choice.names(probs)]
            added.append(Tensor("decision", "BYTES", np.array(named, object)))
        return added


class Calibrations:
    """The calibrations of all models, found by name and by the version that a reply names.

    A reply that names no version is that of the one version that is calibrated, if there is one alone.
    """

    def __init__(self, all_of_them: Iterable[Calibration]) -> None:
        self._of: dict[str, dict[str, Calibration]] = {}
        for one in all_of_them:
            versions = self._of.setdefault(one.model, {})
            if one.version in versions:
                raise InputError(f"{one.model}:{one.version} is given twice")
            # A request that names no version is answered by any: what to ask for must be known before.
            if versions and one.output != next(iter(versions.values())).output:
                raise InputError(f"all versions of {one.model} must have one output to calibrate")
            if versions and one.words is not None:
                raise InputError(f"answers name no version, and a gateway serves one version of {one.model}")
            versions[one.version] = one

    def __iter__(self) -> Any:
        return (one for versions in self._of.values() for one in versions.values())

    def output_of(self, model: str) -> str | None:
        """The name of the calibrated output, None for a model that passes unchanged."""
        versions = self._of.get(model)
        return None if versions is None else next(iter(versions.values())).output

    def added_to(self, model: str) -> frozenset[str]:
        """The names of outputs that replies of a model may get; the model's own outputs pass unchanged."""
        versions = self._of.get(model, {}).values()
        chooses = any(one.artifact is not None and one.artifact.choice is not None for one in versions)
        more = {"act": any(one.contract is not None for one in versions), "decision": chooses}
        return ADDED | {name for name, there in more.items() if there}

    def find(self, model: str, version: str) -> Calibration | None:
        """Find the calibration of a reply."""
        versions = self._of.get(model, {})
        if not version and len(versions) == 1:
            return next(iter(versions.values()))
        return versions.get(version)
