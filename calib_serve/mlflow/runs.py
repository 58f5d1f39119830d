"""Calibrations in MLflow: an artifact with a run, and one around a logged model, as a model of its own."""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import Any

import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.errors import ConflictError, InputError, IntegrityError
from calib_serve.mlflow.library import asking, library
from calib_serve.mlflow.served import Calibrated
from calib_serve.scores import Outputs, check_outputs

_ALLOWED = re.compile(r"[\w\-. ]+")  # in the names of params, metrics and folders
_RUN = re.compile(r"runs:/+([^/]+)/(.+)")

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


def log(
    artifact: Artifact | str | Path,
    report: str | Path | None = None,
    *,
    run_id: str | None = None,
    name: str = "calibration",
) -> str:
    """Log an artifact, or that of a folder, to a run; the address that ``load`` takes, runs:/RUN/NAME.

    ``run_id``: default, the active run. The run gets the folder ``name``, the file of the HTML ``report``
    beside it, the params NAME.method, .classes, .fingerprint, .measured_on and, of a temperature,
    .temperature, and for each metric NAME.before.METRIC and NAME.after.METRIC (fractions). Raises InputError
    where no run is active or MLflow refuses it, ConflictError where the run has another calibration of that
    name, ArtifactError for a folder that is none.
    """
    given = artifact if isinstance(artifact, Artifact) else Artifact.load(artifact)
    if not _ALLOWED.fullmatch(name):
        raise InputError(f"the name {name!r} must be of letters, digits, '_', '-', '.' and spaces")
    if report is not None and not Path(report).is_file():
        raise InputError(f"there is no report at {report}; write it with calib-serve report")
    tracking = library("mlflow.tracking")
    with asking("log the calibration"):
        client, run = tracking.MlflowClient(), _run_id(run_id)
        known = client.get_run(run).data.params.get(f"{name}.fingerprint")
        if known not in (None, given.fingerprint):
            raise ConflictError(
                f"the run {run} has another calibration called {name}, {known[:12]}; give another name, or "
                "log it to another run"
            )
        with tempfile.TemporaryDirectory() as folder:
            # What the run says of it comes last: a run that names it holds it.
            client.log_artifacts(run, str(given.save(Path(folder) / "artifact")), name)
        if report is not None:
            client.log_artifact(run, str(report), f"{name}.report")
        _tell(client, run, name, given)
    return f"runs:/{run}/{name}"


def load(uri: str) -> Artifact:
    """The artifact at an address, as ``log`` returned it, or of any folder that MLflow finds.

    Its hashes are checked, and against the fingerprint that the run was given. Raises InputError where MLflow
    does not find it, ArtifactError where it is damaged, IntegrityError where it is another one.
    """
    with asking(f"fetch {uri}"), tempfile.TemporaryDirectory() as folder:
        found = Artifact.load(library("mlflow.artifacts").download_artifacts(uri, dst_path=folder))
        if parts := _RUN.fullmatch(uri.rstrip("/")):
            params = library("mlflow.tracking").MlflowClient().get_run(parts[1]).data.params
            known = params.get(f"{parts[2]}.fingerprint")
            if known not in (None, found.fingerprint):
                raise IntegrityError(
                    f"{uri} holds the calibration {found.fingerprint[:12]}, the run was given {known[:12]}"
                )
    return found


def _run_id(given: str | None) -> str:
    if given is not None:
        return given
    active = library().active_run()
    if active is None:
        raise InputError("no run is active: log it inside 'with mlflow.start_run():', or give run_id")
    return str(active.info.run_id)


def _tell(client: Any, run: str, name: str, artifact: Artifact) -> None:
    entities = library("mlflow.entities")
    told = {
        "method": artifact.method,
        "classes": artifact.classes,
        "measured_on": artifact.data.get("measured_on"),
        "temperature": artifact.temperature,
        "fingerprint": artifact.fingerprint,
    }
    params = [entities.Param(f"{name}.{key}", str(value)) for key, value in told.items() if value is not None]
    metrics = [
        entities.Metric(f"{name}.{when}.{metric}", estimate.value, 0, 0)
        for when, found in (("before", artifact.metrics_before), ("after", artifact.metrics_after))
        for metric, estimate in found.items()
        if math.isfinite(estimate.value) and _ALLOWED.fullmatch(metric)
    ]
    client.log_batch(run, metrics=metrics, params=params)


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
