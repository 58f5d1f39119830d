"""Files of scores: npz, npy; csv, tsv, jsonl, parquet.

Files of arrays (npz) hold ``SPLIT_logits`` and ``SPLIT_labels``, or ``logits`` and ``labels``;
``probs``, ``log_probs``, ``label_logits`` or ``label_probs`` may stand in place of ``logits``, and beside
them ``weights``, ``groups``, ``ids`` and ``class_names``. An npy file holds scores alone and is
memory-mapped. The columns of a table are known by their names, as ``calib_serve.scores.table`` says; its
column ``split`` names the part that a row belongs to. Text files may be separated by commas, semicolons (then
also with decimal commas), tabs or blanks, and packed by gzip.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.data_files import (
    ZIP_ERRORS,
    check_header,
    map_npy,
    open_parquet,
    parquet_errors,
    read_npz,
)
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.names import shown
from calib_serve.scores.raw_scores import RawScores, of_arrays, of_roles, texts_in
from calib_serve.scores.recognition import CellNames
from calib_serve.scores.rows import TEXTS, cells_of, is_json, naming, objects_of, open_lines
from calib_serve.scores.table import TAKEN, Asked, Roles, few, roles_of, said_by

_SCORES = (
    *("logits", "log_probs", "probs", "label_logits", "label_probs"),
    *("probabilities", "proba", "y_prob", "y_proba", "scores", "outputs", "y_score"),
)
"""Arrays of scores; the first that is there is read: logits tell more than the probabilities beside them."""
_LARGE = 8 << 20  # bytes of a text from which importing pyarrow takes less time than it saves


def read_source(path: Path, asked: Asked, split: str | None) -> RawScores:
    """Return one split of a file; what is ``asked`` to be beside the scores may be an npy file beside it.

    InputError where it cannot be read or has no such split or column; the message lists what it has.
    """
    label = asked.beside.get("label", "")
    if Path(label).suffix in _ENDINGS and not label.endswith(".npy"):
        raise InputError(f"{label} is a table: join it with the scores by an id first, as pandas' merge does")
    apart = {what: name for what, name in asked.beside.items() if name.endswith(".npy")}
    inside = {what: name for what, name in asked.beside.items() if what not in apart}
    with naming(path), _reading(path) as read:
        found = read(path, replace(asked, beside=inside), split)
    for what, name in apart.items():
        found = _beside(found, what, read_npy(Path(name)), name)
    return replace(found, name=path.name.partition(".")[0])


def _beside(found: RawScores, what: str, array: NDArray[Any], name: str) -> RawScores:
    if len(array) != len(found.values):
        raise ShapeError(
            f"{name} must hold one {what} for each of {len(found.values)} rows, got {array.shape}"
        )
    file = shown(Path(name).name)
    said = f"labels in {file}" if what == "label" else f"{file} {TAKEN[what]}"
    return replace(found, remarks=(*found.remarks, said), beside={**found.beside, what: array})


def read_npy(path: Path) -> NDArray[Any]:
    """The array of an npy file, memory-mapped; InputError for another file."""
    try:
        return map_npy(path)
    except ValueError as error:
        raise InputError(f"cannot read {path}: {error}") from error


@contextmanager
def _reading(path: Path) -> Iterator[_Read]:
    """The function that reads a file by its ending, whose errors become InputError."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, and scores are read from one file: write its parts into one")
    ending = "." + path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending not in _ENDINGS or (path.suffix == ".gz" and ending not in TEXTS):
        raise InputError(
            f"scores are read from {', '.join(_ENDINGS)} files, texts also packed (.gz), got {path.name!r}; "
            'write them with np.savez("scores.npz", logits=logits, labels=labels)'
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        yield _READERS.get(ending, _read_text)
    except InputError:
        raise
    except (*ZIP_ERRORS, csv.Error) as error:
        raise InputError(f"cannot read {path}: {str(error) or type(error).__name__}") from error


def _read_npy(path: Path, asked: Asked, split: str | None) -> RawScores:
    if split is not None:
        raise InputError(f"{path} holds one array, so there is no split {split!r}; leave the split out")
    if given := [*(asked.columns or ()), *asked.beside.values()]:
        raise InputError(f"{path} holds one array, and nothing called {given[0]!r}")
    return of_arrays(read_npy(path), {})


def _read_npz(path: Path, asked: Asked, split: str | None) -> RawScores:
    # Only what is asked for is unpacked: such files may hold gigabytes of inputs, too.
    known, names = read_npz(path, wanted={"class_names", "calibrated_by"}.__contains__)
    prefix = "" if split is None else f"{split}_"
    roles = _roles_in(path, names, asked, prefix)
    wanted = {prefix + name for name in (*roles.scores, *roles.beside.values())}
    arrays, _ = read_npz(path, wanted=wanted.__contains__)
    beside = {what: arrays[prefix + name] for what, name in roles.beside.items()}
    source = of_arrays(arrays[prefix + roles.scores[0]], beside)
    others = [name for name in roles.left_out if said_by(name) is not None]
    return replace(
        source,
        class_names=tuple(map(str, known["class_names"].tolist())) if "class_names" in known else (),
        outputs=roles.kind,
        roles=roles,
        calibrated_by=str(known.get("calibrated_by", "")),
        remarks=(*source.remarks, *([f"left out: {few(others)}"] if others else [])),
    )


def _roles_in(path: Path, names: Collection[str], asked: Asked, prefix: str) -> Roles:
    """The roles of a split's arrays, by their names without its own."""
    own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    if asked.columns is not None and len(asked.columns) > 1:
        raise InputError(f"{path} holds arrays, of which one holds the scores: name it alone (--columns)")
    called = next((name for name in asked.columns or _SCORES if name in own), None)
    if called is None:
        wanted = prefix + (asked.columns[0] if asked.columns else "logits")
        raise InputError(_no_scores(path, names, wanted))
    return roles_of(own, replace(asked, columns=(called,)))


def _no_scores(path: Path, names: Collection[str], wanted: str) -> str:
    said = f"{path} has no array {wanted}; it has {', '.join(sorted(names)) or 'none'}"
    inputs = [name for name in names if name.endswith(("inputs", "images"))]
    splits = _splits(names)
    if splits:
        said += f", so name a split: {', '.join(splits)} (--split, split=)"
    if inputs:
        said += f"; {inputs[0]} need their model: --model (calibrate_model)"
    if not inputs and not splits:
        said += f"; call the scores one of {', '.join(_SCORES)}, or say which (--columns)"
    return said


def _splits(names: Collection[str]) -> list[str]:
    # Longest first: cal_label_logits is of the split cal.
    endings = sorted((f"_{score}" for score in _SCORES), key=len, reverse=True)
    found = ((n, next((e for e in endings if n.endswith(e)), None)) for n in names)
    return sorted({n.removesuffix(e) for n, e in found if e})


def _of_table(roles: Roles, table: dict[str, NDArray[Any]], asked: Asked, split: str | None) -> RawScores:
    """The rows of a split of a table, whose columns' roles are known but for those called as a class."""
    if not len(next(iter(table.values()), ())):
        raise InputError("it has column names but no rows" if table else "it has no column of scores")
    kept = np.ones(len(next(iter(table.values()))), bool)
    if roles.split is not None:
        # As texts: a split may be called 1 and be read as a number.
        of = np.array([str(one) for one in table[roles.split].tolist()])
        known = sorted(set(of.tolist()))
        if split is None:
            raise InputError(f"there are the splits {', '.join(known)}; name one (--split, split=)")
        if split not in known:
            raise InputError(f"there are the splits {', '.join(known)}, got {split!r}")
        kept = of == split
    elif split is not None:
        raise InputError(f"there is no column split, so there is no split {split!r}; leave the split out")
    table = table if kept.all() else {name: column[kept] for name, column in table.items()}
    # Of a table of languages, id is Indonesian.
    named = {*texts_in(None if roles.label is None else table[roles.label])}
    if of_classes := ({*table} & named) - {*roles.scores}:
        roles = replace(roles_of([*table], asked, called=of_classes), label=roles.label)
    return of_roles(roles, table, asked, {}, CellNames(1).take(kept))


def _read_text(path: Path, asked: Asked, split: str | None) -> RawScores:
    with open_lines(path) as lines:
        if is_json(path):
            (names, rows), commas = _json_cells(lines), False
        else:
            names, rows, mark = cells_of(lines, row_names=True)
            # Beside commas that part columns, a comma in a number may be either.
            commas = mark != ","
        check_header(path, names)
        # Taken for names, the first row of numbers would be lost.
        if any(_is_fraction(name) for name in names):
            raise InputError("the first line holds numbers; add a line with the names of the columns")
        roles = roles_of(names, asked)
        plain = not (is_json(path) or commas or path.suffix == ".gz") and path.stat().st_size >= _LARGE
        fast = _read_fast(path, names, roles) if plain else None
        table = fast or _columns(rows, names, roles, commas=commas)
    return _of_table(roles, table, asked, split)


def _read_fast(path: Path, names: Sequence[str], roles: Roles) -> dict[str, NDArray[Any]] | None:
    """Read columns as ``_columns`` does, several times faster; None without pyarrow, and where it refuses.

    ``_columns`` then reads the text again: it names the row that is wrong.
    """
    try:
        import pyarrow  # noqa: PLC0415 - an extra that few need
        from pyarrow import csv as arrow_csv  # noqa: PLC0415
    except ImportError:
        return None
    kept = sorted(roles.read, key=names.index)
    numbers = {*roles.scores, roles.weight}
    types = {name: pyarrow.float64() if name in numbers else pyarrow.string() for name in kept}
    try:
        table = arrow_csv.read_csv(
            path,
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types, include_columns=kept, null_values=[], strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowException:
        return None
    found = {}
    for name in kept:
        column = table[name].combine_chunks()
        if name in numbers:
            found[name] = _plain(column)
        else:  # one text for all equal ones
            coded = column.dictionary_encode()
            found[name] = _texts(coded.dictionary.to_pylist())[np.from_dlpack(coded.indices)]
    return found


def _columns(
    rows: Iterator[list[Any]], names: Sequence[str], roles: Roles, *, commas: bool
) -> dict[str, NDArray[Any]]:
    """Read columns in pieces: numbers of scores and weights, and the texts of the others."""
    kept = sorted(roles.read, key=names.index)
    numbers = {*roles.scores, roles.weight}
    place = [names.index(name) for name in kept]
    parts: list[list[NDArray[Any]]] = [[] for _ in kept]
    same: dict[Any, Any] = {}  # one text for all equal ones
    while piece := list(islice(rows, 1 << 14)):
        for k, (name, at) in enumerate(zip(kept, place, strict=True)):
            cells = [row[at] for row in piece]
            parts[k].append(
                _floats(cells, commas) if name in numbers else _texts([same.setdefault(c, c) for c in cells])
            )
    return {name: _joined(part) for name, part in zip(kept, parts, strict=True)}


def _floats(cells: list[Any], commas: bool) -> NDArray[Any]:
    """Numbers where all cells are numbers, else the cells: a reader of numbers then names the bad cell.

    ``commas``: a comma is a decimal one, as spreadsheets write where the language does.
    """
    first = cells[0] if cells and isinstance(cells[0], list) else ["none"]
    nested = not any(isinstance(one, (dict, str)) for one in first)
    try:
        found = np.array(cells, np.float64)
        return found if found.ndim < 3 else _texts(cells)
    except (TypeError, ValueError) as error:
        if nested:
            raise InputError(f"lists of scores must be of numbers, and equally long: {error}") from None
    try:
        return np.array([cell.replace(",", ".") for cell in cells], np.float64) if commas else _texts(cells)
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
    rows = objects_of(lines, alone="scores")
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


def _read_parquet(path: Path, asked: Asked, split: str | None) -> RawScores:
    """Read a Parquet file without the columns that pandas keeps its row names in."""
    with open_parquet(path) as file, parquet_errors(path):
        schema = file.schema_arrow
        pandas = (schema.pandas_metadata or {}).get("index_columns", ())
        roles = roles_of(schema.names, asked, index=[one for one in pandas if isinstance(one, str)])
        kept = sorted(roles.read, key=schema.names.index)
        columns = file.read(columns=kept)
        table = {name: _array(columns[name], name) for name in kept}
    return _of_table(roles, table, asked, split)


def _array(column: Any, name: str) -> NDArray[Any]:
    """Convert an Arrow column to an array (n,), or lists to (n, K); missing values become None."""
    if any(one in str(column.type) for one in ("struct<", "map<")):
        return _texts(column.to_pylist())
    column = column.combine_chunks()
    if "list<" not in str(column.type):
        return _plain(column)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    if column.null_count or len(np.unique(lengths)) > 1:
        odd = int(np.argmax(np.nan_to_num(lengths, nan=-1.0) != lengths[0])) if len(lengths) else 0
        raise InputError(
            f"column {name!r}, row {odd + 1}: the list is missing, or not of {lengths[0]:g} numbers"
        )
    flat = column.flatten()
    if flat.null_count:
        raise InputError(
            f"column {name!r}: a score is missing in {flat.null_count} places; leave such rows out"
        )
    return _plain(flat).reshape(len(column), -1)


def _plain(column: Any) -> NDArray[Any]:
    """Convert an Arrow array that holds no lists to an array (n,); missing values become None."""
    if not column.null_count and str(column.type).startswith(("int", "uint", "float", "double")):
        return np.asarray(np.from_dlpack(column))
    return np.asarray(column.to_numpy(zero_copy_only=False))  # this imports pandas, where there is one


_Read = Callable[[Path, Asked, Union[str, None]], RawScores]
_READERS: dict[str, _Read] = {".npz": _read_npz, ".npy": _read_npy, ".parquet": _read_parquet}
_ENDINGS = (".npz", ".npy", *TEXTS, ".parquet")
