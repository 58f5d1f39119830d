"""Log a model of MLflow together with its calibration; it is served calibrated.

with mlflow.start_run():
    calib_serve.integrations.mlflow.log_calibrated(model_uri, artifact, model="digits", version="1")

An artifact alone is a folder, which MLflow keeps itself: ``mlflow.log_artifacts("artifact", "calibration")``.

The code that MLflow keeps with a logged model names ``calib_serve.integrations.mlflow.Calibrated``. MLflow
itself is imported where it is used.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.core.errors import CalibServeError, InputError, MissingDependency
from calib_serve.receipts import Reporter
from calib_serve.scores import Outputs, check_outputs, refuted, to_logits

# Kept with the model and run when it is loaded, so that nothing of ours is pickled.
_CODE = '''"""A calibrated model; what it does is in calib_serve.integrations.mlflow."""

import mlflow

from calib_serve.integrations.mlflow import Calibrated


class Model(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.calibrated = Calibrated.load(context.artifacts, context.model_config)

    def predict(self, context, model_input, params=None):
        return self.calibrated.predict(model_input, params)


mlflow.models.set_model(Model())
'''

_logger = logging.getLogger(__name__)
_KEYRING, _WATCH, _TOKEN = "CALIB_SERVE_KEYRING", "CALIB_SERVE_WATCH", "CALIB_SERVE_TOKEN"
_PARAMS = ("segment", "group", "ids")
_NOTHING: dict[str, Any] = {"predicted": None, "confidence": None, "probabilities": None}


def library(name: str) -> Any:
    """Return the module ``mlflow`` or one of its own; MissingDependency where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency("mlflow", "mlflow") from error


@contextmanager
def asking(doing: str) -> Iterator[None]:
    """Turn MLflow's errors inside into an InputError that names what it was ``doing``."""
    errors = library("mlflow.exceptions")
    try:
        yield
    except CalibServeError:
        raise
    except (errors.MlflowException, OSError) as error:
        raise InputError(f"MLflow cannot {doing}: {str(error)[:300]}") from error


def log_calibrated(
    model_uri: str,
    artifact: Artifact | str | Path,
    *,
    model: str,
    version: str,
    outputs: Outputs | None = None,
    name: str = "calibrated",
    **options: Any,
) -> Any:
    """Log a model that returns calibrated predictions of another, which it holds a copy of.

    What it returns is said at ``Calibrated.predict``. Its requirements are those of the model, and this
    package. If the model was logged with an input example, that is predicted here, and not counted.

    Args:
        model_uri: Address of the other model.
        artifact: Artifact that is fitted to its predictions, or its folder.
        model: Name under which its predictions are counted.
        version: Version under which they are counted.
        outputs: Kind of its predictions; by default that of the fit.
        name: Of the logged model.
        **options: Of ``mlflow.pyfunc.log_model``, such as registered_model_name.

    Returns:
        MLflow's ModelInfo.

    Raises:
        InputError: For an artifact that changes the model itself or is of several labels, where it is not
            known what the model predicts, and where that is not what the artifact was fitted on.
    """
    given = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    # A logged model is a closed box: nothing inside it can be shifted or replaced.
    if given.model_steps or given.is_multilabel:
        why = "changes the model itself" if given.model_steps else "is of several labels"
        raise InputError(f"the calibration {why}; around a model of MLflow goes one on the scores of classes")
    kind = outputs or given.model.outputs
    if kind is None:
        raise InputError(
            "it is not known what the model predicts; say outputs='probabilities', 'logits', ..."
        )
    check_outputs(kind)
    config = {"model": model, "version": version, "outputs": kind}
    pyfunc = library("mlflow.pyfunc")
    with asking(f"log a model around {model_uri}"), tempfile.TemporaryDirectory() as folder:
        where = library("mlflow.artifacts").download_artifacts(model_uri, dst_path=folder)
        inner = pyfunc.load_model(where)
        example = inner.input_example
        served = Calibrated(inner, given, outputs=kind)
        if example is not None:
            served.check(example)
        code = Path(folder) / "calibrated_model.py"
        code.write_text(_CODE)
        return pyfunc.log_model(
            name=name,
            python_model=str(code),
            artifacts={"model": where, "calibration": str(given.save(Path(folder) / "calibration"))},
            model_config=config,
            signature=_signature(inner.metadata.signature),
            pip_requirements=_requirements(Path(where)),
            metadata={"calibration": given.fingerprint},
            **options,
        )


def _signature(inner: Any) -> Any:
    """The model's inputs, and the parameters by which a request tags its predictions."""
    models, types = library("mlflow.models"), library("mlflow.types")
    params = types.ParamSchema(
        [
            types.ParamSpec("segment", "string", ""),
            types.ParamSpec("group", "string", ""),
            types.ParamSpec("ids", "string", [], shape=(-1,)),
        ]
    )
    return models.ModelSignature(inputs=None if inner is None else inner.inputs, params=params)


def _requirements(folder: Path) -> list[str]:
    file = folder / "requirements.txt"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [*(line for line in lines if line.strip()), f"calib-serve[mlflow]=={calib_serve.__version__}"]


class Calibrated:
    """A model whose predictions are calibrated.

    Args:
        inner: Model whose ``predict`` returns scores.
        artifact: Calibration of these.
        outputs: Kind of the scores.
        reporter: Counts predictions and signs receipts.

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
        """Load a logged model, as MLflow kept it.

        Receipts are signed where the environment names a keyring by CALIB_SERVE_KEYRING, and counted at the
        address CALIB_SERVE_WATCH of a ``calib-serve watch`` (with the token CALIB_SERVE_TOKEN).

        Args:
            folders: Folders ``model`` and ``calibration``.
            config: ``model``, ``version`` and ``outputs`` as they were logged.
        """
        inner = library("mlflow.pyfunc").load_model(folders["model"])
        artifact = Artifact.load(Path(folders["calibration"]))
        reporter = _reporter(artifact, config["model"], config["version"])
        return cls(inner, artifact, outputs=config["outputs"], reporter=reporter)

    def check(self, example: Any) -> None:
        """Predict an input, without counting it; InputError where the model's scores are no ``outputs``."""
        scores = self._scores(self._inner.predict(example))
        if wrong := refuted(scores.reshape(len(scores), -1), self._outputs):
            raise InputError(f"the model predicts no {self._outputs}: {wrong}")
        self._artifact.of_segments(to_logits(scores, self._outputs), "")

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Return a mapping for each row.

        ``predicted``, the class's id, with ``label``, its name, if it has one; ``confidence``;
        ``probabilities`` (K,), calibrated; ``set``, ``abstain``, ``act``, ``decision`` where there are such;
        ``receipt``, and ``label_wanted`` where it is not. A row whose scores are not finite has None in place
        of all of these.

        Args:
            model_input: Rows, as the inner model takes them.
            params: ``segment`` and ``group`` of the request, and ``ids``, your own name of each row.

        Raises:
            InputError: Where the model returns something else than scores of these classes.
        """
        scores = self._scores(self._inner.predict(model_input))
        given = {name: value for name, value in (params or {}).items() if name in _PARAMS and len(value)}
        segment: Any = given.get("segment", "")
        good = np.isfinite(scores.reshape(len(scores), -1)).all(axis=1)
        probs, _ = self._artifact.of_segments(to_logits(scores, self._outputs), segment)
        probs[~good] = np.nan
        rows = [self._row(p) if ok else dict(_NOTHING) for p, ok in zip(probs, good.tolist(), strict=True)]
        self._act(rows, segment)
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
        """Mark in each row with a prediction whether it may be acted on, where a contract decides it."""
        contract = self._artifact.contract
        if contract is None:
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
        if self._artifact.choice is not None:
            (row["decision"],) = self._artifact.choice.names(probs[None])
        return row


def _reporter(artifact: Artifact, model: str, version: str) -> Reporter | None:
    watch = os.environ.get(_WATCH)
    if not os.environ.get(_KEYRING) and not watch:
        _logger.warning("predictions get no receipts and are not counted: set %s and %s", _KEYRING, _WATCH)
        return None
    if not watch:
        _logger.warning("predictions get receipts, and are counted nowhere: set %s", _WATCH)
    token = os.environ.get(_TOKEN, "") if watch else ""
    return Reporter(artifact, model=model, version=version, watch=watch, token=token)
