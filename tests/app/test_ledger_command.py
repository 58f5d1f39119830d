"""``calib-serve ledger``: what it says, and its exit codes."""

from __future__ import annotations

import shutil
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from command_line import calib_serve
from ledgers import NOW, accept, ask, entries, make_label

from calib_serve.ledger import Ledger
from calib_serve.receipts import DAY
from calib_serve.receipts.samples import SampleLog, read_samples

pytestmark = pytest.mark.store

V = ("m", "1")


@pytest.fixture
def run():
    """What the command says, for one of these exit codes."""

    def run(*words: object, code: int = 0) -> str:
        done = calib_serve("ledger", *words)
        assert done.exit_code in ((2, 3) if code == 2 else (code,)), done.output
        return done.output

    return run


def test_a_backup_takes_the_ledger_s_place_and_what_came_since_is_refused(run, tmp_path: Path) -> None:
    path, file = tmp_path / "ledger.db", tmp_path / "b"
    ledger = Ledger(path)
    accept(ledger, [make_label(1, when=NOW - 9)])
    assert "put it in the ledger's place" in run("backup", path, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "name a new file" in run("backup", path, file, code=2)
    accept(ledger, [make_label(2, when=NOW - 9)])
    ledger.close()
    shutil.copy(file, path)
    assert "the failover is known" in run("promoted", path)
    assert "refused as forgotten" in run("restored", path)
    ledger = Ledger(path)
    assert ledger.accept(entries([make_label(i, when=NOW - 9) for i in (1, 2)])) == ["forgotten"] * 2
    assert ledger.published().edition == "2"
    ledger.close()


def test_sources_are_taken_back_and_versions_dropped(run, url: str, tmp_path: Path) -> None:
    ledger = Ledger(url)
    ledger.accept(entries([make_label(i, when=NOW + i) for i in range(6)], source="lab"))
    accept(ledger, [make_label(9), make_label(10, version="2")])
    log = SampleLog(tmp_path / "samples", rate=1.0)
    log.predicted(*V, [make_label(i).receipt.nonce for i in range(3)], np.zeros((3, 3)), times=[NOW] * 3)
    log.labelled([make_label(i) for i in range(3)])
    log.close()
    assert "m 1: 6 would be taken back" in run("revoke", url, "--source", "lab", "--dry-run")
    some = ("--source", "lab", "--since", NOW + 1, "--until", NOW + 3, "--samples", tmp_path / "samples")
    assert run("revoke", url, *some) == "m 1: 2 taken back\n"
    assert len(read_samples(tmp_path / "samples", model="m", version="1").labels) == 1
    assert "m 1: 4 taken back" in run("revoke", url, "--source", "lab")
    assert "nothing to take back" in run("revoke", url, "--source", "lab")
    assert "took 1 labels of m 2 out" in run("drop", url, "m:2")
    assert {key: sums.labels.sum() for key, sums in ledger.sums().items()} == {V: 1}
    assert "is sound" in run("check", url)
    ledger.close()


def test_a_label_that_comes_while_its_source_is_revoked_leaves_the_samples_as_well(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, revoke = [make_label(i) for i in range(3)], Ledger.revoke
    log = SampleLog(tmp_path / "samples", rate=1.0)
    log.predicted(*V, [one.receipt.nonce for one in labels], np.zeros((3, 3)), times=[NOW] * 3)
    log.labelled(labels)
    log.close()
    coming = iter(labels)

    def after_another_came(ledger: Ledger, *of: object, **how: object) -> object:
        ledger.accept(entries([next(coming)], source="lab"))
        return revoke(ledger, *of, **how)

    Ledger(tmp_path / "l.db").close()
    monkeypatch.setattr(Ledger, "revoke", after_another_came)
    some = ("--source", "lab", "--samples", tmp_path / "samples")
    assert run("revoke", tmp_path / "l.db", *some) == "m 1: 2 taken back\n"
    assert len(read_samples(tmp_path / "samples", model="m", version="1").labels) == 1


def test_what_is_wrong_is_said_with_exit_code_1(run, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    accept(ledger, [make_label(i) for i in range(5)])
    ledger.roll_up(), ledger.close()
    assert "is sound" in run("check", path)
    ask(str(path), "update tally set feedback = 0")
    assert "5 labels are counted, and the sums hold 0" in run("check", path, code=1)


def test_what_the_command_cannot_use_is_said_without_a_traceback(run, tmp_path: Path) -> None:
    path, junk = tmp_path / "ledger.db", tmp_path / "junk"
    Ledger(path).close()
    junk.write_bytes(b"junk" * 5000)
    for words in (
        ("backup", tmp_path, tmp_path / "b"),
        ("backup", path, path),
        ("backup", path, junk / "b"),
        ("backup", junk, tmp_path / "b"),
        ("restored", tmp_path / "missing"),
        ("promoted", tmp_path / "missing"),
        ("check", "postgresql://user:word@127.0.0.1:1/labels"),
        ("check", "redis://127.0.0.1:1/0"),
        ("check", tmp_path / "missing"),
        ("check", junk),
        ("revoke", path, "--source", ""),
        ("revoke", path, "--source", "lab", "--samples", tmp_path / "missing"),
        ("revoke", path, "--source", "lab", "--since", "yesterday"),
    ):
        told = run(*words, code=2)
        assert told.startswith("calib-serve: ")
        assert ":word@" not in told


def test_a_postgresql_is_backed_up_by_its_own_means(run, postgres_database: str, tmp_path: Path) -> None:
    Ledger(postgres_database).close()
    assert "pg_dump" in run("backup", postgres_database, tmp_path / "b", code=2)


def test_a_clock_that_was_ahead_is_told_and_what_it_had_refused_counts_again(run, tmp_path: Path) -> None:
    path, ahead = tmp_path / "ledger.db", NOW + 400 * DAY
    ledger = Ledger(path, clock=lambda: ahead)
    accept(ledger, [make_label(1, when=ahead)])
    ledger.restored()
    ledger.close()
    assert "which is to come" in run("clock", path, code=1)
    told = run("clock", path, "--repair")
    assert "from now on count" in told
    assert "1 labels of predictions dated ahead stay counted" in told
    assert "agree" in run("clock", path)
    ledger = Ledger(path)
    assert ledger.accept(entries([make_label(2, when=NOW - 60), make_label(3, when=time.time() + 1)])) == [
        "forgotten",
        "counted",
    ]
    ledger.close()
