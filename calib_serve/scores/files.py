"""Files and tables of scores: npz, npy, safetensors; csv, tsv, jsonl, parquet, feather; tables of engines.

Array files (npz, safetensors) hold ``SPLIT_logits`` and ``SPLIT_labels``, or ``logits`` and ``labels``;
``probs``, ``log_probs``, ``label_logits`` or ``label_probs`` may stand in place of ``logits``, and beside
them ``weights``, ``groups``, ``ids`` and ``class_names``. An npy file holds scores alone and is
memory-mapped. The columns of a table are known by their names, as ``calib_serve.scores.table`` says; its
column ``split`` names the part that a row belongs to. Text files may be separated by commas, semicolons (then
also with decimal commas), tabs or blanks, and packed by gzip.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from calib_serve.core.data_files import ZIP_ERRORS, check_header, map_npy, open_parquet, read_npz
from calib_serve.core.errors import InputError, MissingDependency, ShapeError
from calib_serve.core.names import shown
from calib_serve.scores.databases import open_engine
from calib_serve.scores.kinds import Outputs
from calib_serve.scores.raw_scores import RawScores, of_arrays, of_roles
from calib_serve.scores.rows import TEXTS, cells_of, is_json, objects_of, open_lines
from calib_serve.scores.table import TAKEN, Roles, lists_first, roles_of

# The first array that a file has is read: logits tell more than the probabilities beside them.
_SCORES: Mapping[str, Outputs | None] = {
    "logits": "logits",
    "log_probs": "log_probs",
    "probs": "probabilities",
    "label_logits": "label_logits",
    "label_probs": "label_probabilities",
    **dict.fromkeys(("probabilities", "proba", "y_prob", "y_proba"), "probabilities"),
    **dict.fromkeys(("scores", "outputs", "y_score"), None),
}
_BESIDE = {
    "label": ("labels", "label", "y", "y_true", "targets", "target"),
    "weight": ("weights", "weight", "sample_weight"),
    "group": ("groups", "group"),
    "id": ("ids", "id"),
}
_OF_INPUTS = "fit, or report, with --model MODEL --data FILE (calibrate_model)"


@dataclass(frozen=True)
class _Asked:
    """The split and columns asked of a file, and the names of its label, weight and group."""

    split: str | None
    columns: Sequence[str] | None
    beside: Mapping[str, str | None]

    def roles(self, names: Sequence[str], index: Sequence[str] = ()) -> Roles:
        """Find the role of each column."""
        return roles_of(names, columns=self.columns, index=index, **dict[str, Any](self.beside))


def read_source(
    where: str,
    *,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    engine: str | None = None,
    password_file: str | Path | None = None,
    label: str | None = None,
    weight: str | None = None,
    group: str | None = None,
) -> RawScores:
    """Return one split of a file, a folder or pattern of parquet files, or a table of an ``engine``.

    ``label``, ``weight`` and ``group``: each a column or array of the file by name, or an npy file beside it.
    InputError where it cannot be read or has no such split or column; the message lists what it has.
    """
    path = Path(where)
    if engine is None and password_file is not None:
        raise InputError("a password goes with the address of a database (engine=); files need none")
    asked = {"label": label, "weight": weight, "group": group}
    apart = {what: name for what, name in asked.items() if name is not None and name.endswith(".npy")}
    inside = {what: name for what, name in asked.items() if what not in apart}
    if engine is not None or holds_files(path):
        if apart:
            raise InputError(
                f"the rows of {where} come in any order, so what belongs to each cannot lie in a file of its "
                f"own ({', '.join(apart.values())}): put it into a column"
            )
        found = _read_table(where, engine, password_file, _Asked(split, columns, inside))
    else:
        found = _read_file(path, _Asked(split, columns, inside))
    for what, name in apart.items():
        found = _beside(found, what, read_npy(Path(name)), name)
    return _named(found, path.name.partition(".")[0])


def _named(found: RawScores, name: str) -> RawScores:
    return replace(found, name=name)


def _beside(found: RawScores, what: str, array: NDArray[Any], name: str) -> RawScores:
    if len(array) != len(found.values):
        raise ShapeError(
            f"{name} must hold one {what} for each of {len(found.values)} rows, got {array.shape}"
        )
    placed: dict[str, Any] = {f"{what}s": array}
    return replace(found, **placed)


def holds_files(path: Path) -> bool:
    """Whether this is a folder, or a pattern, of files; their rows come in any order."""
    return path.is_dir() or (not path.is_file() and any(c in str(path) for c in "*?["))


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an npy file, memory-mapped; InputError for another file."""
    try:
        return map_npy(path)
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}") from error


def _read_file(path: Path, asked: _Asked) -> RawScores:
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    ending = f".{ending}"
    if ending not in _ENDINGS or (path.suffix == ".gz" and ending not in TEXTS):
        raise InputError(
            f"scores are read from {', '.join(_ENDINGS)} files, texts also packed (.gz), got {path.name!r}; "
            'write them with np.savez("scores.npz", logits=logits, labels=labels)'
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        if ending in (".npz", ".npy", ".safetensors"):
            if asked.columns is not None:
                raise InputError(f"{path} holds arrays, which have no columns to choose by name (--columns)")
            return _ARRAYS[ending](path, asked)
        read = _TABLES.get(ending, _read_text)
        return read(path, asked)
    except InputError as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from error
    except (*ZIP_ERRORS, SafetensorError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {str(error) or type(error).__name__}") from error


def _read_npy(path: Path, asked: _Asked) -> RawScores:
    if asked.split is not None:
        raise InputError(f"{path} holds one array, so there is no split {asked.split!r}; leave the split out")
    if given := [name for name in asked.beside.values() if name is not None]:
        raise InputError(f"{path} holds one array, and nothing called {given[0]!r}")
    return of_arrays(read_npy(path), **dict.fromkeys(_BESIDE))


def _read_npz(path: Path, asked: _Asked) -> RawScores:
    # Only what is asked for is unpacked: such files may hold gigabytes of inputs, too.
    kept = {_in_split(name, asked.split) for name in _wanted(asked)} | {"class_names", "calibrated_by"}
    arrays, names = read_npz(path, wanted=kept.__contains__)
    return _from_arrays(path, names, arrays.__getitem__, asked)


def _read_safetensors(path: Path, asked: _Asked) -> RawScores:
    with safe_open(path, framework="numpy") as arrays:
        return _from_arrays(path, list(arrays.keys()), arrays.get_tensor, asked)


def _wanted(asked: _Asked) -> set[str]:
    return {*_SCORES, *chain(*_BESIDE.values()), *(name for name in asked.beside.values() if name)}


def _from_arrays(
    path: Path,
    names: Collection[str],
    get: Callable[[str], NDArray[Any]],
    asked: _Asked,
) -> RawScores:
    split = asked.split
    called = next((score for score in _SCORES if _in_split(score, split) in names), None)
    if called is None:
        raise InputError(_no_scores(path, names, split))
    beside: dict[str, Any] = {}
    said = []
    for what, known in _BESIDE.items():
        name = asked.beside.get(what)
        if name is not None and _in_split(name, split) not in names:
            raise InputError(
                f"{path} has no array {_in_split(name, split)}; it has {', '.join(sorted(names))}"
            )
        found = [one for one in ((name,) if name else known) if _in_split(one, split) in names]
        beside[what] = get(_in_split(found[0], split)) if found else None
        if found and what in TAKEN:
            said.append(f"{shown(found[0])} {TAKEN[what]}")
    class_names = tuple(map(str, get("class_names").tolist())) if "class_names" in names else ()
    source = of_arrays(get(_in_split(called, split)), **beside)
    by = str(get("calibrated_by")) if "calibrated_by" in names else ""
    remarks = (*source.remarks, *said)
    return replace(
        source, class_names=class_names, outputs=_SCORES[called], calibrated_by=by, remarks=remarks
    )


def _no_scores(path: Path, names: Collection[str], split: str | None) -> str:
    inputs = [name for name in names if name.endswith(("inputs", "images"))]
    splits = _splits(names)
    return (
        f"{path} has no array {_in_split('logits', split)}; it has {', '.join(sorted(names)) or 'none'}"
        + (f", so name a split: {', '.join(splits)} (--split, split=)" if splits else "")
        + (f"; {inputs[0]} need their model: {_OF_INPUTS}" if inputs else "")
        + ("" if inputs or splits else f"; name the scores one of {', '.join(_SCORES)}")
    )


def _in_split(what: str, split: str | None) -> str:
    return what if split is None else f"{split}_{what}"


def _splits(names: Collection[str]) -> list[str]:
    # Longest first: cal_label_logits is of the split cal.
    endings = sorted((f"_{score}" for score in _SCORES), key=len, reverse=True)
    found = ((n, next((e for e in endings if n.endswith(e)), None)) for n in names)
    return sorted({n.removesuffix(e) for n, e in found if e})


def _of_table(
    roles: Roles, table: Mapping[str, NDArray[Any]], split: str | None, first: int = 1
) -> RawScores:
    """The rows of a split of a table, whose columns' roles are known."""
    if roles.split is not None:
        # As texts: a split may be called 1 and be read as a number.
        of = np.array([str(one) for one in table[roles.split].tolist()])
        known = sorted(set(of.tolist()))
        if split is None:
            raise InputError(f"there are the splits {', '.join(known)}; name one (--split, split=)")
        if split not in known:
            raise InputError(f"there are the splits {', '.join(known)}, got {split!r}")
        table = {name: column[of == split] for name, column in table.items()}
    elif split is not None:
        raise InputError(f"there is no column split, so there is no split {split!r}; leave the split out")
    return of_roles(roles, table, first=first)


def _read_text(path: Path, asked: _Asked) -> RawScores:
    with open_lines(path) as lines:
        names, rows = _json_cells(lines) if is_json(path) else cells_of(lines, row_names=True)
        check_header(path, names)
        # Taken for names, the first row of numbers would be lost.
        if any(_is_fraction(name) for name in names):
            raise InputError("the first line holds numbers; add a line with the names of the columns")
        roles = asked.roles(names)
        table = _columns(rows, names, roles)
    if not len(next(iter(table.values()), ())):
        raise InputError("it has column names but no rows" if roles.scores else "it has no column of scores")
    return _of_table(roles, table, asked.split)


def _columns(rows: Iterator[list[Any]], names: Sequence[str], roles: Roles) -> dict[str, NDArray[Any]]:
    """Read columns in pieces: numbers of scores and weights, and the texts of the others."""
    kept = [name for name in (*roles.scores, *roles.others, roles.split) if name is not None]
    numbers = {*roles.scores, roles.weight}
    place = [names.index(name) for name in kept]
    parts: list[list[NDArray[Any]]] = [[] for _ in kept]
    same: dict[Any, Any] = {}  # one text for all equal ones
    while piece := list(islice(rows, 1 << 14)):
        for k, (name, at) in enumerate(zip(kept, place, strict=True)):
            cells = [row[at] for row in piece]
            parts[k].append(
                _floats(cells) if name in numbers else _texts([same.setdefault(c, c) for c in cells])
            )
    return {name: _joined(part) for name, part in zip(kept, parts, strict=True)}


def _floats(cells: list[Any]) -> NDArray[Any]:
    """Numbers where all cells are numbers, else the cells: a reader of numbers then names the bad cell."""
    if cells and isinstance(cells[0], list):
        try:
            return np.array(cells, np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"lists of scores must be of numbers, and equally long: {error}") from None
    try:
        return np.array(cells, np.float64)
    except (TypeError, ValueError):
        pass
    try:
        # Spreadsheets write decimal commas where the language does.
        return np.array([cell.replace(",", ".") for cell in cells], np.float64)
    except (AttributeError, ValueError):
        return _texts(cells)


def _texts(cells: list[Any]) -> NDArray[Any]:
    found = np.empty(len(cells), object)
    found[:] = cells
    return found


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0)


def _json_cells(lines: Iterator[str]) -> tuple[list[str], Iterator[list[Any]]]:
    """The names of the first row, and the cells of all rows, each of which must have these names."""
    rows = objects_of(lines)
    first = next(rows, {})
    names = list(first)
    return names, (_values(names, row, number) for number, row in enumerate(chain([first], rows), 1))


def _values(names: Sequence[str], row: Mapping[str, Any], number: int) -> list[Any]:
    if lacks := [name for name in names if name not in row]:
        raise InputError(f"row {number} lacks {', '.join(lacks[:5])}")
    return [row[name] for name in names]


def _is_fraction(text: str) -> bool:
    """Whether a text is a number that names no class, such as -0.25."""
    try:
        return float(text) != int(float(text)) or "." in text
    except (ValueError, OverflowError):  # no number; or infinity, or NaN
        return False


def _read_parquet(path: Path, asked: _Asked) -> RawScores:
    with open_parquet(path) as file:
        return _of_arrow(file.schema_arrow, lambda names: file.read(columns=names), path, asked)


def _read_feather(path: Path, asked: _Asked) -> RawScores:
    try:
        from pyarrow import feather  # noqa: PLC0415 - an extra that few need
    except ImportError as error:
        raise MissingDependency("pyarrow") from error
    whole = feather.read_table(path)
    check_header(path, whole.column_names)
    return _of_arrow(whole.schema, whole.select, path, asked)


def _of_arrow(
    schema: Any,
    read: Callable[[list[str]], Any],
    path: Path,
    asked: _Asked,
) -> RawScores:
    """Read an Arrow table without the columns that pandas keeps its row names in."""
    from pyarrow import ArrowException  # noqa: PLC0415

    index = [one for one in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(one, str)]
    roles = asked.roles(schema.names, index)
    roles = lists_first(roles, {name for name in schema.names if is_list(schema.field(name).type)})
    kept = [name for name in (*roles.scores, *roles.others, roles.split) if name is not None]
    try:
        table = read(kept)
        if not len(table):
            raise InputError(f"{path} has column names but no rows")
        arrays = {name: _array(table[name], name) for name in kept}
    except ArrowException as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return _of_table(roles, arrays, asked.split)


def is_list(kind: Any) -> bool:
    """Whether rows of an Arrow type are lists."""
    return "list<" in str(kind)


def _array(column: Any, name: str, before: int = 0) -> NDArray[Any]:
    """Convert an Arrow column to an array (n,), or lists to (n, K); missing values become None."""
    if not is_list(column.type):
        found = column.to_numpy() if hasattr(column, "chunks") else column.to_numpy(zero_copy_only=False)
        return np.asarray(found)
    column = column.combine_chunks() if hasattr(column, "chunks") else column
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if column.null_count or len(np.unique(lengths)) > 1:
        odd = int(np.argmax(np.nan_to_num(lengths, nan=-1.0) != lengths[0])) if len(lengths) else 0
        raise InputError(
            f"column {name!r}, row {before + odd + 1}: the list is missing, or not of {lengths[0]:g} numbers"
        )
    flat = column.flatten()
    if flat.null_count:
        raise InputError(
            f"column {name!r}: a score is missing in {flat.null_count} places; leave such rows out"
        )
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), -1)


def _read_table(table: str, engine: str | None, password_file: str | Path | None, asked: _Asked) -> RawScores:
    """Read a table of an engine, or the parquet files of a folder or pattern, once, in Arrow batches.

    The scores go into a file without a name in the folder for temporary files, which fits read in chunks.
    """
    with open_engine(engine, password_file=password_file) as opened:
        rows = opened.table(table)
        types = rows.schema()
        roles = asked.roles(list(rows.columns))
        roles = lists_first(roles, {name for name in rows.columns if types[name].is_array()})
        if roles.split is not None or asked.split is not None:
            rows = _of_split(opened, rows, table, asked.split, roles.split)
        if not roles.scores:
            raise InputError(f"{table} has no column of scores beside label and split")
        wrong = [
            n
            for n in roles.scores
            if not (types[n].is_numeric() or types[n].is_array()) or types[n].is_boolean()
        ]
        if wrong:
            raise InputError(
                f"{table}: scores are numbers, and {', '.join(wrong[:5])} is {types[wrong[0]]}; name the "
                "columns of the classes alone (--columns, columns=)"
            )
        kept = [*roles.scores, *roles.others]
        batches = opened.batches(rows.select(*kept), f"read {table}")
        values, beside = _spooled(batches, roles, table)
    return _of_spooled(roles, values, beside)


def _of_split(engine: Any, rows: Any, table: str, split: str | None, column: str | None) -> Any:
    if column is None:
        raise InputError(f"{table} has no column split, so there is no split {split!r}; leave the split out")
    known = engine.rows(rows.select(column).distinct().order_by(column), "look for its splits")
    names = [str(one[column]) for one in known]
    if split not in names:
        got = "; name one (--split, split=)" if split is None else f", got {split!r}"
        raise InputError(f"{table} has the splits {', '.join(names)}{got}")
    return rows.filter(rows[column] == split).drop(column)


def _spooled(
    batches: Iterator[Any], roles: Roles, table: str
) -> tuple[NDArray[np.floating[Any]], dict[str, NDArray[Any]]]:
    """The scores of all batches, memory-mapped in a file without a name, and the columns beside them.

    The file goes with the process, however that ends.
    """
    beside: dict[str, list[NDArray[Any]]] = {name: [] for name in roles.others}
    rows = width = 0
    try:
        # Closing it writes what is left, so that a full disk may be noticed there.
        with tempfile.TemporaryFile(prefix="calib-serve-scores-") as file:
            for batch in batches:
                block = _block(batch, roles, rows)
                width = width or block.shape[1]
                if block.shape[1] != width:
                    raise InputError(f"{table}: rows have {width} and {block.shape[1]} scores")
                file.write(np.ascontiguousarray(block, np.float64).tobytes())
                rows += len(block)
                for name, parts in beside.items():
                    parts.append(_array(batch[name], name, rows))
            if not rows:
                raise InputError(f"{table} has column names but no rows")
            file.flush()
            values = np.memmap(file, np.float64, "r", shape=(rows, width))
    except OSError as error:
        raise InputError(
            f"the scores of {table} do not fit into {tempfile.gettempdir()}: {error}; name a folder with "
            "room by TMPDIR"
        ) from error
    return values, {name: np.concatenate(parts) for name, parts in beside.items()}


def _block(batch: Any, roles: Roles, rows: int) -> NDArray[Any]:
    """The scores (n, K) of a batch that begins behind ``rows``."""
    arrays = [_array(batch[name], name, rows) for name in roles.scores]
    return arrays[0] if arrays[0].ndim == 2 else np.stack(_without_gaps(arrays, roles, rows), axis=1)


def _without_gaps(arrays: list[NDArray[Any]], roles: Roles, rows: int) -> list[NDArray[np.float64]]:
    for name, array in zip(roles.scores, arrays, strict=True):
        numbers = array.astype(np.float64)
        if np.isnan(numbers).any():
            row = rows + int(np.isnan(numbers).argmax()) + 1
            raise InputError(f"column {name!r}, row {row}: the score is missing (NULL); leave such rows out")
    return [array.astype(np.float64) for array in arrays]


def _of_spooled(
    roles: Roles, values: NDArray[np.floating[Any]], beside: Mapping[str, NDArray[Any]]
) -> RawScores:
    """Make a source of memory-mapped columns without copies; only the first rows are checked."""
    if len(roles.scores) == 1 and values.shape[1] > 1:  # a column of lists
        found = of_roles(roles, {**beside, roles.scores[0]: values}, first=1)
        return replace(found, values=values)
    # Roles of columns are found from the first rows: all rows would not fit into memory.
    few = {name: values[: 1 << 16, k] for k, name in enumerate(roles.scores)}
    shown = {name: column[: 1 << 16] for name, column in beside.items()}
    found = of_roles(roles, {**few, **shown}, first=1)
    whole = {"labels": roles.label, "weights": roles.weight, "groups": roles.group, "ids": roles.id}
    columns: dict[str, Any] = {what: None if n is None else beside[n] for what, n in whole.items()}
    if roles.label_columns:
        columns["labels"] = np.stack([beside[name] for name in roles.label_columns], axis=1)
    return replace(found, values=values, **columns)


_ARRAYS = {".npz": _read_npz, ".npy": _read_npy, ".safetensors": _read_safetensors}
_TABLES = {".parquet": _read_parquet, ".feather": _read_feather}
_ENDINGS = (*_ARRAYS, *TEXTS, *_TABLES)
