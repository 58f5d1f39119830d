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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from calib_serve.core.data_files import ZIP_ERRORS, check_header, map_npy, open_parquet, read_npz
from calib_serve.core.errors import InputError, MissingDependency, ShapeError
from calib_serve.scores.databases import open_engine
from calib_serve.scores.joins import LabelsById
from calib_serve.scores.raw_scores import RawScores, of_arrays, of_roles, texts_in
from calib_serve.scores.recognition import CellNames
from calib_serve.scores.rows import TEXTS, cells_of, is_json, objects_of, open_lines
from calib_serve.scores.table import Roles, few, roles_of, said_by

_SCORES = (
    *("logits", "log_probs", "probs", "label_logits", "label_probs"),
    *("probabilities", "proba", "y_prob", "y_proba", "scores", "outputs", "y_score"),
)
"""Arrays of scores; the first that is there is read: logits tell more than the probabilities beside them."""
_LARGE = 8 << 20  # bytes of a text from which importing pyarrow takes less time than it saves
_RolesIn = Callable[..., Roles]
"""Finds the roles of a table's columns by their names, and by which of them are names of rows."""
_Table = tuple[Roles, dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class _Asked:
    """The split and columns asked of a file, and the names of its label, weight and group.

    ``classes``: names of classes that are known; ``told``: whether the kind of scores is;
    ``expected``: columns of an artifact, which are taken where all are there; ``by_id``: labels of another
    file.
    """

    split: str | None
    columns: Sequence[str] | None
    beside: Mapping[str, str | None]
    classes: Sequence[str] = ()
    told: bool = False
    expected: Sequence[str] = ()
    by_id: LabelsById | None = None

    def roles(self, names: Sequence[str], index: Sequence[str] = (), called: Collection[str] = ()) -> Roles:
        """Find the role of each column."""
        beside: dict[str, Any] = {**self.beside, "called": called, "index": index}
        beside |= {} if self.by_id is None else {"id": self.by_id.on, "apart": True}
        return roles_of(names, columns=self.columns, expected=self.expected, classes=self.classes, **beside)


def read_source(
    where: str,
    *,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    expected: Sequence[str] = (),
    classes: Sequence[str] = (),
    told: bool = False,
    engine: str | None = None,
    password_file: str | Path | None = None,
    label: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    source: str | None = None,
    on: str | None = None,
) -> RawScores:
    """Return one split of a file, a folder or pattern of parquet files, or a table of an ``engine``.

    ``label`` to ``source``: each a column or array of the file by name, or an npy file beside it;
    with ``on``, a column of ids in both, ``label`` is a table.
    InputError where it cannot be read or has no such split or column; the message lists what it has.
    """
    path = Path(where)
    if engine is None and password_file is not None:
        raise InputError("a password goes with the address of a database (engine=); files need none")
    if on is None and label is not None and Path(label).suffix in _ENDINGS and not label.endswith(".npy"):
        raise InputError(
            f"{label} is a table: say by which ids its labels are those of the scores (schema --on, on=)"
        )
    by_id = None if on is None else labels_by_id(label, on)
    asked = {"label": label if on is None else None, "weight": weight, "group": group, "source": source}
    apart = {what: name for what, name in asked.items() if name is not None and name.endswith(".npy")}
    inside = {what: name for what, name in asked.items() if what not in apart}
    wanted = _Asked(split, columns, inside, classes, told, expected, by_id)
    if engine is not None or holds_files(path):
        if apart:
            raise InputError(
                f"the rows of {where} come in any order, so what belongs to each cannot lie in a file of its "
                f"own ({', '.join(apart.values())}): put it into a column"
            )
        found = _read_table(where, engine, password_file, wanted)
    else:
        with _reading(path) as read:
            if read in _ARRAYS.values():
                found = read(path, wanted)
            else:
                roles, table = read(path, wanted.roles)
                found = _of_table(roles, table, wanted, typed=_is_typed(path))
    for what, name in apart.items():
        found = _beside(found, what, read_npy(Path(name)), name)
    return replace(found, name=path.name.partition(".")[0])


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


def labels_by_id(label: str | None, on: str) -> LabelsById:
    """The labels of a table, by their ids."""
    if label is None:
        raise InputError(
            f"schema --on {on} (on=) is of labels in a table of their own: say --labels FILE (labels=)"
        )
    path = Path(label)

    def roles(names: Sequence[str], index: Sequence[str] = ()) -> Roles:
        found = roles_of(names, columns=(), id=on, index=index).label
        others = [name for name in names if name != on and name not in index]
        if found is None and len(others) != 1:
            raise InputError(f"which column holds the labels? There are {few(others)}: call it 'label'")
        return Roles((), label=found or others[0], id=on)

    with _reading(path) as read:
        if read in _ARRAYS.values():
            raise InputError("labels with ids are read from tables, such as CSV, JSON lines or Parquet")
        found, table = read(path, roles)
        called = f"{found.label} of {path.name}"
        return LabelsById.of(on, called, table[on], table[str(found.label)], typed=_is_typed(path))


def _is_typed(path: Path) -> bool:
    """Whether a file tells 1 from "1"."""
    return not path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """The function that reads a file by its ending; its errors, and those of what is read, name the file."""
    ending = "." + path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending not in _ENDINGS or (path.suffix == ".gz" and ending not in TEXTS):
        raise InputError(
            f"scores are read from {', '.join(_ENDINGS)} files, texts also packed (.gz), got {path.name!r}; "
            'write them with np.savez("scores.npz", logits=logits, labels=labels)'
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        yield {**_ARRAYS, **_TABLES}.get(ending, _read_text)
    except InputError as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from error
    except (*ZIP_ERRORS, SafetensorError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {str(error) or type(error).__name__}") from error


def _read_npy(path: Path, asked: _Asked) -> RawScores:
    if asked.split is not None:
        raise InputError(f"{path} holds one array, so there is no split {asked.split!r}; leave the split out")
    if given := [name for name in (*(asked.columns or ()), *asked.beside.values()) if name is not None]:
        raise InputError(f"{path} holds one array, and nothing called {given[0]!r}")
    return of_arrays(read_npy(path))


def _read_npz(path: Path, asked: _Asked) -> RawScores:
    # Only what is asked for is unpacked: such files may hold gigabytes of inputs, too.
    known, names = read_npz(path, wanted={"class_names", "calibrated_by"}.__contains__)
    roles = _roles_in(path, names, asked)
    kept = {_in_split(name, asked.split) for name in (*roles.scores, *roles.others)}
    arrays, _ = read_npz(path, wanted=kept.__contains__)
    return _from_arrays(roles, {**known, **arrays}.__getitem__, names, asked)


def _read_safetensors(path: Path, asked: _Asked) -> RawScores:
    with safe_open(path, framework="numpy") as arrays:
        names = list(arrays.keys())
        return _from_arrays(_roles_in(path, names, asked), arrays.get_tensor, names, asked)


def _roles_in(path: Path, names: Collection[str], asked: _Asked) -> Roles:
    """The roles of a split's arrays, by their names."""
    own = [name for name in names if asked.split is None or name.startswith(f"{asked.split}_")]
    own = [name if asked.split is None else name.removeprefix(f"{asked.split}_") for name in own]
    if asked.columns is not None and len(asked.columns) > 1:
        raise InputError(f"{path} holds arrays, of which one holds the scores: name it alone (--columns)")
    called = next((name for name in asked.columns or _SCORES if name in own), None)
    if called is None:
        wanted = _in_split(asked.columns[0] if asked.columns else "logits", asked.split)
        raise InputError(_no_scores(path, names, asked.split, wanted))
    return replace(asked, columns=(called,)).roles(own)


def _from_arrays(
    roles: Roles, get: Callable[[str], NDArray[Any]], names: Collection[str], asked: _Asked
) -> RawScores:
    called = {name: get(_in_split(name, asked.split)) for name in (*roles.scores, *roles.others)}
    scores = called.pop(roles.scores[0])
    found = {what: called[name] for what, name in roles.beside.items()}
    others = [name for name in roles.left_out if said_by(name) is not None]
    said = [f"left out: {few(others)}"] if others else []
    kept = np.ones(len(scores), bool)
    if asked.by_id is not None:
        kept, found["label"], remark = asked.by_id.join(called[str(roles.id)], typed=True)
        roles, said = replace(roles, label=asked.by_id.called), [remark, *said]
    source = of_arrays(scores, **found)
    return replace(
        source if kept.all() else source.take(kept),
        class_names=tuple(map(str, get("class_names").tolist())) if "class_names" in names else (),
        outputs=roles.kind,
        roles=roles,
        calibrated_by=str(get("calibrated_by")) if "calibrated_by" in names else "",
        remarks=(*source.remarks, *said),
    )


def _no_scores(path: Path, names: Collection[str], split: str | None, wanted: str) -> str:
    inputs = [name for name in names if name.endswith(("inputs", "images"))]
    splits = _splits(names)
    return (
        f"{path} has no array {wanted}; it has {', '.join(sorted(names)) or 'none'}"
        + (f", so name a split: {', '.join(splits)} (--split, split=)" if splits else "")
        + (f"; {inputs[0]} need their model: --model (calibrate_model)" if inputs else "")
        + (
            ""
            if inputs or splits
            else f"; call the scores one of {', '.join(_SCORES)}, or say which (--columns)"
        )
    )


def _in_split(what: str, split: str | None) -> str:
    return what if split is None else f"{split}_{what}"


def _splits(names: Collection[str]) -> list[str]:
    # Longest first: cal_label_logits is of the split cal.
    endings = sorted((f"_{score}" for score in _SCORES), key=len, reverse=True)
    found = ((n, next((e for e in endings if n.endswith(e)), None)) for n in names)
    return sorted({n.removesuffix(e) for n, e in found if e})


def _of_table(
    roles: Roles, table: dict[str, NDArray[Any]], asked: _Asked, *, typed: bool = True
) -> RawScores:
    """The rows of a split of a table, whose columns' roles are known but for those called as a class."""
    split = asked.split
    kept, roles, table, said = _with_labels(roles, table, asked, typed=typed)
    if roles.split is not None:
        # As texts: a split may be called 1 and be read as a number.
        of = np.array([str(one) for one in table[roles.split].tolist()])
        known = sorted(set(of.tolist()))
        if split is None:
            raise InputError(f"there are the splits {', '.join(known)}; name one (--split, split=)")
        if split not in known:
            raise InputError(f"there are the splits {', '.join(known)}, got {split!r}")
        kept &= of == split
    elif split is not None:
        raise InputError(f"there is no column split, so there is no split {split!r}; leave the split out")
    if table and not kept.any():
        raise InputError(f"no row of the split {split!r} has a label")
    table = table if kept.all() else {name: column[kept] for name, column in table.items()}
    # Of a table of languages, id is Indonesian.
    named = {*texts_in(None if roles.label is None else table[roles.label])}
    if called := ({*table} & named) - {*roles.scores}:
        own = [name for name in table if asked.by_id is None or name != asked.by_id.called]
        roles = replace(asked.roles(own, called=called), label=roles.label)
    found = of_roles(roles, table, classes=asked.classes, place=CellNames(1).take(kept), told=asked.told)
    return replace(found, remarks=(*said, *found.remarks))


def _with_labels(
    roles: Roles, table: dict[str, NDArray[Any]], asked: _Asked, *, typed: bool = True
) -> tuple[NDArray[np.bool_], Roles, dict[str, NDArray[Any]], list[str]]:
    """Columns with that of the labels by id, where these are in another file, and which rows have one."""
    if asked.by_id is None:
        return np.ones(len(next(iter(table.values()), ())), bool), roles, table, []
    kept, labels, said = asked.by_id.join(table[str(roles.id)], typed=typed)
    called = asked.by_id.called
    return kept, replace(roles, label=called), {**table, called: labels}, [said]


def _read_text(path: Path, roles_in: _RolesIn) -> _Table:
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
        roles = roles_in(names)
        plain = not (is_json(path) or commas or path.suffix == ".gz") and path.stat().st_size >= _LARGE
        table = (_read_fast(path, names, roles) if plain else None) or _columns(
            rows, names, roles, commas=commas
        )
    if not len(next(iter(table.values()), ())):
        raise InputError("it has column names but no rows" if table else "it has no column of scores")
    return roles, table


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
        if name in numbers:
            found[name] = _plain(table[name])
        else:  # one text for all equal ones
            coded = table[name].combine_chunks().dictionary_encode()
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


def _read_parquet(path: Path, roles_in: _RolesIn) -> _Table:
    with open_parquet(path) as file:
        return _of_arrow(file.schema_arrow, lambda names: file.read(columns=names), path, roles_in)


def _read_feather(path: Path, roles_in: _RolesIn) -> _Table:
    try:
        from pyarrow import feather  # noqa: PLC0415 - an extra that few need
    except ImportError as error:
        raise MissingDependency("pyarrow") from error
    whole = feather.read_table(path)
    check_header(path, whole.column_names)
    return _of_arrow(whole.schema, whole.select, path, roles_in)


def _of_arrow(
    schema: Any,
    read: Callable[[list[str]], Any],
    path: Path,
    roles_in: _RolesIn,
) -> _Table:
    """Read an Arrow table without the columns that pandas keeps its row names in."""
    from pyarrow import ArrowException  # noqa: PLC0415

    index = [one for one in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(one, str)]
    roles = roles_in(schema.names, index)
    kept = sorted(roles.read, key=schema.names.index)
    try:
        table = read(kept)
        if not len(table):
            raise InputError(f"{path} has column names but no rows")
        arrays = {name: _array(table[name], name) for name in kept}
    except ArrowException as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return roles, arrays


def _array(column: Any, name: str, before: int = 0) -> NDArray[Any]:
    """Convert an Arrow column to an array (n,), or lists to (n, K); missing values become None."""
    if any(one in str(column.type) for one in ("struct<", "map<")):
        return _texts(column.to_pylist())
    if "list<" not in str(column.type):
        return _plain(column)
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
    return _plain(flat).reshape(len(column), -1)


def _plain(column: Any) -> NDArray[Any]:
    """Convert an Arrow column that holds no lists to an array (n,); missing values become None."""
    chunked = hasattr(column, "chunks")
    if not column.null_count and str(column.type).startswith(("int", "uint", "float", "double")):
        return np.asarray(np.from_dlpack(column.combine_chunks() if chunked else column))
    # This imports pandas, where there is one.
    return np.asarray(column.to_numpy() if chunked else column.to_numpy(zero_copy_only=False))


def _read_table(table: str, engine: str | None, password_file: str | Path | None, asked: _Asked) -> RawScores:
    """Read a table of an engine, or the parquet files of a folder or pattern, once, in Arrow batches.

    The scores go into a file without a name in the folder for temporary files, which fits read in chunks.
    """
    with open_engine(engine, password_file=password_file) as opened:
        rows = opened.table(table)
        types = rows.schema()
        roles = asked.roles(list(rows.columns))
        if roles.split is not None or asked.split is not None:
            rows = _of_split(opened, rows, table, asked.split, roles.split)
        lists = tuple(name for name in roles.scores if types[name].is_nested())
        numbers = tuple(n for n in roles.scores if types[n].is_numeric() and not types[n].is_boolean())
        wrong = [name for name in roles.scores if name not in (*lists, *numbers)]
        if not roles.asked and roles.kind is None:
            kept = lists or numbers
            out = {name: "it holds no numbers" for name in roles.scores if name not in kept}
            roles, wrong = replace(roles, scores=kept, left_out={**roles.left_out, **out}), []
        if not roles.scores or len(lists) > 1:
            raise InputError(
                f"{table} has {few(lists) if lists else 'none'} as columns of scores: say which "
                "(--columns, columns=)"
            )
        if wrong:
            raise InputError(
                f"{table}: scores are numbers, and {', '.join(wrong[:5])} is {types[wrong[0]]}; name the "
                "columns of the classes alone (--columns, columns=)"
            )
        batches = opened.batches(rows.select(*roles.scores, *roles.others), f"read {table}")
        if lists and not (types[lists[0]].is_array() and types[lists[0]].value_type.is_numeric()):
            parts = [{n: _array(batch[n], n) for n in batch.schema.names} for batch in batches if len(batch)]
            if not parts:
                raise InputError(f"{table} has column names but no rows")
            whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            return _of_table(replace(roles, split=None), whole, replace(asked, split=None))
        values, beside = _spooled(batches, roles, table)
    there, roles, beside, said = _with_labels(roles, beside, asked)
    if not there.all():
        values, beside = values[there], {name: column[there] for name, column in beside.items()}
    found = _of_spooled(roles, values, beside, told=asked.told)
    return replace(found, remarks=(*said, *found.remarks))


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
    return arrays[0] if arrays[0].ndim == 2 else np.stack([one.astype(np.float64) for one in arrays], axis=1)


def _of_spooled(
    roles: Roles, values: NDArray[np.floating[Any]], beside: Mapping[str, NDArray[Any]], *, told: bool
) -> RawScores:
    """Make a source of memory-mapped columns without copies; only the first rows are checked."""
    if len(roles.scores) == 1 and values.shape[1] > 1:  # a column of lists
        found = of_roles(roles, {**beside, roles.scores[0]: values}, told=told)
        return replace(found, values=values)
    # Roles of columns are found from the first rows: all rows would not fit into memory.
    first_rows = {name: values[: 1 << 16, k] for k, name in enumerate(roles.scores)}
    beside_few = {name: column[: 1 << 16] for name, column in beside.items()}
    found = of_roles(roles, {**first_rows, **beside_few}, place=CellNames(1), told=told)
    whole = {f"{what}s": getattr(roles, what) for what in ("label", "weight", "group", "id", "source")}
    columns: dict[str, Any] = {what: None if n is None else beside[n] for what, n in whole.items()}
    if roles.label_columns:
        columns["labels"] = np.stack([beside[name] for name in roles.label_columns], axis=1)
    return replace(found, values=values, **columns)


_ARRAYS = {".npz": _read_npz, ".npy": _read_npy, ".safetensors": _read_safetensors}
_TABLES = {".parquet": _read_parquet, ".feather": _read_feather}
_ENDINGS = (*_ARRAYS, *TEXTS, *_TABLES)
