"""Numbers at the end of floats, names that are no names: an error of ours or an answer, nothing half made."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import invoke
from sizes import sized

from calib_serve import Artifact
from calib_serve.artifact import InputShift, LogitMap, Mixture
from calib_serve.artifact.manifest import digest
from calib_serve.core.errors import ArtifactError, InputError, SchemaError
from calib_serve.core.files import sha256
from calib_serve.scores import log_softmax, softmax

HUGE = 1.7e308
NUMBERS = (HUGE, -HUGE, np.inf, np.nan)


def refused(*arguments: str) -> str:
    """What a command says that is used wrongly; an error of no tree of ours comes through."""
    done = invoke(list(arguments))
    assert done.exit_code == 2, (arguments, done)
    return done.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Artifact((LogitMap.temperature(0.5),), method="temperature", classes=3).save(tmp_path / "sharp")
    return tmp_path


def scores(**more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(60, 3))
    return {"logits": z, "labels": rng.integers(0, 3, 60), **more}


@pytest.mark.parametrize(
    ("huge", "ending"), sized([(HUGE, "npz"), (np.nan, "csv")], [*product(NUMBERS, ("npz", "csv"))])
)
def test_logits_at_the_end_of_floats_are_said_by_every_command(
    folder: Path, huge: float, ending: str
) -> None:
    held = scores()
    held["logits"][5, 0], held["logits"][7, 1] = huge, -huge
    file = f"z.{ending}"
    if ending == "npz":
        np.savez(file, **held)
    else:
        table = np.column_stack([held["logits"], held["labels"]])
        np.savetxt(file, table, delimiter=",", header="a,b,c,label", comments="")
    splits = {f"{split}_{name}": value for split in ("cal", "test") for name, value in held.items()}
    np.savez("splits.npz", **splits)
    for command in (
        ("compare", "splits.npz", "--methods", "temperature"),
        ("evaluate", file),
        ("evaluate", file, "--artifact", "sharp"),
        ("fit", file, "--method", "temperature", "-o", "made"),
        ("fit", file, "--method", "histogram", "-o", "made"),
        ("evaluate", file, "--artifact", "sharp", "--report", "r.html"),
        ("export", "probabilities", "sharp", file, "-o", "p.npz"),
        ("decide", "sharp", file, "--coverage", "0.9", "-o", "made"),
    ):
        assert refused(*command)
    assert not {"made", "r.html", "p.npz"} & {path.name for path in folder.iterdir()}


def test_the_largest_floats_have_a_softmax() -> None:
    assert softmax([[HUGE, -HUGE, 0.0]]).tolist() == [[1.0, 0.0, 0.0]]
    assert log_softmax([[HUGE, -HUGE]])[0, 0] == 0
    found = Artifact((LogitMap.temperature(0.5),), method="t", classes=2).of_logits([[0, 1], [HUGE, 0]])
    assert found[0].tolist() == softmax([[0, 2]])[0].tolist()
    assert np.isnan(found[1]).all()


NAMES = ["a\x00b", "to the\rbegin", "\x1b[31mred", "x" * 10**6, "next\x85line", "line\u2028end", "\udc80"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_that_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="a name has no control"):
        Artifact((LogitMap.temperature(2.0),), method="t", classes=2, class_names=("a", name))


@pytest.mark.parametrize("name", [NAMES[0], NAMES[3]], ids=["nul", "long"])
def test_so_is_one_of_a_file(folder: Path, name: str) -> None:
    np.savez("z.npz", **scores(class_names=np.array(["a", name, "c"])))
    for command in (
        ("fit", "z.npz", "--method", "temperature", "-o", "made"),
        ("evaluate", "z.npz"),
        ("evaluate", "z.npz", "--report", "made.html"),
    ):
        assert len(refused(*command)) < 500
    assert not {"made", "made.html"} & {path.name for path in folder.iterdir()}


def test_an_artifact_that_could_not_be_read_again_is_not_written(folder: Path) -> None:
    long, many = [f"{k} {'x' * 900}" for k in range(1200)], [f"{k}" for k in range(120_000)]
    for names in sized([long], [long, many]):
        artifact = Artifact((LogitMap.temperature(2.0),), method="t", classes=len(names), class_names=names)
        with pytest.raises(ArtifactError, match="manifest"):
            artifact.save(folder / "a")
        assert not (folder / "a").exists()


def rehashed(folder: Path, **changes: Any) -> Path:
    """The artifact with other values in its manifest, under right hashes."""
    path = folder / "sharp" / "manifest.yaml"
    content = {**yaml.safe_load(path.read_text()), **changes}
    content.pop("sha256")
    path.write_text(yaml.safe_dump({**content, "sha256": digest(content)}, sort_keys=False))
    return folder / "sharp"


@pytest.mark.parametrize("weight", [1e308, 1e39, 1e-320, 1e-40])
def test_a_weight_that_float32_does_not_hold_is_refused(folder: Path, weight: float) -> None:
    params = folder / "sharp" / "params.safetensors"
    sound = params.read_bytes()
    params.write_bytes(sound.replace(np.float64(2.0).tobytes(), np.float64(weight).tobytes()))
    with pytest.raises(SchemaError, match="float32"):
        Artifact.load(rehashed(folder, params_sha256=sha256(params.read_bytes())))


def test_so_is_every_other_number_that_is_served() -> None:
    for make in (
        lambda: LogitMap(np.array([1e39, 1.0])),
        lambda: LogitMap(np.array(1.0), bias=np.array([1e39, 0.0])),
        lambda: Mixture(scales=[1e39], weights=[0.5, 0.5]),
        lambda: InputShift(np.array([1e39])),
        lambda: InputShift(np.array([1.0]), low=1e300, high=2e300),
    ):
        with pytest.raises(InputError, match=r"float32|finite"):
            make()
