"""Secrets are their owner's alone: on disk, in arguments, in what is printed, logged and served."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import calib_serve
from small_models import archive

from calib_serve.core.errors import CalibServeError, InputError, Unanswered
from calib_serve.core.files import GROUP_READS
from calib_serve.core.options.servers import ServeOptions
from calib_serve.ledger import Ledger
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.batch import ServedPrediction
from calib_serve.receipts.client import read_token
from calib_serve.receipts.destination import Served
from calib_serve.receipts.outbox import Outbox
from calib_serve.torchserve.configuration import configure

pytestmark = pytest.mark.server

PASSWORD = "hunter2-Zx/9@q:%41"  # with all that an address would have to quote
FILE_OF_SECRETS = "it has mode 640; run: chmod 600 .*; or let the group read it by CALIB_SERVE_GROUP_READS=1"


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Whatever is made is for all, unless it says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def for_others(folder: Path) -> dict[str, str]:
    """What others than the owner may use of a folder that exists already, with its mode."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    return {str(path.relative_to(folder)): oct(mode) for path, mode in modes.items() if mode & 0o077}


def test_what_a_watch_and_a_fit_write_is_for_their_owner_alone(tmp_path: Path, no_umask: None) -> None:
    Keyring.create(tmp_path / "keys" / "keyring.json")
    (tmp_path / "run").mkdir()
    with Watch.open(
        {("m", "1"): 3},
        keyring=tmp_path / "keys" / "keyring.json",
        ledger=tmp_path / "run" / "ledger.db",
        samples=tmp_path / "samples",
        sample_rate=1.0,
    ) as watch:
        (receipt,) = watch.predictions([ServedPrediction("m", "1", 1, 0.9, logits=(0.0, 1.0, 0.0))])
        assert watch.labels([{"receipt": receipt, "label": 1}])[0].accepted
        assert {p.name for p in (tmp_path / "run").iterdir()} == {
            "ledger.db", "ledger.db-wal", "ledger.db-shm",
        }  # fmt: skip
        (tmp_path / "run").chmod(0o700)
        assert for_others(tmp_path) == {}
    assert len(list((tmp_path / "samples").glob("*.npz"))) == 2
    assert for_others(tmp_path) == {}


class Away:
    """A watch that does not answer."""

    sample_rate = 0.0

    def count(self, _: object) -> list[str]:
        raise Unanswered("away")


def test_what_waits_in_a_spool_is_for_its_owner_alone(tmp_path: Path, no_umask: None) -> None:
    box = Outbox(Away(), lambda *_, **__: None, model="m", version="1", spool=tmp_path / "spool")
    assert box.put_one(Served("receipt", "order-17"))
    box.put([(1, 0.9)])
    assert not box.send(at_once=True)
    assert len([*tmp_path.rglob("*.db")]) == 1
    assert for_others(tmp_path) == {}
    assert box.drop() == 0  # it lies in the spool


def test_a_backup_is_for_its_owner_alone(tmp_path: Path, no_umask: None) -> None:
    with contextlib.closing(Ledger(tmp_path / "ledger.db")) as ledger:
        ledger.database.backup(tmp_path / "backup.db")
    with contextlib.closing(Ledger(tmp_path / "backup.db", must_exist=True)) as copy:
        assert copy.check() == []
    assert for_others(tmp_path) == {}


def test_a_file_of_secrets_that_the_group_may_read_is_refused_unless_the_host_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = pytest.importorskip("calib_serve.web")
    read_tokens = http.read_tokens
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o640)
    for read in (read_tokens, read_token):
        with pytest.raises(InputError, match=FILE_OF_SECRETS):
            read(path)
    monkeypatch.setenv(GROUP_READS, "1")
    assert read_token(path) == "0123456789abcdef"
    assert read_tokens(path) == [http.Token.of(read_token(path))]
    path.chmod(0o644)
    with pytest.raises(InputError, match="run: chmod 600"):
        read_token(path)


# --- the password of a database ------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        f"postgresql://user:{PASSWORD}@127.0.0.1:1/labels",
        f"postgres://127.0.0.1:1/labels?password={PASSWORD}",
        f"redis://:{PASSWORD}@127.0.0.1:1/0",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keyring.create(tmp_path / "keys.json")
    watch = ["watch", "m:1=3", "--keyring", str(tmp_path / "keys.json"), "--ledger", where]
    monkeypatch.setenv("CALIB_SERVE_LEDGER", where)
    archive(tmp_path, name="m")
    told = []
    for work in (
        lambda: Ledger(where),
        lambda: configure(tmp_path, ["m.mar"], ServeOptions(folder=tmp_path / "run"), {}),
        lambda: configure(tmp_path, ["m.mar"], ServeOptions(folder=tmp_path / "run", ledger=where), {}),
    ):
        with pytest.raises(CalibServeError) as refused:
            work()
        told.append(str(refused.value))
    told.append(calib_serve(*watch).stderr.removeprefix("calib-serve: ").strip())
    assert told[0] == told[1] == told[2] == told[3]
    assert not any(part in line for line in told for part in ("hunter2", "Zx/9", PASSWORD))
