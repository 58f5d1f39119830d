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
from calib_serve.receipts import Keyring, keyring
from calib_serve.watch import journal
from calib_serve.watch.anew import begun_anew
from calib_serve.watch.feed import detector_key
from calib_serve.watch.ids import sqlite as ids
from calib_serve.watch.journal import LabelJournal, read_journal
from calib_serve.watch.ledger import SqliteLedger, backup, restore_ledger
from calib_serve.watch.ledger.tables import FORMAT
from calib_serve.watch.shadow import shadow_key

pytestmark = pytest.mark.store

NEWER = "which a newer calib-serve wrote; this one reads"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
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
    with pytest.raises(LedgerError, match=rf"a ledger of format {FORMAT + 1}, {NEWER} {FORMAT}: upgrade"):
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
    of = {**json.loads(head), "format": backup._FORMAT + 1}
    file.write_bytes(json.dumps(of).encode() + b"\n" + content)
    with pytest.raises(LedgerError, match=rf"a backup of format 2, {NEWER} 1: upgrade"):
        restore_ledger(file, str(place))
    copy = host.folder / "copy.db"
    copy.write_bytes(content)
    number(copy, FORMAT + 1)
    file.unlink()
    backup.write_backup(file, copy, store="sqlite", taken=host.now)
    with pytest.raises(LedgerError, match=rf"a ledger of format {FORMAT + 1}, {NEWER}"):
        restore_ledger(file, str(place))
    assert not place.exists()


def newer(kept: bytes) -> bytes:
    """The same with format + 1: of a state with a header, or of one a tag or clause."""
    head, line, body = kept.partition(b"\n")
    told = json.loads(head)
    for one in [told] if "format" in told else told.values():
        one["format"] += 1
    return json.dumps(told).encode() + line + body


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (detector_key(V), "a detector's state"),
        (shadow_key(V), "a shadow's test"),
        ("contract/4/pets/1", "evidence about a clause"),
    ],
)
def test_a_state_waits_for_the_upgrade_and_its_labels_with_it(host: Host, key: str, what: str) -> None:
    with host.watch() as watch:
        kept = watch.ledger.load(key) or b""
        written = newer(kept)
        watch.ledger.store(key, written)
        labels = [{"receipt": one, "label": 0} for one in host.told["open"][:3]]
        assert [one.accepted for one in watch.labels(labels)] == [True] * 3
        with pytest.raises(LedgerError, match=f"{what} of format 2, {NEWER} 1"):
            watch.feed.tick()
        assert watch.ledger.waiting() == {V: 3}
        assert all("format" not in one.why for one in begun_anew(watch.ledger))
        watch.checks.run()
        assert str(watch.checks.reasons()["drift"]).startswith(f"drift detection waits: {what} of format")
        assert watch.ledger.load(key) == written
        watch.ledger.store(key, kept)
        watch.feed.tick()
        assert watch.ledger.waiting() == {}


def test_a_label_journal(host: Host) -> None:
    for file in (host.folder / "journal").glob("labels-*.ndjson"):
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
    file.write_text(json.dumps({"format": keyring._FORMAT + 1, "active": "k1", "keys": keys}))
    file.chmod(0o600)
    with pytest.raises(KeyringError, match=f"a keyring of format 2, {NEWER} 1: upgrade"):
        Keyring.load(file)
