"""``calib-serve pack`` packs three things; an option of another of them is refused, never ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import calib_serve
from live_server import exported, temperature_artifact

from calib_serve.torchserve import read_archive
from calib_serve.torchserve.archive._archive import write_archive


def call(*arguments: object) -> str:
    done = calib_serve("pack", *arguments)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*arguments: object) -> str:
    done = calib_serve("pack", *arguments)
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    exported(tmp_path / "net.pt2")
    temperature_artifact().save(tmp_path / "artifact")
    return tmp_path


MODEL = ("--model", "net.pt2", "--artifact", "artifact", "--name", "digits", "--unproven")
AROUND = ("--from", "old.mar", "--artifact", "artifact")
REFUSED = [
    (MODEL, ["--for", "x.mar"]),
    (AROUND, ["--input-shape", "3"]),
    (AROUND, ["--pictures", "mean=0"]),
    (AROUND, ["--option", "abstain_below=0.5"]),
    (MODEL, ["--option", "threshhold=0.5"]),
    (MODEL, ["--option", "top=many"]),
    (MODEL, ["--option", "probabilities=few"]),
    (("--feedback",), ["--option", "top=3"]),
    (("--feedback",), ["--option", "arl=many"]),
    (("--feedback",), ["--option", "arl=1"]),
    (("--feedback",), ["--option", "block=0"]),
    (("--feedback",), ["--option", "tolerance=2"]),
    (("--feedback",), ["--option", "ttl_days=-1"]),
    (("--feedback",), ["--option", "maturity=6x"]),
    (("--feedback",), ["--batch-size", "2"]),
    (("--feedback",), ["--from", "old.mar"]),
]


@pytest.mark.parametrize(("what", "option"), REFUSED, ids=" ".join)
def test_an_option_of_another_kind_of_archive_is_refused(
    what: tuple[str, ...], option: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    said = refused(*what, *option, "-o", "store")
    assert option[-1].partition("=")[0] in said or option[0] in said
    assert not list(Path().glob("store/*"))


def pictures(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--pictures", pair)]


def packed(folder: Path, *options: object) -> dict[str, Any]:
    call(*MODEL, *options, "-o", folder)
    return dict(read_archive(folder / "digits.mar").config["calib_serve"])


def test_how_pictures_are_prepared_is_said_by_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shape = ("--input-shape", "3,32,32")
    norm = ("mean=.1,.2,.3", "std=.4,.5,.6")
    read = packed(folder / "b", *shape, *pictures(*norm, "resize_shorter=40", "crop=32"))
    assert read["pictures"] == {
        "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "resize": 40, "crop": [32, 32], "channels": 3
    }  # fmt: skip
    exact = packed(folder / "c", *shape, *pictures(*norm, "image_size=32,32", "interpolation=bicubic"))
    assert exact["pictures"]["resize"] == [32, 32]
    assert exact["pictures"]["interpolation"] == "bicubic"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("mean=0",), "give mean and std"),
        (("mean=0", "std=0"), "above 0"),
        (("mean=0,0,0", "std=1", "1,32,32"), "the model takes 1"),
        (("mean=0", "std=1", "crop=24"), "the model takes (32, 32)"),
        (("mean=0", "std=1", "resize_shorter=31", "crop=32"), "larger"),
        (("mean=0", "std=1", "48"), "no picture"),
    ],
    ids=repr,
)
def test_pictures_that_cannot_be_are_refused_when_packing(
    options: tuple[str, ...], match: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (shape,) = [one for one in options if "=" not in one] or ["3,32,32"]
    given = pictures(*(one for one in options if one != shape))
    assert match in refused(*MODEL, "--input-shape", shape, *given, "-o", folder)
    assert not Path("digits.mar").exists()


@pytest.mark.parametrize(("store", "first"), [(".", ["plain.mar"]), ("other", [])])
def test_the_line_that_serves_names_the_old_archive_where_it_lies_beside(
    store: str, first: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files = {"handler.py": b"def handle(data, context): ...", "net.pt2": folder / "net.pt2"}
    write_archive(folder / "plain.mar", files, name="plain", version="1", handler="handler.py")
    said = call(*AROUND[:1], "plain.mar", *AROUND[2:], "--untried", "--unproven", "-o", store)
    (line,) = [line for line in said.splitlines() if line.startswith("serve it with: ")]
    served = [*first, "plain-1-calibrated.mar"]
    assert line == f"serve it with: calib-serve serve --store {store} {' '.join(served)}"


def test_what_this_model_has_no_use_for_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = calib_serve("pack", *MODEL, "--option", "threshold=0.7", "-o", "store")
    assert (done.exit_code, "several labels" in done.stderr) == (3, True)


def test_labels_of_an_archive_without_receipts_are_not_promised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files = {"handler.py": b"", "net.pt2": folder / "net.pt2"}
    plain = write_archive(folder / "plain.mar", files, name="plain", version="1", handler="handler.py")
    done = calib_serve("pack", "--feedback", "--for", plain, "-o", "store")
    assert (done.exit_code, "not calibrated" in done.stderr) == (3, True)
