"""Studies and ``refit`` as commands: their numbers are those of numpy and scipy, and their exit codes."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import by_schema, calib_serve, invoke
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.receipts import Label, Receipt
from calib_serve.receipts.samples import SampleLog

Floats = NDArray[np.float64]
Part = tuple[Floats, NDArray[np.int64]]


def draw(n: int, sharp: float, seed: int) -> Part:
    """Logits ``sharp`` times too large, and labels."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3))
    return sharp * z, (z + rng.gumbel(size=z.shape)).argmax(1)


def ece(p: Floats, y: NDArray[np.int64]) -> float:
    c, right = p.max(1), p.argmax(1) == y
    of = np.ceil(c * 15).astype(int) - 1
    return sum(abs((c - right)[of == b].sum()) for b in range(15)) / len(y)


def temperature(z: Floats, y: NDArray[np.int64]) -> float:
    def loss(log_t: float) -> float:
        return -log_softmax(z / np.exp(log_t), axis=1)[np.arange(len(y)), y].mean()

    return float(np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}).x))


def cooled(fit: Part, z: Floats) -> Floats:
    return softmax(z / temperature(*fit), axis=1)


def test_study_size(tmp_path: Path) -> None:
    (z, y), (test, labels) = draw(600, 3, 0), draw(500, 3, 1)
    np.savez(tmp_path / "z.npz", cal_logits=z, cal_labels=y, test_logits=test, test_labels=labels)
    rng, wanted = np.random.default_rng(5), []
    for size, parts in ((30, 3), (300, 3), (600, 1)):
        drawn = [rng.choice(600, size, replace=False) for _ in range(parts)]
        values = [ece(cooled((z[part], y[part]), test), labels) for part in drawn]
        spread = pytest.approx(np.std(values, ddof=1), rel=1e-5) if parts > 1 else None
        wanted.append(["temperature", size, pytest.approx(np.mean(values), rel=1e-5), spread, parts, 0])
    asked = [part for one in ("sizes=30,300", "repeats=3", "seed=5") for part in ("--option", one)]
    done = invoke(["compare", "--study", "size", *asked, str(tmp_path / "z.npz"), "--json"])
    assert [list(row.values()) for row in json.loads(done.stdout)["rows"]] == wanted


def test_a_study_weighs_rows_as_its_options_say(tmp_path: Path) -> None:
    (z, y), counts = draw(400, 3, 0), np.random.default_rng(1).integers(0, 4, 400)
    again = np.repeat(np.arange(400), counts)
    np.savez(tmp_path / "w.npz", cal_logits=z, cal_labels=y, cal_times=counts, test_logits=z, test_labels=y,
             test_times=counts)  # fmt: skip
    np.savez(tmp_path / "r.npz", cal_logits=z[again], cal_labels=y[again], test_logits=z[again],
             test_labels=y[again])  # fmt: skip
    said = by_schema(tmp_path / "w.npz", "--split", "cal", "--sample-weight", "times")
    weighed = invoke(["compare", str(tmp_path / "w.npz"), "--study", "optimum", *said, "--json"])
    repeated = invoke(["compare", str(tmp_path / "r.npz"), "--study", "optimum", "--json"])
    assert json.loads(weighed.stdout)["rows"] == json.loads(repeated.stdout)["rows"]


def test_an_option_that_a_study_does_not_read_is_refused(tmp_path: Path) -> None:
    z, y = draw(60, 3, 0)
    np.savez(tmp_path / "z.npz", cal_logits=z, cal_labels=y, test_logits=z, test_labels=y)
    done = calib_serve("compare", tmp_path / "z.npz", "--study", "optimum", "--option", "seed=1")
    assert done.exit_code == 2
    assert "of optimum are none, not seed" in done.output
    shown = " ".join(calib_serve("compare", "--help").output.replace("│", " ").split())
    said = shown[shown.index("An option of the study") :].split("╰")[0]
    for option in re.findall(r"\w+=\d+(?:,\d+)*", said):
        done = calib_serve("compare", tmp_path / "z.npz", "--study", "size", "--option", option)
        assert done.exit_code == 0, done.output


def test_the_example_of_neural_clamping_has_a_model_with_gradients() -> None:
    lines = calib_serve("fit", "--help").output.splitlines()
    assert "--model model.pt2" in next(line for line in lines if "--method neural-clamping" in line)


def served(folder: Path, z: Floats, y: NDArray[np.int64]) -> None:
    """A folder of samples as a server keeps them."""
    log = SampleLog(folder, rate=1.0)
    names = [i.to_bytes(10, "big") for i in range(len(y))]
    log.predicted("m", "1", names, z, times=time.time() - np.arange(len(y), 0, -1.0))
    log.labelled(
        [Label(Receipt("k", "m", "1", 0.0, n, 0, 0.9), int(k)) for n, k in zip(names, y, strict=True)]
    )
    log.close()


def evidence(z: Floats, y: NDArray[np.int64], t: float) -> float:
    """Every label judged by a temperature fitted to those before it; the evidence of the bets on these."""
    n, starts = len(y), [100]
    while (following := int(np.ceil(starts[-1] * 1.5))) < n:
        starts.append(following)
    old = softmax(z / t, axis=1)
    pays = np.zeros(n)
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        block = slice(start, stop)
        new, at = cooled((z[:start], y[:start]), z[block]), (np.arange(stop - start), y[block])
        pays[block] = np.log((0.98 * new + 0.02 * old[block])[at] / old[block][at])
    worth = [np.exp(pays[start:].sum()) / ((j + 1) * (j + 2)) for j, start in enumerate(starts)]
    return sum(worth) + 1 / (len(starts) + 1)


@pytest.mark.parametrize(("n", "sharp", "code"), [(400, 3, 0), (400, 1, 1), (199, 1, 3)])
def test_refit_ends_with_what_the_evidence_says(n: int, sharp: int, code: int, tmp_path: Path) -> None:
    """With 0 a new one is written, with 1 the current one stays, with 3 nothing can be judged."""
    z, y = draw(n, sharp, 2)
    z = z.astype(np.float16).astype(float)
    Artifact((LogitMap.temperature(1.0),), method="t", classes=3).save(tmp_path / "old")
    served(tmp_path / "log", z, y)
    asked = ("refit", tmp_path / "old", "--samples", tmp_path / "log", "--model", "m:1")
    more = ("--method", "temperature", "-o", tmp_path / "new")
    told = calib_serve(*asked, *more)
    assert told.exit_code == code
    if code < 2:
        assert f"{evidence(z, y, 1.0):.3g}" in told.stdout
        assert (evidence(z, y, 1.0) > 20) == (code == 0)
    else:
        assert (told.stdout, "199" in told.stderr) == ("", True)
    assert (tmp_path / "new").exists() == (code == 0)
    if code == 0:
        found = Artifact.load(tmp_path / "new").fit["temperature"]
        assert found == pytest.approx(temperature(z, y), rel=1e-6)
