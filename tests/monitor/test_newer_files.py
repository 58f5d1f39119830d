"""What a newer version wrote is refused, with what to do, and not changed: format + 1, everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import calib_serve
from kept_hosts import Host, V
from ledgers import ask

from calib_serve.core.errors import KeyringError, LedgerError
from calib_serve.ledger import Ledger
from calib_serve.ledger.recovery import recent_recovery
from calib_serve.ledger.schema import SCHEMA
from calib_serve.receipts import Keyring, keyring

pytestmark = pytest.mark.store

NEWER = "which a newer calib-serve wrote; this one reads"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    with found.watch() as watch:
        watch.feed.tick()
    return found


def test_a_ledger(host: Host) -> None:
    file = host.folder / "ledger.db"
    ask(str(file), "update ledger set schema = :newer", newer=SCHEMA + 1)
    told = f"is of format {SCHEMA + 1}, {NEWER} {SCHEMA}"
    with pytest.raises(LedgerError, match=told):
        Ledger(file)
    for words in (
        ("check",),
        ("backup", host.folder / "new.backup"),
        ("restored",),
        ("revoke", "--source", "lab"),
    ):
        done = calib_serve("ledger", words[0], file, *words[1:])
        assert told in done.stderr
    assert not (host.folder / "new.backup").exists()


def newer(kept: bytes) -> bytes:
    """The same with format + 1: of a state with a header, or of one that is JSON."""
    head, line, body = kept.partition(b"\n")
    told = json.loads(head)
    told["format"] += 1
    return json.dumps(told).encode() + line + body


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("detector", "a detector's state"),
        ("shadow", "a shadow's test"),
        ("clause", "evidence about a clause"),
    ],
)
def test_a_state_waits_for_the_upgrade_and_its_labels_with_it(host: Host, kind: str, what: str) -> None:
    with host.watch() as watch:
        kept = watch.ledger.followers.states(kind, V)
        for one in kept:
            watch.ledger.followers.keep(kind, V, one.name, newer(one.value), now=host.now)
        labels = [{"receipt": one, "label": 0} for one in host.told["open"][:3]]
        assert [one.accepted for one in watch.labels(labels)] == [True] * 3
        with pytest.raises(LedgerError, match=f"{what} of format 2, {NEWER} 1"):
            watch.feed.tick()
        assert watch.ledger.followers.waiting() == {V: 3}
        assert recent_recovery(watch.ledger, now=host.now) is None
        watch.checks.run()
        assert str(watch.checks.reasons()["drift"]).startswith(f"drift detection waits: {what} of format")
        assert {one.name: one.value for one in watch.ledger.followers.states(kind, V)} == {
            one.name: newer(one.value) for one in kept
        }
        for one in kept:
            watch.ledger.followers.keep(kind, V, one.name, one.value, now=host.now)
        watch.feed.tick()
        assert watch.ledger.followers.waiting() == {}


@pytest.mark.parametrize("keys", [{"k1": "AAAA"}, ["another", "form"]])
def test_a_keyring_whatever_it_holds(keys: object, tmp_path: Path) -> None:
    file = tmp_path / "keyring.json"
    file.write_text(json.dumps({"format": keyring._FORMAT + 1, "active": "k1", "keys": keys}))
    file.chmod(0o600)
    with pytest.raises(KeyringError, match=f"a keyring of format 2, {NEWER} 1: upgrade"):
        Keyring.load(file)
