"""The views of a ledger, written as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import text

from calib_serve.core.errors import InputError, MissingDependency
from calib_serve.core.files import write_atomically
from calib_serve.ledger.ledger import Ledger
from calib_serve.ledger.views import MEANINGS


def export_ledger(ledger: Ledger, folder: str | Path) -> dict[str, int]:
    """Write ``labels.parquet``, ``sums.parquet`` and ``incidents.parquet``; return the rows of each.

    They are the views of these names, of one moment.

    Args:
        ledger: Ledger whose views they are.
        folder: Folder of the files, made where there is none.

    Raises:
        InputError: Where the folder cannot be written.
        MissingDependency: Where pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - an optional extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency("pyarrow") from error
    kinds = {"text": pa.string(), "number": pa.float64(), "count": pa.int64(), "yes or no": pa.bool_()}
    folder, rows = Path(folder), {}
    ledger.roll_up()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ledger.database.reading() as connection:
            for view, columns in MEANINGS.items():
                schema = pa.schema(
                    [
                        pa.field(name, kinds[kind], metadata={"description": meaning})
                        for name, (kind, meaning) in columns.items()
                    ]
                )
                asked = text(f"select {', '.join(columns)} from {view}")  # noqa: S608 - our own names
                found = connection.execute(asked, execution_options={"yield_per": 50_000})
                rows[view] = 0
                with (
                    write_atomically(folder / f"{view}.parquet") as partial,
                    parquet.ParquetWriter(partial, schema) as file,
                ):
                    for some in found.mappings().partitions():
                        read = [
                            {name: _value(value, columns[name][0]) for name, value in row.items()}
                            for row in some
                        ]
                        file.write_table(pa.Table.from_pylist(read, schema))
                        rows[view] += len(read)
    except OSError as error:
        raise InputError(f"cannot write into {folder}: {error}") from error
    return rows


def _value(value: Any, kind: str) -> Any:
    return bool(value) if kind == "yes or no" and value is not None else value
