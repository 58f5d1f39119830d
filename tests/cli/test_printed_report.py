"""What ``report`` prints, whole, at each verdict: numbers by numpy where it has them, words written here.

Bounds and intervals, which have tests of their own, stand as ``#``.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax
from sizes import nightly
from typer.testing import CliRunner

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.cli import app, main

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

CALIBRATE = "- Calibrate it on held-out samples of the data that it will meet, then test again."
DEPLOY = "- Deploy it, and watch it with live labels: calibration lasts only as long as its data."


def draw(n: int, sharp: float, seed: int) -> tuple[Floats, Labels]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3))
    return sharp * z, (z + rng.gumbel(size=z.shape)).argmax(1)


Z, Y = draw(600, 3, 1)


def ece(p: Floats) -> float:
    c, right = p.max(1), p.argmax(1) == Y
    of = np.ceil(c * 15).astype(int) - 1
    return sum(abs((c - right)[of == b].sum()) for b in range(15)) / len(Y)


def nll(p: Floats) -> float:
    return -np.log(p[np.arange(len(Y)), Y]).mean()


def accuracy(p: Floats) -> float:
    return (p.argmax(1) == Y).mean()


def auroc(p: Floats) -> float:
    c, right = p.max(1), p.argmax(1) == Y
    more = np.sign(c[right][:, None] - c[~right])
    return (more.mean() + 1) / 2


def gaps(p: Floats, way: str) -> list[str]:
    """A line for each predicted class, of how far its confidence is from its accuracy."""
    found = []
    for k in range(3):
        of = p.argmax(1) == k
        gap = (p.max(1) - (k == Y))[of].mean()
        assert (gap > 0) == (way == "overconfident")
        found.append(f"- Mind that predictions of class “{k}” are {way} by {100 * abs(gap):.1f} points.")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("report")
    np.savez(found / "scores.npz", logits=Z, labels=Y)
    for name, t in (("right", 3.0), ("cold", 12.0), ("hot", 0.75), ("same", 1.0)):
        Artifact((LogitMap.temperature(t),), method="temperature", classes=3).save(found / name)
    return found


def report(folder: Path, *arguments: object, scores: str = "scores.npz") -> list[str]:
    out = folder / "out.html"
    asked = ("report", "--logits", folder / scores, "-o", out, "--replicates", 50, *arguments)
    done = CliRunner().invoke(app, list(map(str, asked)), env={"COLUMNS": "250"})
    assert done.exit_code == 0, done.output
    *lines, last = done.stdout.replace("\xa0", " ").replace("\N{MINUS SIGN}", "-").splitlines()
    assert last == f"written to {out}"
    assert out.read_text().startswith("<!doctype html>")
    return lines


def masked(line: str) -> str:
    """Intervals, chances and bounds as ``#``."""
    line = re.sub(r"change [-+][\d.]+ to [-+][\d.]+", "change # to #", line)
    line = re.sub(r"p (=|<) [\d.]+", "p #", line)
    return re.sub(r"(up to|at most|more than|about) [\d.,]+", r"\1 #", line)


def changed(words: str, old: float, new: float, *, share: bool, chance: bool = False) -> str:
    if old == new:
        return f"- {words} stayed at {100 * new:.2f} %."
    way = "fell" if new < old else "rose"
    shown = [f"{100 * one:.2f} %" if share else f"{one:.4f}" for one in (old, new)]
    moved = f"- {words} {way} from {shown[0]} to {shown[1]}"
    if chance:
        return f"{moved}, which may be chance (p #)."
    return f"{moved} (95 % interval of the change # to #{' points' if share else ''}; p #)."


def story(old: Floats, new: Floats, *, by_chance: tuple[str, ...] = ()) -> list[str]:
    of = (
        ("The calibration error", ece, True),
        ("The negative log-likelihood", nll, False),
        ("Accuracy", accuracy, True),
        ("How well confidence tells right from wrong (AUROC)", auroc, False),
    )
    return [
        changed(words, measure(old), measure(new), share=share, chance=measure.__name__ in by_chance)
        for words, measure, share in of
    ]


RAW, RIGHT, COLD, HOT = (softmax(Z / t, axis=1) for t in (1.0, 3.0, 12.0, 0.75))


def test_an_overconfident_model(folder: Path) -> None:
    headline, *rest = report(folder)
    assert headline == f"Not calibrated: overconfident, on average {100 * ece(RAW):.1f} points off."
    assert sorted(rest) == sorted([*gaps(RAW, "overconfident"), CALIBRATE])
    assert rest[-1] == CALIBRATE


def test_a_calibration_that_is_right_as_far_as_600_samples_tell(folder: Path) -> None:
    headline, *rest = map(masked, report(folder, "--artifact", folder / "right"))
    assert headline == (
        "Too few samples to tell: the predicted class's confidence may be off by up to # points on average."
    )
    assert rest == [
        *story(RAW, RIGHT, by_chance=("auroc",)),
        "- Test on about # samples: as many would prove it of a calibrated model.",
    ]


def test_a_calibration_that_is_too_cold(folder: Path) -> None:
    headline, *rest = report(folder, "--artifact", folder / "cold")
    assert headline == f"Not calibrated: underconfident, on average {100 * ece(COLD):.1f} points off."
    assert [masked(one) for one in rest[:4]] == story(RAW, COLD, by_chance=("nll", "auroc"))
    assert sorted(rest[4:]) == sorted([*gaps(COLD, "underconfident"), CALIBRATE])


def test_a_calibration_that_makes_it_worse_is_not_to_be_deployed(folder: Path) -> None:
    headline, *rest = report(folder, "--artifact", folder / "hot")
    assert headline == f"Not calibrated: overconfident, on average {100 * ece(HOT):.1f} points off."
    assert [masked(one) for one in rest[:4]] == story(RAW, HOT, by_chance=("auroc",))
    assert rest[4] == "- Do not deploy this calibration: the negative log-likelihood rose."
    assert sorted(rest[5:]) == sorted([*gaps(HOT, "overconfident"), CALIBRATE])


@nightly
def test_a_calibration_against_another_one(folder: Path) -> None:
    _, *rest = report(folder, "--artifact", folder / "right", "--against", folder / "cold")
    assert [masked(one) for one in rest[:4]] == story(COLD, RIGHT, by_chance=("auroc",))


@nightly
def test_a_calibration_that_changes_nothing(folder: Path) -> None:
    _, *rest = report(folder, "--artifact", folder / "same")
    assert rest[:4] == [
        f"- The calibration error stayed at {100 * ece(RAW):.2f} %.",
        f"- The negative log-likelihood stayed at {nll(RAW):.4f}.",
        f"- Accuracy stayed at {100 * accuracy(RAW):.2f} %.",
        f"- How well confidence tells right from wrong (AUROC) stayed at {auroc(RAW):.4f}.",
    ]


def test_a_model_that_is_proved_to_be_calibrated(folder: Path) -> None:
    z, y = draw(12_000, 1, 5)
    np.savez(folder / "large.npz", logits=z, labels=y)
    lines = report(folder, scores="large.npz")
    assert [masked(one) for one in lines] == [
        "Calibrated: the predicted class's confidence is off by at most # points on average, no single class "
        "by more than # points.",
        DEPLOY,
    ]
    most = float(re.findall(r"at most ([\d.]+)", lines[0])[0])
    assert most <= 2.0  # the tolerance


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "say what to report on: --logits FILE, or --model MODEL with --data DATA"),
        (("--logits", "none.npz"), "there is no file none.npz"),
        (("--logits", "scores.npz", "--against", "cold"), "--against wants --artifact"),
    ],
)
def test_what_cannot_be_reported_on_writes_no_page_and_ends_with_two(
    arguments: tuple[str, ...],
    why: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["calib-serve", "report", *arguments, "-o", "nothing.html"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert (told.out, told.err.startswith(f"calib-serve: {why}")) == ("", True)
    assert not Path("nothing.html").exists()
