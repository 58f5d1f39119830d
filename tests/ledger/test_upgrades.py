"""From a ledger's format to a made-up next one, when asked and not before, and back by its backup."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kept_hosts import Host, V, said
from ledgers import accept, ask, make_label

from calib_serve.core.errors import InputError, LedgerError
from calib_serve.ledger import Ledger, upgrade, upgrade_ledger
from calib_serve.ledger.schema import SCHEMA, STEPS, Step

pytestmark = pytest.mark.store

MADE = "create table made_up (receipt %s not null primary key, why text not null)"
FILLED = "insert into made_up select receipt, 'of the format before' from label"
ALTERED = "alter table label add column cost %s not null default 7"
TWO: Step = (
    (ALTERED % "integer", MADE % "blob", FILLED),
    (ALTERED % "bigint", MADE % "bytea", FILLED),
)
BROKEN: Step = tuple((*one, "select no_such_thing") for one in TWO)  # type: ignore[assignment]
NEWEST = (*STEPS, TWO)
V_OF = ("m", "1")


@pytest.fixture
def filled(url: str) -> str:
    ledger = Ledger(url)
    accept(ledger, [make_label(i) for i in range(20)])
    ledger.roll_up()
    ledger.close()
    return url


@pytest.fixture
def backup(filled: str, tmp_path: Path) -> Path:
    """Where the copy goes; of a PostgreSQL, what pg_dump wrote."""
    if "://" in filled:
        (tmp_path / "dump.sql").touch()
        return tmp_path / "dump.sql"
    return tmp_path / "before.db"


def test_a_kept_ledger_goes_to_the_next_format_and_back_by_its_backup(tmp_path: Path) -> None:
    host = Host(tmp_path)
    file = host.folder / "ledger.db"
    seen = "receipt, predicted_at, arrived_at, predicted, confidence, correct, inclusion, segment, source"
    counted = f"select {seen}, group_id, revoked, label, history from labels order by receipt"
    rows = ask(str(file), counted)
    sums = ask(str(file), "select * from sums order by kind, name, start, width, bin")
    backup = tmp_path / "before.db"
    assert upgrade_ledger(file, backup, steps=NEWEST) == 1
    assert ask(str(file), "select schema from ledger") == [(SCHEMA + 1,)]
    assert ask(str(file), counted) == rows
    assert ask(str(file), "select * from sums order by kind, name, start, width, bin") == sums
    assert ask(str(file), "select count(*), min(cost) from label join made_up using (receipt)") == [(85, 7)]
    with pytest.raises(
        LedgerError, match=rf"format {SCHEMA + 1}, which a newer .* put the backup from before"
    ):
        Ledger(file)
    shutil.copy(backup, file)
    with host.watch() as watch:
        assert watch.ledger.check() == []
        assert said(watch)["sums"] == pytest.approx(host.told["before"]["sums"])
        assert watch.ledger.followers.waiting() == {V: 5}


def test_an_older_format_is_refused_with_the_command_until_it_is_asked_for(
    filled: str, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "SCHEMA", SCHEMA + 1)
    before = ask(filled, "select schema from ledger")
    with pytest.raises(LedgerError, match=rf"format {SCHEMA}, and this calib-serve writes {SCHEMA + 1}: "):
        Ledger(filled)
    assert ask(filled, "select schema from ledger") == before
    assert upgrade_ledger(filled, backup, steps=NEWEST) == SCHEMA
    ledger = Ledger(filled)
    assert ledger.sums()[V_OF].labels.sum() == 20
    ledger.close()
    assert upgrade_ledger(filled, backup, steps=NEWEST) == SCHEMA + 1  # nothing is done, nor copied


def test_a_step_that_fails_leaves_the_ledger_as_it_was(filled: str, backup: Path) -> None:
    with pytest.raises(LedgerError, match="no_such_thing"):
        upgrade_ledger(filled, backup, steps=(*STEPS, BROKEN))
    ledger = Ledger(filled)
    assert ledger.sums()[V_OF].labels.sum() == 20
    assert accept(ledger, [make_label(99)]) == [True]
    assert ask(filled, "select count(*) from labels") == [(21,)]
    ledger.close()


def test_without_a_backup_nothing_is_upgraded(filled: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    if "://" not in filled:
        wrong.touch()
    with pytest.raises(InputError, match=r"make it by pg_dump" if "://" in filled else "name a new file"):
        upgrade_ledger(filled, wrong, steps=NEWEST)
    Ledger(filled).close()


def test_a_program_that_has_the_ledger_open_is_refused_after_the_upgrade(filled: str, backup: Path) -> None:
    ledger = Ledger(filled)
    accept(ledger, [make_label(50)])
    upgrade_ledger(filled, backup, steps=NEWEST)
    with pytest.raises(LedgerError, match=f"format {SCHEMA + 1}"):
        accept(ledger, [make_label(51)])
    with pytest.raises(LedgerError, match=f"format {SCHEMA + 1}"):
        ledger.roll_up()
    assert ask(filled, "select count(*) from label") == [(21,)]
    ledger.close()
