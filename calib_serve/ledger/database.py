"""The database of a ledger: a file of SQLite, or PostgreSQL; transactions, and their errors as ours.

What is acknowledged is durable: SQLite writes with ``synchronous = full``, and PostgreSQL commits
synchronously, also where its configuration says otherwise.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sql
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from calib_serve.core.addresses import holds_password, redacted
from calib_serve.core.errors import InputError, LedgerError, MissingDependency, UnknownFate
from calib_serve.core.files import make_private
from calib_serve.core.text import file_size

T = TypeVar("T")

_AGAIN = ("40001", "40P01")  # serialization failure, deadlock: PostgreSQL asks to try again
_SCHEMES = ("postgresql://", "postgres://")
_LITE = "sqlite:///"


def is_postgresql(where: str) -> bool:
    """Whether this is the address of a PostgreSQL, and not the name of a file.

    InputError for the address of anything else.

    >>> is_postgresql("postgresql://db/labels"), is_postgresql("ledger.db")
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
    if is_postgresql(where):
        _conninfo(where, 0.0)


class Database:
    """A database at ``where``; safe to use from threads. ``timeout``: seconds to wait for it, or a lock.

    ``lite``: whether it is SQLite. ``timeline``: that of a PostgreSQL, which a failover changes; else empty.
    ``must_exist``: a file that is not there is an error.
    """

    def __init__(self, where: str, *, timeout: float = 10.0, must_exist: bool = False) -> None:
        self.lite = not is_postgresql(where)
        self.name = redacted(where)
        self.timeline = ""
        self._mine, self._turn = threading.local(), threading.RLock()
        # Transactions begin by our own statement: "begin immediate" takes the writer's lock at once, where
        # one that reads first would fail to write while others do.
        more: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_timeout": timeout}
        if self.lite:
            self.path = Path(where.removeprefix(_LITE))
            self._timeout = timeout
            self._opened = self._make_file(must_exist=must_exist)
            dialect, connect, more["poolclass"] = "sqlite", self._open_file, QueuePool
        else:
            self._conninfo = _conninfo(where, timeout)
            dialect, connect = "postgresql+psycopg", self._connect
            # A failover closes connections: each is tried before it is trusted.
            more["pool_pre_ping"] = True
        self._engine = sql.create_engine(f"{dialect}://", creator=connect, **more)

    # --- transactions ---

    @contextmanager
    def writing(self) -> Iterator[sql.Connection]:
        """Do everything inside in one transaction, seen by others when it ends and undone where it fails."""
        # A file has one writer: threads of this process wait here, in turn, not in its busy handler.
        with (
            self._turn if self.lite else nullcontext(),
            self._begun("begin immediate" if self.lite else "begin", writes=True) as connection,
        ):
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sql.Connection]:
        """Read a snapshot of one moment."""
        with self._begun("begin" if self.lite else "begin isolation level repeatable read read only") as one:
            yield one

    @property
    def within(self) -> bool:
        """Whether this thread is in a transaction."""
        return getattr(self._mine, "connection", None) is not None

    @contextmanager
    def _begun(self, how: str, *, writes: bool = False) -> Iterator[sql.Connection]:
        if self.within:
            yield self._mine.connection
            return
        committing = False
        if self.lite:
            self._check_file()
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql(how)
                self._mine.connection = connection
                try:
                    yield connection
                except BaseException:
                    connection.exec_driver_sql("rollback")
                    raise
                else:
                    # An error of the commit itself leaves open whether the server did it.
                    committing = writes
                    connection.exec_driver_sql("commit")
                finally:
                    self._mine.connection = None
        except SQLAlchemyError as error:
            raise self._told(error, committing=committing) from error

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
        undone = _comes_again(error) or (self.lite and "full" in why)
        if committing and not undone:
            return UnknownFate(f"{why}; whether this was counted is not known: send it again")
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

    def trouble(self) -> str | None:
        """A reason why committed transactions could be lost; LedgerError where it is unreadable."""
        if self.lite:
            return None
        with self.reading() as one:
            off = [
                name
                for name in ("fsync", "full_page_writes")
                if one.scalar(sql.text(f"show {name}")) == "off"
            ]
        if off:
            return f"PostgreSQL runs with {off[0]} = off: a crash of its host loses acknowledged labels"
        return None

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
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> Any:
        import psycopg  # noqa: PLC0415 - imported already, to read the address

        connection = psycopg.connect(self._conninfo)
        try:
            with connection.cursor() as one:
                one.execute("select current_setting('synchronous_commit') = 'off'")
                if (one.fetchone() or [False])[0]:
                    one.execute("set synchronous_commit = on")
                try:
                    one.execute("select substring(pg_walfile_name(pg_current_wal_lsn()) for 8)")
                    self.timeline = str(int((one.fetchone() or ["0"])[0], 16))
                except psycopg.Error:  # other databases with PostgreSQL's protocol have no timelines
                    connection.rollback()
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection


def _conninfo(where: str, timeout: float) -> str:
    """The address as libpq takes it; InputError for one that holds a password, or is invalid."""
    try:
        from psycopg import ProgrammingError  # noqa: PLC0415 - an optional extra
        from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency("psycopg", "postgres") from error
    try:
        given = conninfo_to_dict(where)
    except ProgrammingError as error:
        raise InputError(f"{redacted(where)!r} is no address of a PostgreSQL") from error
    if "password" in given or holds_password(where):
        raise InputError(
            "the ledger's address holds a password, which others could read; leave it out, and give it by "
            "PGPASSFILE or PGPASSWORD, as to psql"
        )
    # A host that is gone sends no reset: without these, TCP waits for a quarter of an hour.
    waits: dict[str, Any] = {
        "connect_timeout": max(round(timeout), 2),
        "tcp_user_timeout": round(3000 * timeout),
        "application_name": "calib-serve",
    }
    return make_conninfo(**{**waits, **given})


def _comes_again(error: BaseException | None) -> bool:
    """Whether PostgreSQL undid a transaction and asks to try it again."""
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", "") in _AGAIN
