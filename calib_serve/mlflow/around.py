"""A calibration around a model that MLflow has: a model of its own, which `mlflow models serve` serves."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.errors import InputError
from calib_serve.mlflow.library import asking, library
from calib_serve.mlflow.served import Calibrated
from calib_serve.scores import Outputs, check_outputs

__all__ = ["log_calibrated"]

# Kept with the model and run when it is loaded, so that nothing of ours is pickled.
_CODE = '''"""A calibrated model; what it does is in calib_serve.mlflow."""

import mlflow

from calib_serve.mlflow import Calibrated


class Model(mlflow.pyfunc.PythonModel):
    def load_context(self, context):
        self.calibrated = Calibrated.load(context.artifacts, context.model_config)

    def predict(self, context, model_input, params=None):
        return self.calibrated.predict(model_input, params)


mlflow.models.set_model(Model())
'''


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
    """Log a model that returns calibrated predictions of the one at ``model_uri``, which it holds a copy of.

    ``artifact``: fitted to what that one predicts, or its folder. ``model`` and ``version``: as its
    predictions are counted. ``outputs``: what it predicts, "probabilities", "logits", ...; default: what the
    artifact was fitted on. ``options`` go to ``mlflow.pyfunc.log_model``, such as registered_model_name. What
    it returns is said at ``Calibrated.predict``. Its requirements are those of the model, and this package.

    If the model was logged with an input example, that is predicted here, and not counted. Returns MLflow's
    ModelInfo. Raises InputError for an artifact that changes the model itself or is of several labels, where
    it is not known what the model predicts, and where that is not what the artifact was fitted on.
    """
    given = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
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
    """What the model takes, and what a request may say of its predictions."""
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
