"""One way from a file to logits with labels, also of binary models that give one number a sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib_serve.errors import InputError
from calib_serve.metrics import log_softmax, softmax
from calib_serve.scores import Scores

RNG = np.random.default_rng(0)
ONE = 4 * RNG.standard_normal(300)
LABELS = (RNG.random(300) < 1 / (1 + np.exp(-ONE / 2))).astype(int)
TWO = np.stack([np.zeros_like(ONE), ONE], axis=1)


def splits(logits: np.ndarray, name: str = "logits") -> dict[str, np.ndarray]:
    return {
        f"{split}_{what}": values
        for split in ("cal", "test")
        for what, values in ((name, logits), ("labels", LABELS))
    }


@pytest.mark.parametrize("shape", [(300,), (300, 1)])
def test_one_logit_a_sample_is_two_columns(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", **splits(ONE.reshape(shape)))
    found = Scores.read(tmp_path / "one.npz", split="cal")
    assert found.name == "one"
    np.testing.assert_array_equal(found.logits, TWO)
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.labels.dtype == np.intp
    assert len(found) == 300


@pytest.mark.parametrize("shape", [(300,), (300, 1)])
@pytest.mark.parametrize("name", ["probs", "log_probs"])
def test_one_probability_a_sample_is_class_1(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = softmax(TWO) if name == "probs" else log_softmax(TWO)
    np.savez(tmp_path / "p.npz", **splits(values[:, 1].reshape(shape), name))
    found = Scores.read(tmp_path / "p.npz", split="cal")
    np.testing.assert_allclose(softmax(found.logits), softmax(TWO), atol=1e-12)


def test_labels_that_a_table_holds_as_floats_are_class_ids(tmp_path: Path) -> None:
    (tmp_path / "z.csv").write_text("label,score\n0.0,-1.5\n1.0,2.0\n")
    found = Scores.read(tmp_path / "z.csv")
    assert found.labels.tolist() == [0, 1]
    assert found.logits.tolist() == [[0.0, -1.5], [0.0, 2.0]]


def test_what_is_wrong_is_said_with_the_file_and_the_split(tmp_path: Path) -> None:
    path = tmp_path / "z.npz"
    np.savez(path, cal_logits=TWO, logits=TWO, test_logits=TWO, test_labels=LABELS + 1)
    with pytest.raises(InputError, match="have no labels"):
        Scores.read(path, split="cal").labelled()
    with pytest.raises(InputError, match=r"z\.npz: labels must lie in \[0, 2\), got 1 to 2"):
        Scores.read(path, split="test")
    np.savez(path, logits=TWO, labels=LABELS + 0.5)
    with pytest.raises(InputError, match="must be class ids or names"):
        Scores.read(path)
