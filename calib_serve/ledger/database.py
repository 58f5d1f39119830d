"""The database of a ledger: a file of SQLite, or PostgreSQL; transactions, and their errors as ours.

What is acknowledged is durable: SQLite writes with ``synchronous = full``, and PostgreSQL commits
synchronously, as each transaction sets for itself. Every wait has a bound.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from calib_serve.core.addresses import redacted
from calib_serve.core.errors import InputError, LedgerError, MissingDependency, UnknownFate
from calib_serve.core.files import make_private
from calib_serve.core.text import file_size

T = TypeVar("T")

_AGAIN = ("40001", "40P01")  # serialization failure, deadlock: PostgreSQL asks to try again
_LOCKED = "55P03"  # a lock was not free within lock_timeout
_SEND = "whether this was counted is not known: send it again"
_TIMELINE = "select substring(pg_walfile_name(pg_current_wal_lsn()) for 8)"
_SCHEMES = ("postgresql://", "postgres://")
_LITE = "sqlite:///"


def _is_postgresql(where: str) -> bool:
    """Whether this is the address of a PostgreSQL, and not the name of a file.

    InputError for the address of anything else.

    >>> _is_postgresql("postgresql://db/labels"), _is_postgresql("ledger.db")
    (True, False)
    """
    if not where:
        raise InputError("a ledger is a file name or a postgresql:// address, got an empty name")
    if "://" in where and not where.startswith((*_SCHEMES, _LITE)):
        raise InputError(f"a ledger is a file name or a postgresql:// address, got {redacted(where)!r}")
    return where.startswith(_SCHEMES)


def check_address(where: str) -> None:
    """Raise InputError for an address that is none, or that holds a password, without repeating it.

    >>> check_address("ledger.db")
    """
    if _is_postgresql(where):
        postgresql().checked_address(where, 0.0)


class Database:
    """A database at ``where``; safe to use from threads. ``timeout``: seconds to wait for it, or a lock.

    ``lite``: whether it is SQLite. ``must_exist``: a file that is not there is an error.
    """

    def __init__(self, where: str, *, timeout: float = 4.0, must_exist: bool = False) -> None:
        self.lite = not _is_postgresql(where)
        self.name = redacted(where)
        self._timeout, self._timelines = timeout, False
        self._mine, self._turn = threading.local(), threading.RLock()
        # Transactions begin by our own statement: "begin immediate" takes the writer's lock at once, where
        # one that reads first would fail to write while others do.
        more: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_timeout": timeout}
        if self.lite:
            self.path = Path(where.removeprefix(_LITE))
            self._opened = self._make_file(must_exist=must_exist)
            dialect, connect, more["poolclass"] = "sqlite", self._open_file, QueuePool
        else:
            self._conninfo = postgresql().checked_address(where, timeout)
            dialect, connect = "postgresql+psycopg", self._connect
        self._engine = sql.create_engine(f"{dialect}://", creator=connect, **more)

    # --- transactions ---

    @contextmanager
    def writing(self, *, patient: bool = False) -> Iterator[sql.Connection]:
        """Do everything inside in one transaction, seen by others when it ends and undone where it fails.

        ``patient``: a statement may take long, as nobody waits for what is done.
        """
        with self._in_turn(), self._begun(writes=True, statement=60.0 if patient else 1.0) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Read a snapshot of one moment."""
        with self._begun(writes=False, statement=4.0) as one:
            yield one

    @property
    def within(self) -> bool:
        """Whether this thread is in a transaction."""
        return getattr(self._mine, "connection", None) is not None

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """A file has one writer: threads of this process wait here, in turn, not in its busy handler."""
        if not self.lite:
            yield
            return
        if not self._turn.acquire(timeout=self._timeout):
            raise LedgerError(f"the ledger {self.name} is written to by another thread; send it again")
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def _begun(self, *, writes: bool, statement: float) -> Iterator[sql.Connection]:
        """Begin a transaction whose statements take ``statement`` times as long as the timeout, at most."""
        if self.within:
            yield self._mine.connection
            return
        committing = False
        if self.lite:
            self._check_file()
        try:
            with self._begin(writes, statement * self._timeout) as connection:
                self._mine.connection = connection
                try:
                    yield connection
                except BaseException as error:
                    self._undo(connection, error)
                    raise
                else:
                    # An error of the commit itself leaves open whether the server did it.
                    committing = writes
                    self._commit(connection, writes)
                finally:
                    self._mine.connection = None
        except SQLAlchemyError as error:
            raise self._told(error, committing=committing) from error

    def _begin(self, writes: bool, statement: float) -> sql.Connection:
        """A connection in a transaction; a failover closes those in the pool, which is seen here."""
        how = "begin immediate" if writes else "begin"
        if not self.lite:
            level = "read committed" if writes else "repeatable read read only"
            how = postgresql().beginning(level, lock=0.75 * self._timeout, statement=statement)
        for again in (True, False):
            connection = self._engine.connect()
            try:
                self._wait(connection, self._timeout)
                connection.exec_driver_sql(how)
            except DBAPIError as error:
                connection.close()
                late = type(error.orig).__name__ == "OverdueAnswer"  # whoever asks has waited for long enough
                if not again or late or not error.connection_invalidated:
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            self._wait(connection, statement + 1.0)  # the server's own bound comes first
            return connection
        raise AssertionError("the second try returns or raises")

    def _wait(self, connection: sql.Connection, seconds: float) -> None:
        """Have this connection wait so long for each answer."""
        if not self.lite:
            self._driver(connection).patience = seconds

    def _driver(self, connection: sql.Connection) -> Any:
        return connection.connection.dbapi_connection

    def _undo(self, connection: sql.Connection, error: BaseException) -> None:
        """Roll back; a connection on which anything failed is not used again, as it may stay so."""
        if connection.invalidated:
            return
        if not self.lite and isinstance(error, (SQLAlchemyError, LedgerError)) and not _comes_again(error):
            connection.invalidate()
        else:
            self._wait(connection, self._timeout)
            connection.exec_driver_sql("rollback")

    def _commit(self, connection: sql.Connection, writes: bool) -> None:
        """Commit; UnknownFate where PostgreSQL gave up its wait for a standby, LedgerError where it undid."""
        if self.lite:
            connection.exec_driver_sql("commit")
            return
        driver = self._driver(connection)
        if driver.info.transaction_status.name == "INERROR":
            connection.invalidate()  # where it would say that it committed, and roll back
            raise LedgerError(f"the ledger {self.name} refused a part of a transaction; nothing was counted")
        driver.warned.clear()
        self._wait(connection, self._timeout)
        connection.exec_driver_sql("commit")
        warned = "; ".join(driver.warned)
        if driver.overdue:
            connection.invalidate()
        if writes and warned:
            raise UnknownFate(f"the ledger {self.name} does not promise what it committed: {warned}; {_SEND}")

    def again(self, work: Callable[[], T]) -> T:
        """Do ``work``, again where another transaction came between."""
        for left in range(4, -1, -1):  # five times in all
            try:
                return work()
            except LedgerError as error:
                if not _comes_again(error.__cause__) or not left or self.within:
                    raise
        raise AssertionError("the last try returns or raises")

    def insert(self, table: sql.Table) -> Any:
        """An insert that knows ``on conflict``."""
        if self.lite:
            return sqlite.insert(table)
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415 - 30 ms, of every start with a file

        return postgresql.insert(table)

    def _told(self, error: SQLAlchemyError, *, committing: bool) -> LedgerError:
        """Our error for one of the database's."""
        lines = str(getattr(error, "orig", None) or error).strip().splitlines()
        what = "cannot be used" if isinstance(error, OperationalError) else "refused"
        why = f"the ledger {self.name} {what}: {lines[0] if lines else error}"
        if "malformed" in why or "not a database" in why:
            why += "; put a backup in its place, then say so by calib-serve ledger restored"
        if getattr(getattr(error, "orig", None), "sqlstate", "") == _LOCKED:
            why += "; see pg_blocking_pids(), and who holds that lock"
        undone = _comes_again(error) or (self.lite and "full" in why)
        if committing and not undone:
            return UnknownFate(f"{why}; {_SEND}")
        return LedgerError(why)

    # --- what is known of it ---

    @property
    def kind(self) -> str:
        """The database's kind: SQLite or PostgreSQL."""
        return "SQLite" if self.lite else "PostgreSQL"

    def size(self) -> int:
        """The size on disk in bytes."""
        if self.lite:
            files = (Path(f"{self.path}{end}") for end in ("", "-wal"))
            return sum(path.stat().st_size for path in files if path.exists())
        with self.reading() as one:
            return int(one.scalar(sql.text("select pg_database_size(current_database())")) or 0)

    def lag(self) -> float | None:
        """The seconds by which the slowest standby is behind; None without one, or where unknown."""
        if self.lite:
            return None
        asked = "select max(extract(epoch from replay_lag)) from pg_stat_replication"
        with self.reading() as one:
            found = one.scalar(sql.text(asked))
        return None if found is None else float(found)

    def extent(self) -> str:
        """The database's size, and its standby's lag, for people."""
        lag = self.lag()
        return file_size(self.size()) + ("" if lag is None else f", its slowest standby {lag:.1f} s behind")

    def durability(self) -> str:
        """The promise that holds for what is acknowledged, for people."""
        if self.lite:
            return "this host's disk"
        if self._settings()["synchronous_standby_names"]:
            return "the disks of PostgreSQL's host and of a synchronous standby"
        return "the disk of PostgreSQL's host"

    def trouble(self) -> str | None:
        """A reason why committed transactions could be lost; LedgerError where it is unreadable."""
        if self.lite:
            return None
        found = self._settings()
        for name in ("fsync", "full_page_writes"):
            if found[name] == "off":
                return f"PostgreSQL runs with {name} = off: a crash of its host loses acknowledged labels"
        if table := found.get("unlogged"):
            return (
                f"the table {table} is unlogged: a crash of PostgreSQL empties it; alter table ... set logged"
            )
        return None

    def _settings(self) -> dict[str, str]:
        """PostgreSQL's settings that durability hangs on, and a table of ours that is unlogged."""
        asked = (
            "select name, setting from pg_settings "
            "where name in ('fsync', 'full_page_writes', 'synchronous_standby_names') "
            "union all select 'unlogged', relname from pg_class where relpersistence = 'u' "
            "and pg_table_is_visible(oid) and relname in ('label', 'tally', 'batch', 'held', 'ledger')"
        )
        with self.reading() as one:
            return dict(map(tuple, one.execute(sql.text(asked))))

    def timeline(self, connection: sql.Connection) -> str:
        """The timeline of a PostgreSQL, which a failover changes; empty where there is none."""
        return str(int(connection.scalar(sql.text(_TIMELINE)), 16)) if self._timelines else ""

    def damage(self) -> list[str]:
        """Damage found by reading a whole file; PostgreSQL finds it by itself, by checksums."""
        if not self.lite:
            return []
        with self.reading() as one:
            found = [str(row[0]) for row in one.exec_driver_sql("pragma integrity_check")]
        return [] if found == ["ok"] else found

    def backup(self, file: str | Path) -> int:
        """Write a snapshot of the database to a new file, while others use it; return its size in bytes.

        InputError where the file is there, and of a PostgreSQL, which has better ways.
        """
        if not self.lite:
            raise InputError(
                "a PostgreSQL is backed up by its own means: pg_dump, an archive of its WAL, or snapshots"
            )
        path = Path(file)
        if path.exists():
            raise InputError(f"{path} is there; name a new file")
        try:
            make_private(path)  # before there is anything to read in it; SQLite writes into an empty file
            with self._engine.connect() as connection:
                connection.exec_driver_sql("vacuum into ?", (str(path),))
            with path.open("rb") as written:
                os.fsync(written.fileno())
        except (SQLAlchemyError, OSError) as error:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise LedgerError(f"the backup {path} cannot be written: {error}") from error
        return path.stat().st_size

    def close(self) -> None:
        """Close files and connections."""
        self._engine.dispose()

    # --- connections ---

    def _make_file(self, *, must_exist: bool) -> os.stat_result:
        try:
            if must_exist and not self.path.is_file():
                raise LedgerError(f"there is no ledger at {self.path}")
            make_private(self.path)  # SQLite gives its journals the same mode
            return self.path.stat()
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be opened: {error}") from error

    def _check_file(self) -> None:
        """Raise LedgerError for another file than was opened: SQLite would write to a removed one."""
        try:
            same = os.path.samestat(self._opened, self.path.stat())
        except OSError:
            same = False
        if not same:
            raise LedgerError(f"the ledger {self.path} was removed or replaced while in use; start again")

    def _open_file(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=self._timeout, check_same_thread=False)
        try:
            connection.execute("pragma journal_mode = wal")
            # With "normal", the last commits before a power cut are lost, though they were acknowledged.
            connection.execute("pragma synchronous = full")
            connection.execute("pragma fullfsync = on")  # macOS: else what is synced lies in the disk's cache
            if connection.execute("pragma synchronous").fetchone() != (2,):
                raise LedgerError(f"SQLite does not sync commits of {self.path} to disk; use another build")
            connection.create_function("unhex", 1, bytes.fromhex, deterministic=True)  # SQLite's since 3.41
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> Any:
        import psycopg  # noqa: PLC0415 - imported already, to read the address

        connection = postgresql().open_connection(self._conninfo)
        try:
            connection.patience = self._timeout
            connection.execute(_TIMELINE)
            self._timelines = True
        except psycopg.Error:
            if connection.closed:
                raise
            # Not while it recovers, and of no other database with PostgreSQL's protocol.
            self._timelines = False
        return connection


def postgresql() -> ModuleType:
    """The module of PostgreSQL's connections, whose driver is an extra."""
    try:
        import calib_serve.ledger.postgresql as module  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise MissingDependency("psycopg", "postgres") from error
    return module


def _comes_again(error: BaseException | None) -> bool:
    """Whether PostgreSQL undid a transaction and asks to try it again."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", "") in _AGAIN
