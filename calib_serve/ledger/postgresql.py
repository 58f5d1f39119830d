"""Connections to PostgreSQL on which every answer has a bound, and no state of a session is relied on.

So a pooler may give each transaction another server connection: nothing is prepared, and what a transaction
needs is set within it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo, errors

from calib_serve.core.addresses import holds_password, redacted
from calib_serve.core.errors import InputError

R = TypeVar("R")

_LOOK = 0.1  # seconds between looks whether an answer is late
_GRACE = 1.0  # seconds for which a cancelled statement may go on, before its connection is closed


class OverdueAnswer(psycopg.OperationalError):
    """An answer that did not come in time, also after it was cancelled."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that waits ``patience`` seconds for an answer, then cancels, then closes itself.

    ``overdue``: whether it ever cancelled: that may come later, and meet another statement.
    ``warned``: the server's warnings: a commit whose wait for a standby is cancelled brings one, no error.
    """

    patience = float("inf")
    overdue = False

    warned: list[str]

    def note_warning(self, said: errors.Diagnostic) -> None:
        """Keep a warning of the server."""
        if said.severity_nonlocalized == "WARNING":
            self.warned.append(said.message_primary or "a warning")

    def wait(self, gen: Any, interval: float = _LOOK, timeout: float | None = None) -> Any:
        """Wait for an answer of the server."""
        return super().wait(self._in_time(gen), _LOOK)

    def _in_time(self, gen: Generator[Any, Any, R]) -> Generator[Any, Any, R]:
        until = time.monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if time.monotonic() >= until:
                    until += _GRACE
                    self._cancel_or_close()
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _cancel_or_close(self) -> None:
        if self.overdue:
            self.pgconn.finish()
            raise OverdueAnswer(f"no answer in {self.patience + _GRACE:.0f} s")
        self.overdue = True
        # In a thread: it asks by a connection of its own, which a server that hangs does not answer either.
        threading.Thread(target=self._cancel, name="calib-cancel", daemon=True).start()

    def _cancel(self) -> None:
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=_GRACE)


def open_connection(address: str) -> BoundedConnection:
    """Open a connection that commits by itself where no transaction was begun, and prepares no statements."""
    connection = BoundedConnection.connect(address, autocommit=True, prepare_threshold=None)
    connection.warned = []
    connection.add_notice_handler(connection.note_warning)
    return connection


def beginning(how: str, *, lock: float, statement: float) -> str:
    """The statement that begins a transaction with all that it needs, in one round trip.

    ``how``: the isolation level. ``lock``, ``statement``: seconds to wait for a lock, and for a statement.
    """
    # As it is acknowledged once it is committed: whatever a server, role or reload says. A client whose host
    # is gone holds its locks until the server gives its transaction up.
    local = {
        "lock_timeout": f"{lock * 1000:.0f}",
        "statement_timeout": f"{statement * 1000:.0f}",
        "idle_in_transaction_session_timeout": f"{max(30.0, 2 * statement) * 1000:.0f}",
    }
    kept = "case current_setting('synchronous_commit') when 'remote_apply' then 'remote_apply' else 'on' end"
    told = [f"set_config('{name}', '{value}', true)" for name, value in local.items()]
    told.append(f"set_config('synchronous_commit', {kept}, true)")
    return f"begin isolation level {how}; select {', '.join(told)}"


def checked_address(where: str, timeout: float) -> str:
    """The address as libpq takes it; InputError for one that holds a password, or is invalid."""
    try:
        given = conninfo.conninfo_to_dict(where)
    except psycopg.ProgrammingError as error:
        raise InputError(f"{redacted(where)!r} is no address of a PostgreSQL") from error
    if "password" in given or holds_password(where):
        raise InputError(
            "the ledger's address holds a password, which others could read; leave it out, and give it by "
            "PGPASSFILE or PGPASSWORD, as to psql"
        )
    waits: dict[str, Any] = {
        "connect_timeout": max(round(timeout / 2), 2),
        # A host that is gone sends no reset: without this, TCP waits for a quarter of an hour.
        "tcp_user_timeout": round(3000 * timeout),
        "application_name": "calib-serve",
        "client_encoding": "utf8",
    }
    return conninfo.make_conninfo(**{**waits, **given})
