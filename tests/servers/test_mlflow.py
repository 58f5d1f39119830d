"""MLflow with calibrated confidences: real runs, and the real ``mlflow models serve`` with two workers."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from example_servers import EXAMPLES, Site, answers, rows, site_of
from server_checks import (
    Predict,
    Reply,
    check_a_killed_worker_loses_no_more_than_it_had_not_sent,
    check_a_row_without_a_number_spoils_no_other,
    check_predictions_and_labels_are_counted_once,
    check_the_watch_may_be_away,
    check_what_was_served_is_counted_at_the_end,
)
from server_environments import server_environ, server_python

pytestmark = [pytest.mark.server, pytest.mark.nightly]


PORT = 5001


@contextmanager
def started(folder: Path) -> Iterator[Site]:
    programs, made = server_python("mlflow").parent, site_of("mlflow", folder, PORT)
    in_python(folder, (folder / "calibrated.py").read_text())
    environ = server_environ("mlflow", **made.keys(), CALIB_SERVE_WATCH=made.watch.url)
    command = [programs / "mlflow", "models", "serve", "-m", "models:/digits/1", "--env-manager", "local"]
    command += ["--port", str(PORT), "--workers", "2"]
    with made.watch, made.serving(command, answers(made.url(PORT, "ping")), environ=environ):
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("mlflow")) as made:
        yield made


@pytest.fixture
def site(shared: Site) -> Site:
    return shared.mark()


def predict_by(site: Site, **params: Any) -> Predict:
    def predict(x: np.ndarray) -> list[Reply]:
        body = {"inputs": x.tolist(), **({"params": params} if params else {})}
        answer = httpx.post(site.url(PORT, "invocations"), json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        told = answer.json()["predictions"]
        return [Reply(one["predicted"], one["confidence"], one.get("receipt", "")) for one in told]

    return predict


def workers(site: Site) -> list[psutil.Process]:
    """The processes that run the model, below MLflow's own and its server's."""
    found = []
    for process in psutil.Process(site.processes[-1].pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_each_prediction_and_each_label_is_counted_once(site: Site) -> None:
    check_predictions_and_labels_are_counted_once(site, predict_by(site))
    assert len(workers(site)) == 2


def test_labels_come_home_by_the_callers_own_ids(site: Site) -> None:
    names = [f"order-{i}" for i in range(20)]
    predict_by(site, ids=names, segment="eu")(rows(20))
    site.until_counted(20)
    items = [{"id": name, "label": 3} for name in names]
    told = [httpx.post(f"{site.watch.url}/v1/labels", json={"items": items}, timeout=60) for _ in "12"]
    assert [answer.json()["accepted"] for answer in told] == [20, 0], told[0].text[:500]
    assert site.counted("calib_feedback_total", model="digits", version="1") == 20


def test_a_request_that_cannot_be_answered_is_refused_and_counts_nothing(site: Site) -> None:
    for body in (
        {"inputs": rows(2)[:, :3].tolist()},
        {"inputs": rows(2).tolist(), "params": {"ids": ["one for two rows"]}},
    ):
        answer = httpx.post(site.url(PORT, "invocations"), json=body, timeout=60)
        assert answer.status_code == 400, answer.text
    predict_by(site)(rows(1))
    site.until_counted(1)


def test_a_row_without_a_number_spoils_no_other(site: Site) -> None:
    check_a_row_without_a_number_spoils_no_other(site, predict_by(site))


def test_predictions_go_on_without_a_watch_and_are_counted_later(site: Site) -> None:
    check_the_watch_may_be_away(site, predict_by(site))


def test_a_killed_worker_loses_no_more_than_it_had_not_sent(site: Site) -> None:
    check_a_killed_worker_loses_no_more_than_it_had_not_sent(site, predict_by(site), workers)


@pytest.mark.last
def test_what_was_served_before_the_end_is_counted(site: Site) -> None:
    """The last of these tests: it ends the server of all."""
    check_what_was_served_is_counted_at_the_end(site, predict_by(site), signal.SIGTERM)


def in_python(folder: Path, program: str, **environ: str) -> str:
    """What ``program`` prints, run in ``folder`` with MLflow; an AssertionError shows why it failed."""
    command = [str(server_python("mlflow")), "-c", program]
    done = subprocess.run(
        command,
        cwd=folder,
        env=server_environ("mlflow", **environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


PROGRAM = """
import json, shutil
from pathlib import Path

import mlflow
import numpy as np
from sklearn.linear_model import LogisticRegression

import calib_serve.mlflow as calibrations
from calib_serve.artifact import Artifact, Head, LogitMap
from calib_serve.errors import ArtifactError, ConflictError, InputError

told = {}


def said(call, *args, **options):
    try:
        call(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def estimate(value):
    return {"value": value, "low": value, "high": value}


rng = np.random.default_rng(0)
x = rng.normal(size=(400, 4))
y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 1)
model = LogisticRegression().fit(x, y)
facts = {"classes": 3, "class_names": ("ant", "bee", "cat"), "model": {"outputs": "probabilities"}}
artifact = Artifact(
    (LogitMap.temperature(2.0),),
    method="temperature",
    before={"ece": estimate(0.2), "nll": estimate(float("nan"))},
    after={"ece": estimate(0.1)},
    **facts,
)
other = Artifact((LogitMap.temperature(3.0),), method="temperature", **facts)
head = Artifact((Head((np.zeros((3, 4)),), (np.zeros(3),)),), method="tuned-head", **facts)
Path("report.html").write_text("<p>")

told["no run"] = said(calibrations.log, artifact)
with mlflow.start_run() as run:
    uri = calibrations.log(artifact, "report.html")
    told["again"] = said(calibrations.log, artifact)
    told["another"] = said(calibrations.log, other)
    told["no report"] = said(calibrations.log, artifact, "nothing.html")
    told["name"] = said(calibrations.log, artifact, name="../up")
    second = calibrations.log(other, name="other")
    proba = mlflow.sklearn.log_model(model, name="p", pyfunc_predict_fn="predict_proba", input_example=x[:2])
    ids = mlflow.sklearn.log_model(model, name="ids", input_example=x[:2])
    how = {"model": "insects", "version": "2"}
    logged = calibrations.log_calibrated(proba.model_uri, artifact, name="calibrated", **how)
    told["ids"] = said(calibrations.log_calibrated, ids.model_uri, artifact, **how)
    told["head"] = said(calibrations.log_calibrated, proba.model_uri, head, **how)
    told["logits"] = said(calibrations.log_calibrated, proba.model_uri, artifact, outputs="logits", **how)
    told["nobody's"] = said(calibrations.log_calibrated, "runs:/0/none", artifact, **how)
told["other run"] = said(calibrations.log, artifact, run_id="0" * 32)

data = mlflow.get_run(run.info.run_id).data
told["params"], told["metrics"] = data.params, data.metrics
told["uri"] = uri == f"runs:/{run.info.run_id}/calibration"
told["same"] = calibrations.load(uri).fingerprint == artifact.fingerprint
told["second"] = calibrations.load(second).fingerprint == other.fingerprint
told["report"] = [f.path for f in mlflow.MlflowClient().list_artifacts(run.info.run_id, "calibration.report")]
told["gone"] = said(calibrations.load, f"runs:/{run.info.run_id}/nothing")

served = mlflow.pyfunc.load_model(logged.model_uri)
rows = served.predict(x[:5])
expected = artifact.probs(np.log(model.predict_proba(x[:5])))
told["far"] = float(np.abs(np.array([row["probabilities"] for row in rows]) - expected).max())
told["rows"] = [sorted(row) for row in rows]
told["labels"] = [row["label"] for row in rows] == [artifact.class_names[k] for k in expected.argmax(1)]
kept = Path(mlflow.artifacts.download_artifacts(logged.model_uri))
told["pickles"] = [str(p.relative_to(kept)) for p in kept.rglob("*.pkl")]
told["requirements"] = (kept / "requirements.txt").read_text()

# What others put in its place is refused.
folder = Path(run.info.artifact_uri.removeprefix("file://")) / "calibration"
assert (folder / "manifest.yaml").is_file(), folder
shutil.rmtree(folder)
other.save(folder)
told["replaced"] = said(calibrations.load, uri)
params = folder / "params.safetensors"
params.write_bytes(params.read_bytes()[:-1] + b"x")
told["damaged"] = said(calibrations.load, uri)
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs")
    found: dict[str, Any] = json.loads(in_python(folder, PROGRAM).splitlines()[-1])
    return found


def test_a_classifier_of_scikit_learn_is_registered_with_its_calibration(tmp_path: Path) -> None:
    program = (EXAMPLES / "mlflow" / "from_scikit_learn.py").read_text()
    ask = """
import json
from calib_serve.scores import to_logits
served = mlflow.pyfunc.load_model("models:/digits/1")
rows = served.predict(x_held[:50])
plain = model.predict_proba(x_held[:50])
expected = artifact.probs(to_logits(plain, "probabilities"))
far = np.abs(np.array([row["probabilities"] for row in rows]) - expected).max()
print(json.dumps([far, [row["predicted"] for row in rows], expected.argmax(1).tolist()]))
"""
    shown = in_python(tmp_path, f"{program}\nimport numpy as np\n{ask}").splitlines()
    far, predicted, expected = json.loads(shown[-1])
    assert far < 1e-9
    assert predicted == expected
    assert "10 classes" in shown[-2]


def test_a_run_holds_the_artifact_its_report_and_what_it_changed(told: dict[str, Any]) -> None:
    assert told["uri"]
    assert told["same"]
    assert told["second"]
    assert told["report"] == ["calibration.report/report.html"]
    # A metric that is not a number is left out.
    assert told["metrics"] == {"calibration.before.ece": 0.2, "calibration.after.ece": 0.1}
    assert told["params"]["calibration.method"] == "temperature"
    assert told["params"]["calibration.temperature"] == "2.0"
    assert told["params"]["other.temperature"] == "3.0"
    assert len(told["params"]["calibration.fingerprint"]) == 64
    assert told["again"] == "nothing"


def test_a_logged_model_returns_calibrated_predictions_by_name(told: dict[str, Any]) -> None:
    assert told["far"] < 1e-12
    assert told["rows"] == [["confidence", "label", "predicted", "probabilities"]] * 5
    assert told["labels"]
    # scikit-learn's own file alone is one.
    assert all(name.startswith("artifacts/") for name in told["pickles"])
    assert "scikit-learn" in told["requirements"]
    assert "calib-serve[mlflow]==" in told["requirements"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no run", "InputError: no run is active"),
        ("another", "ConflictError: the run"),
        ("no report", "InputError: there is no report"),
        ("name", "InputError: the name '../up'"),
        ("other run", "InputError: MLflow cannot log the calibration"),
        ("gone", "InputError: MLflow cannot fetch"),
        ("ids", "InputError: the model predicts int64"),
        ("head", "InputError: the calibration changes the model itself"),
        ("logits", "InputError: the model predicts probabilities, by their numbers"),
        ("nobody's", "InputError: MLflow cannot log a model around"),
        ("replaced", "IntegrityError: runs:/"),
        ("damaged", "IntegrityError"),
    ],
)
def test_what_cannot_be_is_refused(told: dict[str, Any], what: str, words: str) -> None:
    assert told[what].startswith(words), told[what]
