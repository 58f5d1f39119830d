"""An archive with a new calibration is the old one in all else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from live_server import exported

from calib_serve.artifact import Artifact, Head, InputShift, LogitMap, Step
from calib_serve.core.errors import FuseError
from calib_serve.torchserve import artifact_of, pack, pack_feedback
from calib_serve.torchserve.archive._archive import read_archive, write_archive
from calib_serve.torchserve.archive._packing import recalibrated, served_artifact


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """An archive with options of its own."""
    exported(tmp_path / "net.pt2", torch.nn.Linear(4, 3), 4)
    return pack(
        tmp_path / "net.pt2",
        Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3),
        tmp_path / "store",
        name="pets",
        input_shape=(4,),
        workers=3,
        batch_size=16,
        abstain_below=0.4,
        unproven=True,
    )


def sharper(served: Path, *steps: Step) -> Artifact:
    return replace(artifact_of(read_archive(served)), steps=(*steps, LogitMap.temperature(3.0)))


def test_only_the_calibration_and_the_version_differ(served: Path, tmp_path: Path) -> None:
    new = recalibrated(served, sharper(served), tmp_path / "new", version="1.1")
    before, after = read_archive(served), read_archive(new)
    assert (after.name, after.version) == ("pets", "1.1")
    assert after.config == before.config
    changed = {name for name in after.files if after.read(name) != before.read(name)}
    assert changed == {
        "MAR-INF/MANIFEST.json",
        "MAR-INF/SHA256.json",
        "artifact/manifest.yaml",
        "artifact/params.safetensors",
    }
    assert {k: v for k, v in after.model.items() if k != "modelVersion"} == {
        k: v for k, v in before.model.items() if k != "modelVersion"
    }
    artifact, name, version = served_artifact(new)
    assert (name, version) == ("pets", "1.1")
    assert artifact.steps[0].weight == pytest.approx(1 / 3)


def test_what_is_part_of_the_served_model_cannot_change(served: Path, tmp_path: Path) -> None:
    for step in (InputShift(np.ones(4)), Head((np.eye(3, 4),), (np.zeros(3),))):
        with pytest.raises(FuseError, match="more than the output"):
            recalibrated(served, sharper(served, step), tmp_path, version="2")
    other = replace(sharper(served), model={"sha256": "0" * 64})
    with pytest.raises(FuseError, match="more than the output"):
        recalibrated(served, other, tmp_path, version="2")


def test_a_version_is_not_served_under_two_calibrations(served: Path, tmp_path: Path) -> None:
    with pytest.raises(FuseError, match=r"version 1\.0 already"):
        recalibrated(served, sharper(served), tmp_path, version="1.0")


def test_an_archive_without_a_calibration_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(FuseError, match="pack --from"):
        served_artifact(pack_feedback(tmp_path))


@pytest.mark.parametrize("config", ["calib_serve: 3\n", "calib_serve: [kind]\n", "calib_serve:\n", "{}\n"])
def test_an_archive_of_another_s_making_is_not_calibrated(tmp_path: Path, config: str) -> None:
    path = write_archive(
        tmp_path / "other.mar", {"model-config.yaml": config.encode()}, name="other", version="1"
    )
    with pytest.raises(FuseError, match="not calibrated"):
        served_artifact(path)
