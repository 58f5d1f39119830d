"""What a newer version wrote is refused, with what to do, and not changed: format + 1, everywhere."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from kept_hosts import Host, V
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.errors import InputError, KeyringError, LedgerError
from calib_serve.receipts import Keyring, keyfile
from calib_serve.watch import journal, shadow
from calib_serve.watch.anew import begun_anew
from calib_serve.watch.contracts import evidence
from calib_serve.watch.drift import detector
from calib_serve.watch.feed import detector_key
from calib_serve.watch.ids import sqlite as ids
from calib_serve.watch.journal import LabelJournal, read_journal
from calib_serve.watch.ledger import SqliteLedger, backup_file, restore_ledger
from calib_serve.watch.ledger.formats import FORMAT
from calib_serve.watch.shadow import shadow_key

NEWER = "which a newer calib-serve wrote; this one reads"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """One whose files are all of today's formats."""
    found = Host(FORMAT, tmp_path)
    with found.watch() as watch:
        watch.feed.tick()
    return found


def number(path: Path, value: int) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"PRAGMA user_version = {value}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def command(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    return done.exit_code, f"{done.output} {done.exception}"


def test_a_ledger(host: Host) -> None:
    file = host.folder / "ledger.db"
    number(file, FORMAT + 1)
    before = file.read_bytes()
    with pytest.raises(
        LedgerError, match=rf"a ledger of format {FORMAT + 1}, {NEWER} 1 to {FORMAT}: upgrade"
    ):
        SqliteLedger(file)
    for verb in ("verify", "prune", "backup"):
        more = [host.folder / "new.backup"] if verb == "backup" else []
        code, said = command("ledger", verb, file, *more)
        assert code == 1, (verb, said)
        assert NEWER in " ".join(said.split()), (verb, said)
    assert not (host.folder / "new.backup").exists()
    assert file.read_bytes() == before


def test_a_backup_and_a_ledger_within_one(host: Host) -> None:
    file, place = host.folder / "ledger.backup", host.folder / "restored.db"
    head, _, content = file.read_bytes().partition(b"\n")
    of = {**json.loads(head), "format": backup_file._FORMAT + 1}
    file.write_bytes(json.dumps(of).encode() + b"\n" + content)
    with pytest.raises(LedgerError, match=rf"a backup of format 2, {NEWER} 1: upgrade"):
        restore_ledger(file, str(place))
    copy = host.folder / "copy.db"
    copy.write_bytes(content)
    number(copy, FORMAT + 1)
    file.unlink()
    backup_file.write_backup(file, copy, store="sqlite", taken=host.now)
    with pytest.raises(LedgerError, match=rf"a ledger of format {FORMAT + 1}, {NEWER}"):
        restore_ledger(file, str(place))
    assert not place.exists()


def test_a_detector_s_state_waits_for_the_upgrade_and_its_labels_with_it(host: Host) -> None:
    with host.watch() as watch:
        kept = watch.ledger.load(detector_key(V)) or b""
        head, _, body = kept.partition(b"\n")
        newer = json.dumps({**json.loads(head), "format": detector._FORMAT + 1}).encode() + b"\n" + body
        watch.ledger.store(detector_key(V), newer)
        label(watch, host)
        with pytest.raises(LedgerError, match=f"a detector's state of format 2, {NEWER} 1"):
            watch.feed.tick()
        waits_and_says_so(watch, "a detector's state")
        assert watch.ledger.load(detector_key(V)) == newer
        watch.ledger.store(detector_key(V), kept)
        watch.feed.tick()
        assert watch.ledger.waiting() == {}
        watch.checks.run()
        assert watch.checks.reasons()["drift"] is None or "clause" in str(watch.checks.reasons()["drift"])


def test_the_test_of_a_shadow(host: Host) -> None:
    with host.watch() as watch:
        key = shadow_key(V)
        kept = json.loads(watch.ledger.load(key) or b"")
        newer = {tag: {**one, "format": shadow._FORMAT + 1} for tag, one in kept.items()}
        watch.ledger.store(key, json.dumps(newer).encode())
        with pytest.raises(LedgerError, match=f"a shadow's test of format 2, {NEWER} 1"):
            watch.shadow_states(V)
        label(watch, host)
        with pytest.raises(LedgerError, match="a shadow's test of format 2"):
            watch.feed.tick()
        waits_and_says_so(watch, "a shadow's test")
        assert json.loads(watch.ledger.load(key) or b"") == newer


def test_the_evidence_about_a_contract(host: Host) -> None:
    with host.watch() as watch:
        key = "contract/4/pets/1"
        kept = json.loads(watch.ledger.load(key) or b"")
        assert {one["format"] for one in kept.values()} == {evidence._FORMAT}
        newer = {name: {**one, "format": evidence._FORMAT + 1} for name, one in kept.items()}
        watch.ledger.store(key, json.dumps(newer).encode())
        label(watch, host)
        with pytest.raises(LedgerError, match=f"evidence about a clause of format 2, {NEWER} 1"):
            watch.feed.tick()
        waits_and_says_so(watch, "evidence about a clause")
        assert json.loads(watch.ledger.load(key) or b"") == newer
        old = {name: {k: v for k, v in one.items() if k != "format"} for name, one in kept.items()}
        watch.ledger.store(key, json.dumps(old).encode())  # as it was before it had a number
        watch.feed.tick()
        assert [one.labels for one in watch.contract_states(V)] == [8, 8]


def label(watch: object, host: Host) -> None:
    found = watch.labels([{"receipt": one, "label": 0} for one in host.told["open"][:3]])  # type: ignore[attr-defined]
    assert [one.accepted for one in found] == [True] * 3


def waits_and_says_so(watch: object, what: str) -> None:
    assert watch.ledger.waiting() == {V: 3}  # type: ignore[attr-defined]
    noted = begun_anew(watch.ledger)  # type: ignore[attr-defined]
    assert all("format" not in one.why for one in noted)
    watch.checks.run()  # type: ignore[attr-defined]
    reason = watch.checks.reasons()["drift"]  # type: ignore[attr-defined]
    assert reason.startswith(f"drift detection waits: {what} of format")


def test_a_label_journal(host: Host) -> None:
    file = min((host.folder / "journal").glob("labels-*.ndjson"))
    head, _, rows = file.read_text().partition("\n")
    file.write_text(json.dumps({**json.loads(head), "journal": journal._FORMAT + 1}) + "\n" + rows)
    with pytest.raises(InputError, match=f"is a label journal of format 2, {NEWER} 1"):
        list(read_journal(host.folder / "journal"))
    with closing(SqliteLedger(host.folder / "ledger.db", clock=lambda: host.now)) as ledger:
        with pytest.raises(InputError, match=f"is a label journal of format 2, {NEWER} 1"):
            LabelJournal(host.folder / "journal", ledger)
        before = ledger.sums()[V].labels.sum()
    asked = ("ledger", "revoke", host.folder / "ledger.db", "--journal", host.folder / "journal")
    code, said = command(*asked, "--source", "lab")
    assert code == 1
    assert NEWER in " ".join(said.split())
    with closing(SqliteLedger(host.folder / "ledger.db", clock=lambda: host.now)) as ledger:
        assert ledger.sums()[V].labels.sum() == before


def test_ids(host: Host) -> None:
    number(host.folder / "ledger.db.ids", ids._FORMAT + 1)
    with pytest.raises(LedgerError, match=f"holds ids of format 2, {NEWER} 1"):
        ids.SqliteIds(host.folder / "ledger.db.ids", most=10, ttl=1e6)


@pytest.mark.parametrize("keys", [{"k1": "AAAA"}, ["another", "form"]])
def test_a_keyring_whatever_it_holds(keys: object, tmp_path: Path) -> None:
    file = tmp_path / "keyring.json"
    file.write_text(json.dumps({"format": keyfile._FORMAT + 1, "active": "k1", "keys": keys}))
    file.chmod(0o600)
    with pytest.raises(KeyringError, match=f"a keyring of format 3, {NEWER} 1 and 2: upgrade"):
        Keyring.load(file)
