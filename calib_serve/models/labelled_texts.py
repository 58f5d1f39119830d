"""Labelled texts, from a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calib_serve.core.errors import InputError
from calib_serve.core.names import shown
from calib_serve.scores import read_rows

_TEXT, _PAIR, _LABEL, _SPLIT = "text", "text_pair", "label", "split"
_ENDINGS = (".csv", ".parquet", ".jsonl")


@dataclass(frozen=True)
class LabelledTexts:
    """``texts`` (n,), their second texts ``pairs`` (n,) or (), and ``labels`` (n,) as they are written.

    A label is a class's name or id; of a multi-label model those that are true, with ";" between. ``source``:
    where they came from.
    """

    source: str
    texts: tuple[str, ...]
    pairs: tuple[str, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)


def read_texts(path: str | Path, split: str | None = None) -> LabelledTexts:
    """The rows of a table with the columns text and label, perhaps text_pair and split.

    Those of ``split``.

    ``path`` is a .csv, .parquet or .jsonl file (an object a line). A label is a text or a whole number; of
    several that are true, texts with ";" between, or a list of texts. Raises InputError, which names the row,
    for a text that is empty or none, for a label that is missing or neither, and for a file that cannot be
    read.
    """
    path = Path(path)
    if path.suffix not in _ENDINGS or not path.is_file():
        there = "a file of another kind" if path.exists() else "not there"
        raise InputError(
            f"texts are read from a table, {', '.join(_ENDINGS)}, with the columns {_TEXT} and {_LABEL}; "
            f"{path} is {there}"
        )
    names, rows = read_rows(path, (_TEXT, _PAIR, _LABEL, _SPLIT))
    wanted = [_TEXT, _LABEL, *([_SPLIT] if split is not None else [])]
    if missing := [name for name in wanted if names is not None and name not in names]:
        raise InputError(
            f"{path} must have the columns {wanted}, it has {list(names or ())}: {missing} is not"
        )
    return _of_rows(path, rows, split)


def _of_rows(path: Path, rows: Iterator[Mapping[str, Any]], split: str | None) -> LabelledTexts:
    texts: list[str] = []
    pairs: list[str] = []
    labels: list[str] = []
    splits: set[str] = set()
    for number, row in enumerate(rows):
        where = f"row {number} of {path}"
        # Rows of training and test together would look like one sample.
        if split is None and row.get(_SPLIT) is not None:
            raise InputError(f"{path} has a column {_SPLIT}: name one of its splits (--split)")
        if split is not None:
            splits.add(str(row.get(_SPLIT)))
            if row.get(_SPLIT) != split:
                continue
        texts.append(_text(row.get(_TEXT), _TEXT, where))
        if _PAIR in row:
            pairs.append(_text(row[_PAIR], _PAIR, where))
        labels.append(_label(row.get(_LABEL), where))
    if not texts:
        known = f" of split {split!r}; its splits are {', '.join(sorted(splits)[:20]) or 'none'}"
        raise InputError(f"{path} has no row{known if split is not None else ''}")
    if pairs and len(pairs) != len(texts):
        raise InputError(
            f"{path} has {_PAIR} in {len(pairs)} of {len(texts)} rows; give it in each, or in none"
        )
    return LabelledTexts(str(path), tuple(texts), tuple(pairs), tuple(labels))


def _text(value: Any, column: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: {column} is {shown(value)}, and must be a text")
    if not value.strip():
        raise InputError(f"{where}: {column} is empty; leave such rows out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: {column} holds half a character: {error.reason}") from error
    return value


def _label(value: Any, where: str) -> str:
    if value is None:
        raise InputError(f"{where}: the label is missing; leave such rows out")
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not all(isinstance(one, str) and ";" not in one for one in value):
            raise InputError(
                f"{where}: a list of labels holds names or ids as texts, without ';': of numbers it is not "
                "known whether they are ids, or 0 and 1 of each label"
            )
        return ";".join(value)
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise InputError(f"{where}: the label is {shown(value)}; it is a class's name or id (a whole number)")
    return str(value)
