"""MLflow with calibrated confidences: what real runs hold, and what is refused; see ``test_others``."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from example_servers import EXAMPLES
from server_environments import server_environ, server_python

pytestmark = [pytest.mark.server, pytest.mark.nightly]


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
import json
from pathlib import Path

import mlflow
import numpy as np
from sklearn.linear_model import LogisticRegression

import calib_serve.integrations.mlflow as calibrations
from calib_serve.artifact import Artifact, Head, LogitMap

told = {}


def said(call, *args, **options):
    try:
        call(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


rng = np.random.default_rng(0)
x = rng.normal(size=(400, 4))
y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 1)
model = LogisticRegression().fit(x, y)
facts = {"classes": 3, "class_names": ("ant", "bee", "cat"), "model": {"outputs": "probabilities"}}
artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", **facts)
head = Artifact((Head((np.zeros((3, 4)),), (np.zeros(3),)),), method="masked-head", **facts)
with mlflow.start_run():
    proba = mlflow.sklearn.log_model(model, name="p", pyfunc_predict_fn="predict_proba", input_example=x[:2])
    ids = mlflow.sklearn.log_model(model, name="ids", input_example=x[:2])
    how = {"model": "insects", "version": "2"}
    logged = calibrations.log_calibrated(proba.model_uri, artifact, name="calibrated", **how)
    told["ids"] = said(calibrations.log_calibrated, ids.model_uri, artifact, **how)
    told["head"] = said(calibrations.log_calibrated, proba.model_uri, head, **how)
    told["logits"] = said(calibrations.log_calibrated, proba.model_uri, artifact, outputs="logits", **how)

served = mlflow.pyfunc.load_model(logged.model_uri)
rows = served.predict(x[:5])
expected = artifact.probs(np.log(model.predict_proba(x[:5])))
told["far"] = float(np.abs(np.array([row["probabilities"] for row in rows]) - expected).max())
told["rows"] = [sorted(row) for row in rows]
told["labels"] = [row["label"] for row in rows] == [artifact.class_names[k] for k in expected.argmax(1)]
kept = Path(mlflow.artifacts.download_artifacts(logged.model_uri))
told["pickles"] = [str(p.relative_to(kept)) for p in kept.rglob("*.pkl")]
told["requirements"] = (kept / "requirements.txt").read_text()

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
        ("ids", "InputError: the model predicts int64"),
        ("head", "InputError: the calibration changes the model itself"),
        ("logits", "InputError: the model predicts probabilities, by their numbers"),
    ],
)
def test_what_cannot_be_is_refused(told: dict[str, Any], what: str, words: str) -> None:
    assert told[what].startswith(words), told[what]
