"""Logits and labels of a table that is larger than memory, or lies in a database.

They are read once, in Arrow batches, into a file without a name in the folder for temporary files, from which
fits read them in chunks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calib_serve.engines import Engine, open_engine
from calib_serve.errors import InputError

__all__ = ["LISTS", "TableScores", "from_lists", "is_list", "read_table"]

LISTS = ("logits", "log_probs", "probs")
"""Columns of lists: a row is a sample's scores."""


class TableScores(NamedTuple):
    """Scores (n, K), memory-mapped; labels (n,), or None; the names of their columns, and what they are."""

    scores: NDArray[np.floating[Any]]
    labels: NDArray[Any] | None
    names: tuple[str, ...]
    scores_are: str = "logits"


def read_table(
    table: str, *, split: str | None, engine: str | None = None, password_file: str | Path | None = None
) -> TableScores:
    """Read a table of an ``engine``, or the Parquet files of a folder or pattern.

    Its column ``label`` holds labels, ``split`` names parts of it, and scores are one column of numbers a
    class, or one column of lists, ``logits``, ``probs`` or ``log_probs``, beside which there may be others.
    InputError where they are not there, are not numbers, or are missing (NULL) in a row.
    """
    with open_engine(engine, password_file=password_file) as opened:
        rows = opened.table(table)
        if split is not None:
            rows = _of_split(opened, rows, table, split)
        elif "split" in rows.columns:
            raise InputError(f"{table} has a column split: name one of its splits")
        scores, kind = _scores_of(rows, table)
        label = ["label"] if "label" in rows.columns else []
        asked = rows.select(*scores, *label)
        with tempfile.TemporaryFile(prefix="calib-serve-scores-") as file:
            found, labels, width = _spooled(opened.batches(asked, f"read {table}"), file, scores, table)
        names = () if kind else tuple(scores)
        if width == 0:
            raise InputError(f"{table} has column names but no rows")
    return TableScores(found, np.concatenate(labels) if label else None, names, kind or "logits")


def _of_split(engine: Engine, rows: Any, table: str, split: str) -> Any:
    if "split" not in rows.columns:
        raise InputError(f"{table} has no column split, so there is no split {split!r}; leave the split out")
    known = engine.rows(rows.select("split").distinct().order_by("split"), "look for its splits")
    names = [str(one["split"]) for one in known]
    if split not in names:
        raise InputError(f"{table} has the splits {', '.join(names)}, got {split!r}")
    return rows.filter(rows["split"] == split).drop("split")


def _scores_of(rows: Any, table: str) -> tuple[list[str], str]:
    """The columns of scores; what they are, where they are lists, else an empty text."""
    types = rows.schema()
    lists = [name for name in LISTS if name in types and types[name].is_array()]
    if lists:
        _refuse_several(lists, table)
        return lists, lists[0]
    scores = [name for name in rows.columns if name != "label"]
    if not scores:
        raise InputError(f"{table} has no column of logits beside label and split")
    if wrong := [name for name in scores if not types[name].is_numeric() or types[name].is_boolean()]:
        raise InputError(
            f"{table}: logits are numbers, and {', '.join(wrong[:5])} is {types[wrong[0]]}; where there are "
            "columns of other things, put the logits into one column of lists named logits"
        )
    return scores, ""


def _spooled(
    batches: Iterator[Any], file: IO[bytes], scores: list[str], table: str
) -> tuple[NDArray[np.floating[Any]], list[NDArray[Any]], int]:
    """The scores of all batches in ``file``, memory-mapped, the labels, and how many scores a row has."""
    labels: list[NDArray[Any]] = []
    rows = width = 0
    try:
        for batch in batches:
            block = _block(batch, scores, f"{table}, after row {rows}")
            width = width or block.shape[1]
            if block.shape[1] != width:
                raise InputError(f"{table}: rows have {width} and {block.shape[1]} logits")
            file.write(block.tobytes())
            rows += len(block)
            if "label" in batch.schema.names:
                _refuse_missing(batch["label"], f"{table}: the label", rows)
                labels.append(batch["label"].to_numpy(zero_copy_only=False))
        file.flush()
    except OSError as error:
        raise InputError(
            f"the logits of {table} do not fit into {tempfile.gettempdir()}: {error}; name a folder with "
            "room by TMPDIR"
        ) from error
    if not rows:
        return np.empty((0, 0)), labels, 0
    return np.memmap(file, np.float64, "r", shape=(rows, width)), labels, width


def _block(batch: Any, scores: list[str], where: str) -> NDArray[np.float64]:
    """The scores (n, K) of one batch."""
    columns = [batch[name] for name in scores]
    for name, column in zip(scores, columns, strict=True):
        _refuse_missing(column, f"{where}: {name}", len(batch))
    if len(columns) == 1 and is_list(columns[0]):
        lengths = np.unique(columns[0].value_lengths().to_numpy(zero_copy_only=False))
        flat = columns[0].flatten()
        _refuse_missing(flat, f"{where}: {scores[0]}", len(batch))
        if len(lengths) > 1:
            raise InputError(f"{where}: lists of {lengths[0]} and {lengths[-1]} logits")
        return np.asarray(flat.to_numpy(zero_copy_only=False), np.float64).reshape(len(batch), -1)
    return np.stack(
        [np.asarray(column.to_numpy(zero_copy_only=False), np.float64) for column in columns], axis=1
    )


def _refuse_several(lists: list[str], table: str) -> None:
    if len(lists) > 1:
        raise InputError(f"{table} has the columns {' and '.join(lists)}: leave one of them out")


def from_lists(table: Any, lists: list[str], where: str) -> NDArray[np.float64]:
    """The scores (n, K) of an Arrow table with a column of ``lists``, InputError as ``read_table``."""
    _refuse_several(lists, where)
    if not len(table):
        raise InputError(f"{where} has column names but no rows")
    return _block(table.select(lists).combine_chunks().to_batches()[0], lists, where)


def is_list(column: Any) -> bool:
    """Whether a row of this column of Arrow's is a list."""
    return "list<" in str(column.type)


def _refuse_missing(column: Any, what: str, rows: int) -> None:
    if column.null_count:
        raise InputError(f"{what} is missing (NULL) in {column.null_count} of {rows} rows; leave them out")
