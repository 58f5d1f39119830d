"""``calib-serve ledger``: what it says, and its exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ledgers import counted, labels_of, make_label

from calib_serve.cli import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """What the command says, for an exit code."""

    def run(*words: object, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["calib-serve", "ledger", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        told = "".join(capsys.readouterr())
        assert (end.value.code or 0) == code, told
        return told

    return run


def test_the_command_backs_up_verifies_restores_and_prunes(run, tmp_path: Path) -> None:
    path, file = tmp_path / "ledger.db", tmp_path / "b"
    counted("sqlite", path, [make_label(1), make_label(2, version="2")])
    assert "the sqlite ledger of" in run("backup", path, file)
    assert "is sound" in run("verify", path)
    assert "--replace" in run("restore", file, path, code=2)
    assert "refused as forgotten" in run("restore", file, path, "--replace")
    assert "took 1 labels of m 2 out" in run("prune", path, "--model", "m", "--version", "2", "--compact")
    assert "is sound" in run("verify", path)
    assert "deleted 0 damaged rows" in run("prune", path, "--compact", "--set-aside")


def test_what_the_command_cannot_use_is_said_without_a_traceback(run, tmp_path: Path) -> None:
    path, junk = tmp_path / "ledger.db", tmp_path / "junk"
    counted("sqlite", path, [make_label(1)])
    junk.write_bytes(b"junk" * 5000)
    for words in (
        ("backup", tmp_path, tmp_path / "b"),
        ("backup", path, path),
        ("backup", path, junk / "b"),
        ("backup", junk, tmp_path / "b"),
        ("restore", tmp_path / "missing", path, "--replace"),
        ("restore", junk, path, "--replace"),
        ("verify", "redis://:word@127.0.0.1:1/0"),
        ("restore", junk, "redis://:word@127.0.0.1:1/0"),
        ("verify", tmp_path / "missing"),
        ("prune", junk),
        ("prune", path, "--model", "m"),
        ("prune", path, "--before", "2020-01-01", "--model", "m", "--version", "1"),
    ):
        told = run(*words, code=2)
        assert told.startswith("calib-serve: ")
        assert "CALIB_SERVE_REDIS_PASSWORD" in told or ":word@" not in " ".join(map(str, words))
    run("verify", junk, code=1)
    assert labels_of("sqlite", path) == 1
