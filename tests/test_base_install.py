"""The base install alone: all of calibration that needs no model file, without one optional package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from real_servers import SharedWatch

from calib_serve.core.errors import EXTRA_OF

pytestmark = pytest.mark.server

PROGRAM = """
import sys
from importlib.machinery import PathFinder

_, folder, *absent = sys.argv
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.partition(".")[0] in absent else find(name, *where)

from calib_serve import *
import calib_serve
from calib_serve.artifact import Artifact
from calib_serve.fit import CANDIDATES, TWO_CLASSES
from calib_serve.fit.labels import LABEL_METHODS
from calib_serve.papers import validation_size
import numpy as np

for name, extra in {"fuse_onnx": "onnx", "load_model": "torch", "Server": "torchserve", "create_app": "watch",
                    "Watch": "watch", "write_report": "report"}.items():
    assert name not in globals()
    try:
        getattr(calib_serve, name)
    except ImportError as error:
        assert f"'calib-serve[{extra}]'" in str(error), error
    else:
        raise AssertionError(name)

rng = np.random.default_rng(0)
y = rng.integers(0, 3, 300)
z = 4 * (rng.normal(size=(300, 3)) + np.eye(3)[y])
p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
assert evaluate(p, y).ece.value > 0.05
assert judge(p, y).level == "off"

def kept(artifact, scores):
    again = Artifact.load(artifact.save(f"{folder}/{len(list(saved))}"))
    saved.append(artifact)
    assert (again.probs(scores) == artifact.probs(scores)).all()
    return again

saved = []
how = {"cross_validate": False, "outputs": "logits"}
found = {name: kept(calibrate(z, y, name, **how), z) for name in ("auto", *CANDIDATES)}
two = {name: kept(calibrate(z[:, :2], y > 0, name, **how), z[:, :2]) for name in TWO_CLASSES}
assert evaluate(found["auto"].probs(z), y).nll.value < evaluate(p, y).nll.value
for name in ("auto", *LABEL_METHODS):
    kept(calibrate(z, np.eye(3, dtype=int)[y], name, outputs="label_logits", cross_validate=False), z)
half = calibrate(z[::2], y[::2], "temperature", **how)
decided = kept(decide(half, z[1::2], y[1::2], coverage=0.8, risk=0.5), z)
assert decided.sets and decided.abstain, decided
estimate_prior(found["temperature"], z)
kept(with_prior(found["temperature"], [0.2, 0.3, 0.5]), z)
assert all(one.metrics for one in compare_methods((z, y), (z, y), ["none", "isotonic"], outputs="logits"))
assert validation_size((z, y), (z, y), sizes=[100], repeats=2).rows
print("the whole of it")
"""


DOCTOR = """
import sys
from importlib.machinery import PathFinder

_, *absent = sys.argv
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.partition(".")[0] in absent else find(name, *where)

from calib_serve.app import COMMANDS, run

for extras in ([], ["--for", "torchserve"], ["--for", "watch"]):
    assert run(["doctor", *extras]) in (0, 1), extras
for name in (name for names in COMMANDS.values() for name in names):
    assert run([name, "--help"]) == 0, name
"""


def test_the_doctor_and_every_help_run_with_no_optional_package_at_all() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DOCTOR, *sorted({*EXTRA_OF, "google"})],
        check=False,
        capture_output=True,
        text=True,
    )
    assert not ran.returncode, ran.stderr
    assert "ok     python" in ran.stdout


POSTS = """
import sys
from importlib.machinery import PathFinder

_, keyring, url, model, *absent = sys.argv
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.partition(".")[0] in absent else find(name, *where)

from calib_serve import Reporter

try:
    Reporter(3, model=model, version="1", keyring=keyring)
except ImportError as error:
    assert "'calib-serve[watch]'" in str(error), error
else:
    raise AssertionError("its counters would be the only ones")
with Reporter(3, model=model, version="1", keyring=keyring, watch=url) as reporter:
    receipt, none = reporter.served([[0.7, 0.2, 0.1], [float("nan")] * 3])
    assert none is None
    assert reporter.flush() == 0
    assert reporter.label(receipt, 0).accepted
assert "sqlalchemy" not in sys.modules
"""


def test_a_reporter_that_posts_needs_no_extra_and_logs_what_it_would_count(shared_watch: SharedWatch) -> None:
    model = shared_watch.model()
    where = [str(shared_watch.folder / "keys.json"), shared_watch.url, model]
    ran = subprocess.run(
        [sys.executable, "-c", POSTS, *where, *sorted({*EXTRA_OF, "google"})],
        check=False,
        capture_output=True,
        text=True,
    )
    assert not ran.returncode, ran.stderr
    assert f"calib_invalid_outputs_total of {model}, 1: 1" in ran.stderr
    assert shared_watch.total(model) == 1
    assert shared_watch.total(model, "calib_feedback_total") == 1


def test_the_base_install_measures_judges_fits_by_every_method_saves_and_applies(tmp_path: Path) -> None:
    absent = {*EXTRA_OF, "pandas", "polars", "torchvision", "google", "psutil", "IPython"}
    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path, *sorted(absent)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert told.stdout == "the whole of it\n", told.stderr
