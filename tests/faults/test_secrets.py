"""Secrets are their owner's alone: on disk, in arguments, in what is printed, logged and served."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import typer.testing
from ledgers import accept, make_label
from real_servers import Redis
from small_models import archive

from calib_serve.cli import app as cli
from calib_serve.errors import CalibServeError, InputError, LedgerError
from calib_serve.files import GROUP_READS
from calib_serve.fit.checkpoint import Checkpoints
from calib_serve.receipts import Keyring
from calib_serve.serve.configuration import configure
from calib_serve.watch.batch import ServedPrediction
from calib_serve.watch.ledger import REDIS_PASSWORD, REDIS_PASSWORD_FILE, open_ledger
from calib_serve.watch.sender import read_token, send_labels
from calib_serve.watch.service import Watch

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
            "ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.writer",
        }  # fmt: skip
        (tmp_path / "run").chmod(0o700)
        assert for_others(tmp_path) == {}
    Checkpoints(tmp_path / "checkpoints").save("a", {"x": np.zeros(3)})
    assert len(list((tmp_path / "samples").glob("*.npz"))) == 2
    assert for_others(tmp_path) == {}


def test_a_folder_and_a_ledger_that_are_there_keep_the_modes_they_have(tmp_path: Path) -> None:
    """Who shares them with a group has said so."""
    path = tmp_path / "ledger.db"
    path.touch()
    path.chmod(0o660)
    ledger = open_ledger(str(path))
    accept(ledger, [make_label(1)])
    assert {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()} == {
        "ledger.db": 0o660, "ledger.db-wal": 0o660, "ledger.db-shm": 0o660,
    }  # fmt: skip
    ledger.close()


def test_a_file_of_secrets_that_the_group_may_read_is_refused_unless_the_host_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = pytest.importorskip("calib_serve.watch.http")
    read_tokens = http.read_tokens
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o640)
    for read in (read_tokens, read_token):
        with pytest.raises(InputError, match=FILE_OF_SECRETS):
            read(path)
    with pytest.raises(InputError, match=FILE_OF_SECRETS):
        open_ledger("redis://127.0.0.1:1/0", password_file=path)
    monkeypatch.setenv(GROUP_READS, "1")
    assert read_token(path) == "0123456789abcdef"
    assert read_tokens(path) == [http.Token.of(read_token(path))]
    path.chmod(0o644)
    with pytest.raises(InputError, match="run: chmod 600"):
        read_token(path)


# --- the password of a Redis ------------------------------------------------------------------


@pytest.fixture
def locked_redis(tmp_path: Path) -> Iterator[str]:
    """The address of a real Redis that wants ``PASSWORD``."""
    server = Redis(tmp_path, "--appendonly", "yes")
    with server:
        redis = pytest.importorskip("redis").Redis(port=server.port)
        redis.config_set("requirepass", PASSWORD)
        redis.close()
        yield server.url


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "where",
    [
        f"redis://:{PASSWORD}@127.0.0.1:1/0",
        f"rediss://user:{PASSWORD}@127.0.0.1:1/0",
        f"REDIS://:{PASSWORD}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={PASSWORD}",
        f"unix://:{PASSWORD}@/tmp/redis.sock",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Keyring.create(tmp_path / "keys.json")
    run = typer.testing.CliRunner().invoke
    watch = ["watch", "m:1=3", "--keyring", str(tmp_path / "keys.json"), "--ledger", where]
    monkeypatch.setenv("CALIB_SERVE_LEDGER", where)
    archive(tmp_path, name="m")
    told = []
    for work in (
        lambda: open_ledger(where),
        lambda: run(cli, watch, catch_exceptions=False),
        lambda: configure(tmp_path, ["m.mar"], folder=tmp_path / "run"),
        lambda: configure(tmp_path, ["m.mar"], folder=tmp_path / "run", ledger=where),
    ):
        with pytest.raises(CalibServeError) as refused:
            work()
        told.append(str(refused.value))
    assert REDIS_PASSWORD in told[0] == told[1] == told[2] == told[3]
    assert not any(part in line for line in told for part in ("hunter2", "Zx/9", PASSWORD))


def test_a_password_comes_from_a_file_or_the_environment_and_a_wrong_one_is_said(
    locked_redis: str, password_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerError, match=f"wants another password.*{REDIS_PASSWORD}"):
        open_ledger(locked_redis)
    open_ledger(locked_redis, password_file=password_file).close()
    monkeypatch.setenv(REDIS_PASSWORD, PASSWORD)
    open_ledger(locked_redis).close()
    wrong = tmp_path / "wrong"
    wrong.write_text("hunter3\n")
    wrong.chmod(0o600)
    monkeypatch.setenv(REDIS_PASSWORD_FILE, str(wrong))  # a file goes first
    with pytest.raises(LedgerError, match="wants another password") as refused:
        open_ledger(locked_redis)
    assert "hunter" not in str(refused.value)
    wrong.write_bytes(b"hunter2\xff")
    with pytest.raises(InputError, match="no UTF-8") as unread:
        open_ledger(locked_redis)
    assert "hunter" not in repr(unread.value)


@pytest.mark.server
def test_no_password_shows_anywhere_around_a_running_watch(
    locked_redis: str, password_file: Path, make_server, tmp_path: Path
) -> None:
    server = make_server("--ledger", locked_redis, "--ledger-password-file", str(password_file))
    one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}
    told = (
        httpx.post(f"{server.url}/v1/predictions", json={"items": [one]}, timeout=60).raise_for_status().text
    )
    for page in ("/", "/metrics", "/healthz", "/openapi.json"):
        told += httpx.get(f"{server.url}{page}", timeout=60).text
    process = psutil.Process(server.process.pid)
    told += " ".join(process.cmdline()) + " ".join(process.environ().values())
    # Its Redis changes the password: what is told of that goes to the log and to clients.
    redis = pytest.importorskip("redis").Redis.from_url(locked_redis, password=PASSWORD)
    redis.config_set("requirepass", "another")
    redis.client_kill_filter(_type="normal", skipme=True)
    redis.close()
    failed = httpx.post(f"{server.url}/v1/predictions", json={"items": [one]}, timeout=60)
    assert failed.status_code == 503
    told += failed.text + httpx.get(f"{server.url}/healthz", timeout=60).text
    log = server.process.stderr
    server.process.terminate()
    told += log.read()
    server.process.wait(60)
    assert "wants another password" in told
    assert not any(part in told for part in ("hunter2", "Zx/9", PASSWORD))


# --- tokens -----------------------------------------------------------------------------------


def test_a_token_that_is_no_header_is_not_repeated() -> None:
    for token in ("hunter2\nx", "hunter2\x00", "hünter2"):
        with pytest.raises(InputError, match="characters that a header cannot") as refused:
            send_labels([{"receipt": "a", "label": 1}], "http://127.0.0.1:1/", token=token, tries=1)
        assert "nter2" not in str(refused.value)
