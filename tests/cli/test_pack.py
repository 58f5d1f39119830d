"""``calib-serve pack`` packs three things; an option of another of them is refused, never ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_server import temperature_artifact, torchscript
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.errors import InputError
from calib_serve.fuse.torchserve import read_archive


def call(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["pack", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torchscript(tmp_path / "net.pt")
    temperature_artifact().save(tmp_path / "artifact")
    return tmp_path


MODEL = ("--model", "net.pt", "--artifact", "artifact", "--name", "digits")
AROUND = ("--from", "old.mar", "--artifact", "artifact")
FEEDBACK = ("--feedback",)
REFUSED = [
    *((MODEL, option) for option in (["--for", "x.mar"],)),
    *(
        (AROUND, option)
        for option in (
            ["--weights", "w.safetensors"],
            ["--input-shape", "4"],
            ["--version", "2"],
            ["--handler", "h.py"],
            ["--extra", "x.txt"],
            ["--workers", "4"],
            ["--batch-size", "4"],
            ["--batch-delay", "4"],
            ["--abstain-below", "0.5"],
            ["--for", "x.mar"],
            ["--model", "net.pt"],
        )
    ),
    *(
        (FEEDBACK, option)
        for option in (
            ["--model", "net.pt"],
            ["--artifact", "artifact"],
            ["--from", "old.mar"],
            ["--weights", "w.safetensors"],
            ["--input-shape", "4"],
            ["--handler", "h.py"],
            ["--extra", "x.txt"],
            ["--workers", "4"],
            ["--batch-size", "4"],
            ["--batch-delay", "4"],
            ["--outputs", "logits"],
            ["--abstain-below", "0.5"],
        )
    ),
]


@pytest.mark.parametrize(("what", "option"), REFUSED, ids=" ".join)
def test_an_option_of_another_kind_of_archive_is_refused(
    what: tuple[str, ...], option: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=rf"{option[0]} .*{what[0]}"):
        call(*what, *option, "-o", "store")
    assert not Path("store").exists()


def test_each_of_the_three_takes_its_own_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    own = (
        "--workers",
        3,
        "--batch-size",
        4,
        "--batch-delay",
        6,
        "--outputs",
        "log_probs",
        "--version",
        "1.2",
    )
    call(*MODEL, *own, "--input-shape", "16", "--abstain-below", 0.5, "-o", "store")
    packed = read_archive(Path("store/digits.mar"))
    assert (packed.version, packed.config["minWorkers"], packed.config["batchSize"]) == ("1.2", 3, 4)
    section = packed.config["calib_serve"]
    assert (section["outputs"], section["abstain_below"], section["workers"]) == ("log_probs", 0.5, 3)
    call(*FEEDBACK, "--for", "store/digits.mar", "--name", "labels", "--version", "7", "-o", "store")
    assert read_archive(Path("store/labels.mar")).config["calib_serve"]["models"][0]["name"] == "digits"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--artifact", "artifact"), "--model or --from"),
        (("--model", "net.pt", "--name", "x"), "--artifact"),
        (("--model", "net.pt", "--artifact", "artifact"), "--name"),
        ((*MODEL, "--input-shape", "4,x"), "whole numbers"),
    ],
)
def test_what_is_missing_is_said(
    arguments: tuple[str, ...], match: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=match):
        call(*arguments)
