"""``fit``, ``evaluate`` and ``inspect`` of an archive that somebody else packed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke
from foreign_handlers import FOREIGN, Foreign, archive, weights
from live_server import CLASSES, inputs

pytestmark = pytest.mark.server

N = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """plain.mar, and requests with labels in two splits."""
    import torch

    folder = tmp_path_factory.mktemp("served")
    archive("plain", folder)
    x, rng = inputs(2 * N), np.random.default_rng(0)
    with torch.inference_mode():
        z = weights()(torch.from_numpy(x)).numpy()
    y = np.where(rng.random(2 * N) < 0.6, z.argmax(1), rng.integers(0, CLASSES, 2 * N))
    for name, rows in {"inputs": x, "logits": z}.items():
        parts = {f"cal_{name}": rows[:N], f"test_{name}": rows[N:], "cal_labels": y[:N], "test_labels": y[N:]}
        np.savez(folder / f"{name}.npz", **parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def run(*arguments: object) -> str:
    done = invoke([str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(says: str, *arguments: object) -> None:
    done = invoke([str(a) for a in arguments])
    assert done.exit_code in (2, 3)
    assert re.search(says, done.stderr), done.stderr


@pytest.mark.nightly
def test_a_fit_on_the_archive_is_the_fit_on_its_logits(folder: Path) -> None:
    fit = ("--method", "temperature", "--split", "cal", "--test-split", "test", "--json")
    ours = json.loads(run("fit", "--from", "plain.mar", "--data", "inputs.npz", *fit, "-o", "fitted"))
    theirs = json.loads(run("fit", "--data", "logits.npz", *fit, "-o", "direct"))
    assert ours["fit"]["temperature"] == pytest.approx(theirs["fit"]["temperature"], rel=1e-5)
    assert ours["after"]["nll"]["value"] == pytest.approx(theirs["after"]["nll"]["value"], rel=1e-5)
    run("pack", "--from", "plain.mar", "--artifact", "fitted", "-o", "store")
    (packed,) = Path("store").glob("*.mar")
    how = ("--split", "test", "--json")
    on = ("--data", "inputs.npz", *how)
    with_it = json.loads(run("evaluate", "--from", "plain.mar", "--artifact", "fitted", *on))
    served = json.loads(run("evaluate", "--from", packed, *on))
    direct = json.loads(run("evaluate", "logits.npz", "--artifact", "direct", *how))
    for name in ("nll", "ece", "accuracy"):
        values = [told[name]["value"] for told in (with_it, served, direct)]
        assert values == pytest.approx([values[2]] * 3, rel=1e-4)


def test_inspect_alone_runs_no_code_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harm = tmp_path / "harm"
    monkeypatch.setitem(FOREIGN, "bad", Foreign(f"open({str(harm)!r}, 'w')\n"))
    source = archive("bad", tmp_path)
    refused(r"holds no calibration; to run its handler .* inspect --from", "inspect", source)
    assert not harm.exists()
    refused("must define a function handle, or one class", "inspect", "--from", source, "--probe", source)
    assert harm.exists()


FIT = ("fit", "-o", "out")
CLASHES = [
    ((*FIT, "--from", "x.mar"), "fit needs --data"),
    ((*FIT, "d", "--from", "x.mar", "--model", "m.onnx"), "--from names an archive, and there is a model"),
    ((*FIT, "d", "--from", "x.mar", "--train-split", "t"), "--train-split is for the masked head"),
    ((*FIT, "d", "--from", "x.mar", "--columns", "a,b"), "--columns is for a file of scores"),
    ((*FIT, "d", "--seam", "model"), "--seam is a place in the handler of an archive, and none is given"),
    ((*FIT, "d", "--weights", "w"), "--weights are those of a model"),
]


@pytest.mark.parametrize(
    ("arguments", "told"), CLASHES, ids=lambda v: " ".join(v) if type(v) is tuple else ""
)
def test_options_that_do_not_go_together_are_refused(
    arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(told, *arguments)
