"""Samples that belong together: the report's test and intervals go by groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import by_schema, invoke
from grouped_samples import grouped


def report(folder: Path, *arguments: str) -> dict:
    command = ["evaluate", str(folder / "probs.npz"), "--report", str(folder / "r.html"), "--json"]
    result = invoke([*command, *arguments])
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout)["report"])


def test_the_command_takes_groups_and_is_less_sure_with_them(tmp_path: Path) -> None:
    c, y, groups = grouped(0)
    c = c + 1e-6 * np.random.default_rng(0).random(len(c))  # else they are known as copies
    np.savez(tmp_path / "probs.npz", probs=np.stack([1 - c, c], axis=1), labels=y.astype(int))
    np.save(tmp_path / "groups.npy", np.array([f"patient {one}" for one in groups]))
    alone, together = (
        report(tmp_path),
        report(tmp_path, *by_schema(tmp_path / "probs.npz", "--groups", tmp_path / "groups.npy")),
    )
    wide, wider = (one["sides"][0]["metrics"]["signed_gap"] for one in (alone, together))
    assert wider["value"] == pytest.approx(wide["value"])
    assert wider["high"] - wider["low"] > 2 * (wide["high"] - wide["low"])
    p = [one["verdict"]["tests"][0]["p"] for one in (alone, together)]
    assert p[1] > 0.05 > p[0]
    assert (alone["verdict"]["level"], together["verdict"]["level"]) == ("off", "no_error_found")
