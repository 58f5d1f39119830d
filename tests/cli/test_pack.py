"""``calib-serve pack`` packs three things; an option of another of them is refused, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from libraries import torchvision_here
from live_server import temperature_artifact, torchscript

from calib_serve.errors import InputError
from calib_serve.fuse.torchserve import read_archive


def call(*arguments: object) -> str:
    done = invoke(["pack", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torchscript(tmp_path / "net.pt")
    temperature_artifact().save(tmp_path / "artifact")
    return tmp_path


MODEL = ("--model", "net.pt", "--artifact", "artifact", "--name", "digits")
AROUND = ("--from", "old.mar", "--artifact", "artifact")
REFUSED = [
    (MODEL, ["--for", "x.mar"]),
    (AROUND, ["--weights", "w.safetensors"]),
    (AROUND, ["--abstain-below", "0.5"]),
    (("--feedback",), ["--from", "old.mar"]),
]


@pytest.mark.parametrize(("what", "option"), REFUSED, ids=" ".join)
def test_an_option_of_another_kind_of_archive_is_refused(
    what: tuple[str, ...], option: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=rf"{option[0]} .*{what[0]}"):
        call(*what, *option, "-o", "store")
    assert not Path("store").exists()


def packed(folder: Path, *options: object) -> dict[str, Any]:
    call(*MODEL, *options, "-o", folder)
    return dict(read_archive(folder / "digits.mar").config["calib_serve"])


def test_how_pictures_are_prepared_is_said_by_options_or_by_the_training_s_transforms(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    torchvision_here()
    shape = ("--input-shape", "3,32,32")
    (folder / "training.py").write_text(
        "from torchvision import transforms as t\n"
        "steps = [t.Resize(40), t.CenterCrop(32), t.ToTensor(), t.Normalize([.1, .2, .3], [.4, .5, .6])]\n"
        "evaluation, training = t.Compose(steps), t.Compose([t.RandomCrop(32), *steps])\n"
    )
    norm = ("--mean", ".1,.2,.3", "--std", ".4,.5,.6")
    read = packed(folder / "a", *shape, "--transforms", "training.py:evaluation")
    assert read == packed(folder / "b", *shape, *norm, "--resize-shorter", 40, "--crop", 32)
    assert read["pictures"] == {
        "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize": 40, "crop": [32, 32], "channels": 3
    }  # fmt: skip
    exact = packed(folder / "c", *shape, *norm, "--image-size", "32,32", "--interpolation", "bicubic")
    assert exact["pictures"]["resize"] == [32, 32]
    assert exact["pictures"]["interpolation"] == "bicubic"
    with pytest.raises(InputError, match=r"RandomCrop.*--handler"):
        packed(folder / "e", *shape, "--transforms", "training.py:training")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--mean", "0"), "give --mean and --std"),
        (("--mean", "0", "--std", "0"), "above 0"),
        (("--mean", "0,0,0", "--std", "1", "--input-shape", "1,32,32"), "the model takes 1"),
        (("--mean", "0", "--std", "1", "--crop", "24"), r"the model takes \(32, 32\)"),
        (("--mean", "0", "--std", "1", "--resize-shorter", "31", "--crop", "32"), "larger"),
        (("--mean", "0", "--std", "1", "--input-shape", "48"), "no picture"),
        (("--transforms", "missing.py:x"), "cannot read transforms"),
    ],
    ids=repr,
)
def test_pictures_that_cannot_be_are_refused_when_packing(
    options: tuple[str, ...], match: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=match):
        packed(folder, *(() if "--input-shape" in options else ("--input-shape", "3,32,32")), *options)
    assert not Path("digits.mar").exists()
