"""An artifact with a run of MLflow: its folder, its metrics before and after, and what it is."""

from __future__ import annotations

import math
import re
import tempfile
from pathlib import Path
from typing import Any

from calib_serve.artifact import Artifact
from calib_serve.errors import ConflictError, InputError, IntegrityError
from calib_serve.mlflow.library import asking, library

__all__ = ["load", "log"]

_ALLOWED = re.compile(r"[\w\-. ]+")  # in the names of params, metrics and folders
_RUN = re.compile(r"runs:/+([^/]+)/(.+)")


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
