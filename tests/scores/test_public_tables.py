"""Tables of public programs are read right, or refused with words that help; never wrong in silence."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from public_tables import TABLES, Right, Table, pencil

from calib_serve import Scores
from calib_serve.core.errors import InputError

Verdict = Literal["right", "refused", "refused without help", "wrong in silence"]
AN_OPTION = re.compile(r"--[a-z]|\b[a-z_]+=")


def read(table: Table, folder: Path, options: dict[str, Any] | None = None) -> tuple[Verdict, str]:
    """Build a table and read it: what came of it, and the program's words or what is wrong."""
    told = ""
    path, names, right = table.build(np.random.default_rng(zlib.crc32(table.name.encode())), folder)
    try:
        found = Scores.read(path, **(options or {}))
        told = "; ".join(found.remarks)
        found.labelled()
    except InputError as error:
        said = f"{error}; {told}".replace(str(path), "")
        helped = helps(said, names, settled=table.options is not None)
        return "refused" if helped else "refused without help", said
    wrong = differs(found, right)
    return ("wrong in silence", f"{wrong}; {found.remarks}") if wrong else ("right", "")


def helps(said: str, names: Sequence[str], *, settled: bool) -> bool:
    """Whether a refusal names a column, where the file names any, and an option, where one settles it."""
    # Long names are cut; a short one stands in quotes, or it would be found in any word.
    named = not names or any(n[:30] in said if len(n) > 3 else f"'{n}'" in said for n in names)
    return named and (not settled or bool(AN_OPTION.search(said)))


def differs(found: Scores, right: Right) -> str:
    """What is not right of scores that were read, or nothing."""
    p = np.asarray(found.probs[:])
    y = found.labelled()
    if p.shape != (right.rows, right.classes):
        return f"{p.shape} of {right.rows} rows and {right.classes} classes"
    accuracy, ece = pencil(p, y, found.weights)
    if abs(accuracy - right.accuracy) > 0.003 or abs(ece - right.ece) > 0.005:
        return f"accuracy {accuracy:.3f} of {right.accuracy:.3f}, ECE {ece:.3f} of {right.ece:.3f}"
    if right.called and len(found.class_names) == right.classes:
        read_as = np.array(found.class_names, object)[y]
        pairs = zip(read_as, right.called, strict=True)
        if strange := next((pair for pair in pairs if pair[1].strip() not in pair[0]), None):
            return f"a label {strange[1]} is of the class {strange[0]}"
    if right.groups is not None and (found.groups is None or len(np.unique(found.groups)) != right.groups):
        return f"{right.groups} groups are {found.groups if found.groups is None else 'others'}"
    return ""


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_public_table_is_read_right_or_refused_with_help(table: Table, tmp_path: Path) -> None:
    verdict, said = read(table, tmp_path)
    assert verdict in (("right",) if table.complete else ("right", "refused")), f"{verdict}: {said}"


SETTLED = [table for table in TABLES if table.options is not None]


@pytest.mark.parametrize("table", SETTLED, ids=lambda table: table.name)
def test_a_public_table_is_read_right_with_its_options(table: Table, tmp_path: Path) -> None:
    verdict, said = read(table, tmp_path, table.keywords(tmp_path))
    assert verdict == "right", f"{verdict}: {said}"
