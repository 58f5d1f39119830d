"""What is read first says the verdict in few words."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

MOST = 60


def words(text: str) -> list[str]:
    return [word for word in text.split() if re.search("[a-z]", word, re.IGNORECASE)]


@pytest.fixture(params=[2, 10])
def scores(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    rng, classes = np.random.default_rng(3), request.param
    parts: dict[str, np.ndarray] = {}
    for part in ("cal", "test"):
        z = 2 * rng.standard_normal((2000, classes))
        labels = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        parts |= {f"{part}_logits": 3 * z, f"{part}_labels": labels}
    np.savez(tmp_path / "scores.npz", **parts)
    return tmp_path / "scores.npz"


def test_fit_and_evaluate_say_it_in_sixty_words(scores: Path, tmp_path: Path) -> None:
    run = invoke
    fit = run(["fit", "--data", str(scores), "--split", "cal", "-o", str(tmp_path / "a")])
    evaluate = run(["evaluate", str(scores), "--split", "test"])
    assert (fit.exit_code, evaluate.exit_code) == (0, 0)
    told, commands = fit.stdout.split("next: ")
    assert told.startswith("ECE ")
    assert "chance alone shows" in told
    assert commands.startswith("calib-serve report ")
    assert evaluate.stdout.startswith("Not calibrated: ")
    for screen in (told.replace(str(tmp_path), ""), evaluate.stdout):
        assert len(words(screen)) <= MOST
    for more in (["fit", "--data", str(scores), "--split", "cal", "-o", str(tmp_path / "b"), "--verbose"],
                 ["evaluate", str(scores), "--split", "test", "--verbose"]):  # fmt: skip
        assert len(words(run(more).stdout)) > 2 * MOST
