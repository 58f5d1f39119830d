"""Engines that read tables: DuckDB in this process for Parquet files, or a database by its address."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from calib_serve.core.addresses import holds_password, password_of, redacted
from calib_serve.core.errors import CalibServeError, InputError, MissingDependency, ServerError

PASSWORD = "CALIB_SERVE_ENGINE_PASSWORD"  # noqa: S105  the name of a variable

_MEMORY = "1GB"  # ten million predictions with labels need 0.8 (benchmarks/audit.py); more goes to disk
_FILES = ("duckdb", "pyspark")  # engines that read Parquet files themselves


class Engine:
    """An open connection to an engine, with errors that name it.

    Args:
        connection: Connection of ibis.
        name: Name of the engine in errors.
        files: Whether it has no tables, so that every name is of files.
        secret: Password, which never shows in its errors; None without one.
    """

    def __init__(self, connection: Any, name: str, *, files: bool = False, secret: str | None = None) -> None:
        self.connection, self.name, self._files, self._secret = connection, name, files, secret

    def table(self, where: str) -> Any:
        """The table of this name, ``schema.table``, or the Parquet files of a path, folder or pattern.

        InputError where there is none, or it cannot be read.
        """
        if self._files or where.endswith(".parquet") or any(c in where for c in "/\\*?"):
            if self.connection.name not in _FILES:
                raise InputError(
                    f"{where} is a file, and {self.name} reads tables; leave --engine out to read Parquet "
                    "files with DuckDB"
                )
            with self.asking(f"read {where}"):
                return self._with_zones(self.connection.read_parquet(_pattern(where, self.connection.name)))
        parts = where.split(".")
        if not all(parts) or len(parts) > 3:
            raise InputError(f"a table is NAME, SCHEMA.NAME or CATALOG.SCHEMA.NAME, got {where!r}")
        path = None if len(parts) == 1 else tuple(parts[:-1]) if len(parts) == 3 else parts[0]
        with self.asking(f"find the table {where}"):
            return self._with_zones(self.connection.table(parts[-1], database=path))

    def _with_zones(self, table: Any) -> Any:
        """The table with its moments as times with a zone.

        ibis takes Spark's TIMESTAMP for a time without a zone, and does not know DuckDB's TIMESTAMPTZ_NS.
        """
        if self.connection.name == "duckdb":
            unknown = [name for name, kind in table.schema().items() if "TIMESTAMPTZ_NS" in str(kind)]
            return table.mutate(**{name: table[name].cast("timestamp('UTC')") for name in unknown})
        if self.connection.name != "pyspark":
            return table
        schema = self.connection.raw_sql(self.connection.compile(table.limit(0))).schema
        moments = [one.name for one in schema if one.dataType.typeName() == "timestamp"]
        return table.mutate(**{name: table[name].cast("timestamp('UTC')") for name in moments})

    def rows(self, expression: Any, doing: str) -> list[dict[str, Any]]:
        """The rows of a small result, each by column.

        Args:
            expression: Query of ibis.
            doing: Work in progress, for errors.

        Raises:
            InputError: Where the engine fails.
        """
        with self.asking(doing):
            found: list[dict[str, Any]] = expression.to_pyarrow().to_pylist()
        return found

    @contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Turn errors of the engine inside into an InputError that names what it was ``doing``."""
        try:
            # What ibis asks of an engine in an older way is not for our users to mend.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except CalibServeError:
            raise
        except ImportError as error:
            raise MissingDependency(error.name or str(error), "audit") from error
        except Exception as error:  # each engine has an error tree of its own
            raise InputError(f"{self.name} cannot {doing}: {_said(error, self._secret)}") from None


@contextmanager
def open_engine(address: str | None = None) -> Iterator[Engine]:
    """Open DuckDB in this process, or another engine that ibis knows; close it at the end.

    Its password is what the environment says by ``PASSWORD``.

    Args:
        address: Address of the engine, such as postgres://user@host/database; None: DuckDB.

    Raises:
        InputError: Where the address holds a password, or is none.
        MissingDependency: Where the engine's driver is not installed.
        ServerError: Where the engine does not answer.
    """
    try:
        import ibis  # noqa: F401, PLC0415  an extra that few need
    except ImportError as error:
        raise MissingDependency("ibis", "audit") from error
    if address is None:
        with ExitStack() as stack:
            yield _duckdb(stack)
        return
    if holds_password(address):
        raise InputError(
            f"the engine's address {redacted(address)} holds a password, which others could read; leave it "
            f"out, and give it by {PASSWORD}, or in a file by {PASSWORD}_FILE"
        )
    if "://" not in address:
        raise InputError(f"an engine's address is such as postgres://user@host/database, got {address!r}")
    secret = password_of("engine's", PASSWORD, os.environ)
    # A notebook's own session would be stopped with ours: there is one for a process.
    foreign = _session_of_others()
    connection = _connected(address, secret)
    try:
        yield Engine(connection, redacted(address), secret=secret)
    finally:
        if connection.name != "pyspark" or not foreign:
            connection.disconnect()


def _duckdb(stack: ExitStack) -> Engine:
    engine = Engine(None, "DuckDB", files=True)
    with engine.asking("start"):
        import ibis  # noqa: PLC0415

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="calib-serve-audit-"))
        options: dict[str, Any] = {"memory_limit": _MEMORY, "temp_directory": folder}
        engine.connection = ibis.duckdb.connect(preserve_insertion_order=False, **options)
        stack.callback(engine.connection.disconnect)
        _set_up(engine.connection)
    return engine


def _set_up(duckdb: Any) -> None:
    duckdb.raw_sql("SET TimeZone = 'UTC'")
    duckdb.raw_sql("SET enable_progress_bar = false")  # our own progress is told, and asked for


def _connected(address: str, secret: str | None) -> Any:
    """Open a connection; its errors never tell the password."""
    import ibis  # noqa: PLC0415

    scheme = urlsplit(address).scheme.replace("postgresql", "postgres")
    given = {} if secret is None else {"password": secret}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if scheme == "pyspark":
                return _spark(address)
            connection = ibis.connect(address, **given)
            if scheme == "duckdb":
                _set_up(connection)
            return connection
    except ImportError as error:
        raise MissingDependency(f"ibis-framework[{scheme}]") from error
    except Exception as error:  # each engine has an error tree of its own
        raise ServerError(f"cannot open {redacted(address)}: {_said(error, secret)}") from None


def _session_of_others() -> bool:
    """Whether this process has a Spark session already, which must not be stopped."""
    loaded = sys.modules.get("pyspark.sql")
    return loaded is not None and loaded.SparkSession.getActiveSession() is not None


def _spark(address: str) -> Any:
    """Open a Spark session with the options behind the ``?``; ibis would set static ones too late."""
    import ibis  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    options = {"spark.sql.session.timeZone": "UTC", **dict(parse_qsl(urlsplit(address).query))}
    builder = SparkSession.builder
    for name, value in options.items():
        builder = builder.config(name, value)
    return ibis.pyspark.connect(builder.getOrCreate())


def _pattern(where: str, engine: str) -> str:
    """The engine's pattern for a path: for a folder all Parquet files in it, however deep."""
    path = Path(where)
    if "://" in where or (not path.exists() and any(c in where for c in "*?[")):
        return where
    if not path.exists():
        raise InputError(f"{where} does not exist")
    if path.is_file():
        if path.stat().st_size == 0:
            raise InputError(f"{where} is empty: no Parquet file")
        return where
    if not next(path.rglob("*.parquet"), None):
        raise InputError(f"the folder {where} holds no Parquet file")
    return where if engine == "pyspark" else str(path / "**" / "*.parquet")


def _said(error: Exception, secret: str | None) -> str:
    """The first line of an engine's error, shortened, without the password."""
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return (text.replace(secret, "***") if secret else text)[:300]
