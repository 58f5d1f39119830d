"""Two models on the same samples: paired by name or order, told apart, or refused."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke
from numpy.typing import NDArray

from calib_serve import Scores, compare
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.metrics import paired_changes
from calib_serve.report import write_page
from calib_serve.scores import softmax

NAMES = ("ant", "bee", "cat")


def models(n: int = 900, seed: int = 3) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Probabilities of a good model and of a noisier one, and labels."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3))
    labels = np.array([rng.choice(3, p=p) for p in softmax(z)])
    return softmax(z), softmax(z + 1.5 * rng.standard_normal((n, 3))), labels


def write(path: Path, probs: NDArray[np.float64], labels: Sequence[int], ids: Sequence[int] | None) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*([] if ids is None else ["id"]), *(f"prob_{name}" for name in NAMES), "label"])
        for i, (row, label) in enumerate(zip(probs.tolist(), labels, strict=True)):
            rows.writerow([*([] if ids is None else [f"s{ids[i]}"]), *row, NAMES[label]])
    return path


def test_rows_in_another_order_are_paired_by_their_names(tmp_path: Path) -> None:
    p, q, y = models()
    order = np.random.default_rng(0).permutation(len(y))
    one = write(tmp_path / "a.csv", p, y, range(len(y)))
    other = write(tmp_path / "b.csv", q[order], y[order], order.tolist())
    found = compare(one, other, replicates=0)
    wanted = paired_changes(p, q, y, replicates=0)
    for name in ("accuracy", "nll", "brier"):
        assert found.changes[name].p == pytest.approx(wanted[name].p, rel=1e-9)
        assert found.changes[name].difference.value == pytest.approx(wanted[name].difference.value, abs=1e-12)
    assert found.verdict.gain.startswith("a is better than b")


def test_the_better_model_is_the_better_one_whichever_comes_first() -> None:
    p, q, y = models()
    for given, names in (((p, q), ("good", "noisy")), ((q, p), ("noisy", "good"))):
        found = compare(*((scores, y) for scores in given), names=names, replicates=0)
        assert found.verdict.gain.startswith("good is better than noisy")
    same = compare((p, y), (p, y), names=("x", "y"), replicates=0)
    assert same.verdict.gain.startswith("No clear difference")


def test_what_are_not_the_same_samples_is_refused(tmp_path: Path) -> None:
    p, q, y = models()
    with pytest.raises(InputError, match=r"labels of .* differ"):
        compare((p, y), (q, np.roll(y, 1)))
    with pytest.raises(ShapeError, match=r"900 of 3, .* 899 of 3"):
        compare((p, y), (q[:-1], y[:-1]))
    one = write(tmp_path / "a.csv", p, y, range(len(y)))
    other = write(tmp_path / "b.csv", q, y, range(1, len(y) + 1))
    with pytest.raises(InputError, match="899 samples are in both"):
        compare(one, other)
    twice = Scores.of(p[[1, 0, 0]], y[[1, 0, 0]], outputs="probabilities", ids=["b", "a", "a"])
    with pytest.raises(InputError, match="one id are several rows"):
        compare(Scores.of(p[[0, 0, 1]], y[[0, 0, 1]], outputs="probabilities", ids=["a", "a", "b"]), twice)
    two = Scores.of(p, y, outputs="probabilities", class_names=("x", "y", "z"))
    with pytest.raises(InputError, match="not in both"):
        compare(Scores.of(p, y, outputs="probabilities", class_names=NAMES), two)


def test_columns_in_another_order_are_put_right_by_their_names() -> None:
    p, q, y = models()
    one = Scores.of(p, y, outputs="probabilities", class_names=NAMES)
    turned = Scores.of(q[:, ::-1], 2 - y, outputs="probabilities", class_names=NAMES[::-1])
    found = compare(one, turned, replicates=0).changes["nll"].difference.value
    assert found == pytest.approx(paired_changes(p, q, y, replicates=0)["nll"].difference.value, abs=1e-12)


def test_sorted_labels_without_names_are_no_proof_and_it_says_so() -> None:
    p, q, y = models()
    order = np.argsort(y)
    assert "do not prove" in " ".join(
        compare((p[order], y[order]), (q[order], y[order]), replicates=0).verdict.changed
    )
    assert "do not prove" not in " ".join(compare((p, y), (q, y), replicates=0).verdict.changed)


def test_a_class_that_one_model_excludes_leaves_the_brier_score_to_judge_by() -> None:
    p, q, y = models()
    q = q.copy()
    q[0] = np.eye(3)[(y[0] + 1) % 3]
    assert "Brier score" in compare((p, y), (q, y), replicates=0).verdict.gain


def test_the_report_speaks_of_models_and_not_of_a_calibration(tmp_path: Path) -> None:
    p, q, y = models(300)
    page = write_page(tmp_path / "r.html", compare((p, y), (q, y), names=("<tree>", "net"), replicates=0))
    text = page.read_text("utf-8")
    assert "&lt;tree&gt; is better than net" in text
    assert "<tree>" not in text
    for words in ("Do not deploy", "Deploy it", "Classes changed", "What changed"):
        assert words not in text


def test_the_command_compares_two_files_in_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    p, q, y = models(400)
    files = [
        write(tmp_path / f"{name}.csv", scores, y, None) for name, scores in (("old-tree", p), ("net", q))
    ]
    page = tmp_path / "r.html"
    done = invoke(["compare", *map(str, files), "-o", str(page)])
    assert done.exit_code == 0, done.output
    assert "old-tree is better than net" in done.stdout
    table = done.stdout[done.stdout.index("metric") : done.stdout.index("written to")]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    assert page.is_file()
    for words, option in (
        (["--methods", "none"], "--methods"),
        (["-o", "t.csv"], "-o"),
        (["--fit-split", "x"], "--fit-split"),
    ):
        refused = invoke(["compare", *map(str, files), *words])
        assert refused.exit_code == 2
        assert option in refused.stderr


def test_files_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    p, q, y = models(300)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    one = write(tmp_path / "old" / "scores.csv", p, y, None)
    other = write(tmp_path / "new" / "scores.csv", q, y, None)
    sides = compare(one, other, replicates=0).sides
    assert [side.name for side in sides] == ["old/scores.csv", "new/scores.csv"]


def test_equal_models_are_rarely_told_apart() -> None:
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(100):
        z = 2 * rng.standard_normal((400, 3))
        y = np.array([rng.choice(3, p=p) for p in softmax(z)])
        one, other = (softmax(z + rng.standard_normal(z.shape)) for _ in range(2))
        told += not compare((one, y), (other, y), replicates=0).verdict.gain.startswith("No clear")
    assert told <= 11
