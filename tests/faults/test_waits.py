"""A ledger waits for nobody longer than seconds: locks, servers that hang, poolers, and what is set."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from sqlite3 import connect

import psycopg
import pytest
from collecting import until
from ledgers import ask, entries, make_label
from processes import ended_on_failure, free_port
from real_servers import needed

from calib_serve.core.errors import LedgerError
from calib_serve.ledger import Ledger

pytestmark = pytest.mark.store

AT_ONCE = 10.0  # seconds in which a client hears of it


def labels(*numbers: int) -> list[object]:
    return entries([make_label(i) for i in numbers])


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < AT_ONCE


def not_counted(ledger: Ledger, *numbers: int) -> LedgerError:
    with soon(), pytest.raises(LedgerError) as failed:
        ledger.accept(labels(*numbers))
    return failed.value


@pytest.mark.parametrize(
    ("said", "done"),
    [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")],
)
def test_a_reload_changes_nothing_of_what_a_transaction_promises(
    postgres_database: str, said: str, done: str
) -> None:
    ledger = Ledger(postgres_database)
    name = postgres_database.rpartition("/")[2]
    ask(postgres_database, f"alter database {name} set synchronous_commit = {said}")
    ledger.database.close()  # connections from before have the setting of before
    with ledger.transaction() as connection:
        assert connection.exec_driver_sql("show synchronous_commit").scalar() == done
    with psycopg.connect(postgres_database) as other:
        assert other.execute("show synchronous_commit").fetchone() == (said,), "of nobody else"
    ledger.close()


@pytest.mark.parametrize(
    "lock",
    [
        "lock table label in access exclusive mode",
        "lock table label in share mode",
        "select * from ledger for update",
    ],
)
def test_a_lock_of_somebody_costs_seconds_and_no_label(postgres_database: str, lock: str) -> None:
    ledger = Ledger(postgres_database)
    ledger.accept(labels(1))
    with psycopg.connect(postgres_database) as other:
        other.execute(lock)
        error = not_counted(ledger, 1, 2)
        assert type(error) is LedgerError, "nothing was counted, for sure"
        assert "pg_blocking_pids" in str(error)
        assert time.monotonic() - ledger.refused[0] < AT_ONCE
    assert ledger.accept(labels(1, 2)) == ["duplicate", "counted"]
    ledger.close()


def test_a_writer_of_the_file_costs_seconds_and_no_label(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    other = connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("begin immediate")
    failed: list[LedgerError] = []
    threads = [threading.Thread(target=lambda: failed.append(not_counted(ledger, 1))) for _ in range(4)]
    with soon():
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert [type(one) for one in failed] == [LedgerError] * 4
    other.execute("rollback")
    assert ledger.accept(labels(1)) == ["counted"]
    ledger.close()


class Hanging:
    """A proxy before a PostgreSQL that passes nothing on while ``hangs``."""

    def __init__(self, url: str) -> None:
        host = url.partition("@")[2].partition("/")[0]
        self._to, self.hangs = int(host.partition(":")[2]), threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        port = self._server.getsockname()[1]
        self.url = url.replace(host, f"127.0.0.1:{port}")
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                store = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((client, store), (store, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with one, suppress(OSError):  # each end is closed by who reads it
            while content := one.recv(1 << 16):
                while self.hangs.is_set():
                    time.sleep(0.02)
                other.sendall(content)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # which ends the wait for clients
        self._server.close()


def test_a_server_that_hangs_costs_seconds_and_is_used_again(postgres_database: str) -> None:
    proxy = Hanging(postgres_database)
    ledger = Ledger(proxy.url)
    ledger.accept(labels(1))
    proxy.hangs.set()
    for _ in range(2):  # by a connection that is open, and by a new one
        assert type(not_counted(ledger, 2)) is LedgerError
    with soon(), pytest.raises(LedgerError):
        ledger.published()
    proxy.hangs.clear()
    assert ledger.accept(labels(1, 2)) == ["duplicate", "counted"]
    ledger.close()
    proxy.close()


def test_a_refusal_that_was_swallowed_is_no_commit(postgres_database: str) -> None:
    ledger = Ledger(postgres_database)

    def swallow() -> None:
        with ledger.transaction() as connection:
            ledger.accept(labels(1))
            with suppress(Exception):
                connection.exec_driver_sql("select no_such_thing")

    with pytest.raises(LedgerError, match="nothing was counted"):
        swallow()
    assert ledger.accept(labels(1)) == ["counted"]
    ledger.close()


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = serializable",
        "idle_in_transaction_session_timeout = 300",
        "statement_timeout = 200",
        "lock_timeout = 100",
        "default_transaction_deferrable = on",
    ],
)
def test_what_a_person_sets_for_others_does_not_hinder_the_ledger(
    postgres_database: str, setting: str
) -> None:
    ask(postgres_database, f"alter database {postgres_database.rpartition('/')[2]} set {setting}")
    one, two = Ledger(postgres_database), Ledger(postgres_database)

    def send(ledger: Ledger, first: int) -> None:
        for at in range(first, first + 20, 10):
            with ledger.transaction():
                assert ledger.accept(labels(*range(at, at + 10))) == ["counted"] * 10
                time.sleep(0.5)
            ledger.roll_up()

    threads = [threading.Thread(target=send, args=(one, 0)), threading.Thread(target=send, args=(two, 1000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(sums.labels.sum() for sums in one.sums().values()) == 40
    one.close(), two.close()


def test_a_server_that_became_read_only_is_left_for_another_as_soon_as_it_is_not(
    postgres_database: str,
) -> None:
    name = postgres_database.rpartition("/")[2]
    ledger = Ledger(postgres_database)
    ask(postgres_database, f"alter database {name} set default_transaction_read_only = on")
    ledger.database.close()
    assert "read-only" in str(not_counted(ledger, 1))
    with psycopg.connect(postgres_database, autocommit=True) as other:
        other.execute("set default_transaction_read_only = off")
        other.execute(f"alter database {name} reset default_transaction_read_only")
    assert ledger.accept(labels(1)) == ["counted"], "by a new connection"
    ledger.close()


def test_a_table_that_a_crash_empties_is_named(postgres_database: str) -> None:
    ledger = Ledger(postgres_database)
    assert ledger.database.trouble() is None
    ask(postgres_database, "alter table label set unlogged")
    assert "label is unlogged" in str(ledger.database.trouble())
    ledger.close()


def answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def pooler(request: pytest.FixtureRequest, postgres_database: str, tmp_path: Path) -> Iterator[str]:
    """The address of a database behind a pgbouncer that gives few connections to many."""
    program, port = needed("pgbouncer", "pgbouncer"), free_port()
    to = psycopg.conninfo.conninfo_to_dict(postgres_database)
    where = f"host={to['host']} port={to['port']} user={to['user']} dbname={to['dbname']}"
    users, ini = tmp_path / "users", tmp_path / "pgbouncer.ini"
    users.write_text(f'"{to["user"]}" ""\n')
    ini.write_text(
        f"[databases]\n{to['dbname']} = {where}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
        f"auth_type = any\ndefault_pool_size = 20\nunix_socket_dir =\n"
        f"pool_mode = {request.getfixturevalue('mode')}\n"
    )
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    owner = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    command = [*([] if os.getuid() else owner), program, str(ini)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process, ended_on_failure(process):
        until(lambda: answers(port))
        yield postgres_database.replace(f":{to['port']}", f":{port}")
        process.terminate()


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_that_gives_each_transaction_another_connection_loses_nothing(
    mode: str, pooler: str, postgres_database: str
) -> None:
    ask(
        postgres_database,
        f"alter database {postgres_database.rpartition('/')[2]} set synchronous_commit = off",
    )
    ledgers = [Ledger(pooler) for _ in range(3)]
    wrong: list[object] = []

    def send(worker: int) -> None:
        try:
            for at in range(worker * 1000, worker * 1000 + 100, 10):
                assert ledgers[worker % 3].accept(labels(*range(at, at + 10))) == ["counted"] * 10
                ledgers[worker % 3].roll_up()
                ledgers[worker % 3].published()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=send, args=(i,)) for i in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []
    assert sum(sums.labels.sum() for sums in ledgers[0].sums().values()) == 600
    with ledgers[0].transaction() as connection:
        assert connection.exec_driver_sql("show synchronous_commit").scalar() == "on"
    assert ask(postgres_database, "select count(*) from label")[0][0] == 600
    for ledger in ledgers:
        ledger.close()


@pytest.mark.parametrize("mode", ["statement"])
def test_a_pooler_without_transactions_is_refused_with_the_reason(mode: str, pooler: str) -> None:
    with pytest.raises(LedgerError, match=f"(?i){mode} pooling"):
        Ledger(pooler)
