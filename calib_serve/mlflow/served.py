"""What a logged, calibrated model does when it is served; the code that MLflow keeps names this module."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.mlflow.library import library
from calib_serve.reporter.reporter import Reporter
from calib_serve.scores import PROBABILITIES, Outputs, measured, to_logits

log = logging.getLogger(__name__)

_KEYRING, _WATCH, _TOKEN = "CALIB_SERVE_KEYRING", "CALIB_SERVE_WATCH", "CALIB_SERVE_TOKEN"
_PARAMS = ("segment", "group", "ids")


class Calibrated:
    """``inner``, whose ``predict`` returns scores, and the calibration of these.

    ``outputs``: what the scores are; ``reporter`` counts predictions and signs receipts.

    >>> from calib_serve.artifact import LogitMap
    >>> class Inner:
    ...     def predict(self, rows):
    ...         return np.log(np.array([[0.8, 0.2], [0.5, 0.5]]))
    >>> halved = Artifact((LogitMap.temperature(0.5),), method="temperature", classes=2)
    >>> model = Calibrated(Inner(), halved, outputs="logits")
    >>> [(one["predicted"], round(one["confidence"], 3)) for one in model.predict(None)]
    [(0, 0.941), (0, 0.5)]
    """

    def __init__(
        self, inner: Any, artifact: Artifact, *, outputs: Outputs, reporter: Reporter | None = None
    ) -> None:
        artifact.check_takes(outputs, "the model's predictions")
        self._inner, self._artifact, self._outputs = inner, artifact, outputs
        self._reporter = reporter

    @classmethod
    def load(cls, folders: Mapping[str, str], config: Mapping[str, Any]) -> Calibrated:
        """From the folders ``model`` and ``calibration`` that MLflow kept, and what it was logged with.

        Receipts are signed where the environment names a keyring by CALIB_SERVE_KEYRING, and counted at the
        address CALIB_SERVE_WATCH of a ``calib-serve watch`` (with the token CALIB_SERVE_TOKEN).
        """
        inner = library("mlflow.pyfunc").load_model(folders["model"])
        artifact = Artifact.load(Path(folders["calibration"]))
        reporter = _reporter(artifact, config["model"], config["version"])
        return cls(inner, artifact, outputs=config["outputs"], reporter=reporter)

    def check(self, example: Any) -> None:
        """Predict an input, without counting it; InputError where the model's scores are no ``outputs``."""
        scores = self._scores(self._inner.predict(example))
        if self._outputs in ("logits", "logit") and (kind := measured(scores)) in PROBABILITIES:
            raise InputError(f"the model predicts {kind}, by their numbers, not {self._outputs}")
        self._artifact.of_logits(to_logits(scores, self._outputs))

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """A mapping for each row of ``model_input``, as ``inner`` takes it.

        ``predicted``, the class's id, with ``label``, its name, if it has one; ``confidence``;
        ``probabilities`` (K,), calibrated; ``set``, ``abstain`` and ``act`` where the artifact has them;
        ``receipt``, and ``label_wanted`` where it is not. A row whose scores are not finite has None in place
        of all of these. ``params``: ``segment`` and ``group`` of the request, and ``ids``, your own name of
        each row. Raises InputError where the model returns something else than scores of these classes.
        """
        scores = self._scores(self._inner.predict(model_input))
        good = np.isfinite(scores.reshape(len(scores), -1)).all(axis=1)
        probs = np.full((len(scores), self._artifact.classes), np.nan)
        if good.any():
            probs[good] = self._artifact.of_logits(to_logits(scores[good], self._outputs))
        rows = [self._row(p) if ok else dict(_NOTHING) for p, ok in zip(probs, good.tolist(), strict=True)]
        given = {name: value for name, value in (params or {}).items() if name in _PARAMS and len(value)}
        self._act(rows, given.get("segment", ""))
        if self._reporter is not None:
            known = {"id" if name == "ids" else name: value for name, value in given.items()}
            for row, receipt in zip(rows, self._reporter.served(probs, **known), strict=True):
                if receipt is not None:
                    row["receipt"] = str(receipt)
                    if not receipt.wanted:
                        row["label_wanted"] = False
        return rows

    def _scores(self, predictions: Any) -> NDArray[np.floating[Any]]:
        found = np.asarray(predictions)
        if found.dtype.kind != "f":
            raise InputError(
                f"the model predicts {found.dtype}, and scores are wanted: log a scikit-learn classifier "
                "with pyfunc_predict_fn='predict_proba'"
            )
        columns = 1 if found.ndim == 1 else found.shape[-1]
        if found.ndim not in (1, 2) or columns not in (self._artifact.classes, self._columns()):
            raise InputError(
                f"the model predicts scores of {found.shape}, the calibration is of {self._artifact.classes} "
                f"classes and {self._outputs}"
            )
        return found

    def _act(self, rows: list[dict[str, Any]], segment: str | Sequence[str]) -> None:
        """Say in each row that has a prediction whether it may be acted on, where a contract decides it."""
        contract = self._artifact.contract
        if contract is None or not contract.decides:
            return
        segments = [segment] * len(rows) if isinstance(segment, str) else list(segment)
        if len(segments) != len(rows):
            raise InputError(f"give one segment for each of {len(rows)} predictions")
        for row, of in zip(rows, segments, strict=True):
            if row["predicted"] is not None:
                row["act"] = contract.acts_on(row["confidence"], row["predicted"], of)

    def _columns(self) -> int:
        return 1 if self._outputs in ("logit", "probability") else self._artifact.classes

    def _row(self, probs: NDArray[np.float64]) -> dict[str, Any]:
        names, best = self._artifact.class_names, int(probs.argmax())
        row: dict[str, Any] = {"predicted": best, **({"label": names[best]} if names else {})}
        row |= {"confidence": float(probs[best]), "probabilities": probs.tolist()}
        if self._artifact.sets is not None:
            inside = self._artifact.sets(probs[None])[0]
            ordered = [k for k in np.argsort(-probs, kind="stable").tolist() if inside[k]]
            row["set"] = [names[k] if names else k for k in ordered]
        if self._artifact.abstain is not None:
            row["abstain"] = bool(self._artifact.abstain(probs[None])[0])
        return row


_NOTHING: dict[str, Any] = {"predicted": None, "confidence": None, "probabilities": None}


def _reporter(artifact: Artifact, model: str, version: str) -> Reporter | None:
    watch = os.environ.get(_WATCH)
    if not os.environ.get(_KEYRING) and not watch:
        log.warning("predictions get no receipts and are not counted: set %s and %s", _KEYRING, _WATCH)
        return None
    if not watch:
        log.warning("predictions get receipts, and are counted nowhere: set %s", _WATCH)
    token = os.environ.get(_TOKEN, "")
    return Reporter(artifact, model=model, version=version, watch=watch, token=token)
