"""Tables as people have them: each is read right, or refused with the option that settles it."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from numpy.typing import NDArray

from calib_serve.errors import InputError
from calib_serve.scores import Scores, softmax

CASES = yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text("utf-8"))
NAMES = ["cat", "dog", "owl"]
N = 120


@dataclass
class Table:
    """A frame of scores and labels, and what is right of it: probabilities (n, K) and class ids (n,)."""

    frame: pd.DataFrame
    probs: NDArray[Any]
    labels: NDArray[Any]
    scores: list[str] = field(default_factory=lambda: list(NAMES))


def base(kind: str) -> Table:
    rng = np.random.default_rng(7)
    z = 3 * rng.normal(size=(N, 3))
    p = softmax(z)
    y = (p.cumsum(axis=1) > rng.random((N, 1))).argmax(axis=1)
    if kind == "binary":
        event = p[:, 0]
        came = (rng.random(N) < event).astype(int)
        return Table(pd.DataFrame({"p": event, "label": came}), np.stack([1 - event, event], 1), came, ["p"])
    frame = pd.DataFrame(z if kind == "logits" else p, columns=NAMES)
    frame["label"] = np.array(NAMES)[y]
    return Table(frame, p, y)


def _beside(name: str, values: Any) -> Any:
    def edit(table: Table) -> None:
        table.frame[name] = values(table)

    return edit


def _ids(table: Table) -> None:
    table.frame["label"] = table.labels


def _rename(names: list[str]) -> Any:
    def edit(table: Table) -> None:
        table.frame = table.frame.rename(columns=dict(zip(NAMES, names, strict=True)))
        table.scores = names

    return edit


def _turned(table: Table) -> None:
    table.frame = table.frame[["owl", "cat", "dog", "label"]]
    order = [2, 0, 1]
    table.probs, table.labels = table.probs[:, order], np.argsort(order)[table.labels]


def _digits(table: Table) -> None:
    table.frame = table.frame.rename(columns={"cat": "0", "dog": "1", "owl": "2"})
    table.frame["label"] = table.frame["label"].map({"cat": 0, "dog": 1, "owl": 2})


def _from_one(table: Table) -> None:
    _ids(table)
    table.frame["label"] += 1
    _rename(["1", "2", "3"])(table)


def _lists(table: Table) -> None:
    rows = table.frame[NAMES].to_numpy().tolist()
    table.frame = pd.DataFrame({"probs": rows, "label": table.labels, "age": np.arange(N)})


def _cell(value: Any, name: str = "cat", row: int = 5) -> Any:
    def edit(table: Table) -> None:
        table.frame[name] = table.frame[name].astype(object if isinstance(value, str) else float)
        table.frame.loc[row, name] = value

    return edit


def _void(table: Table) -> None:
    table.frame.loc[3, "label"], table.frame.loc[7, "label"] = 255, -100


def _missing_label(table: Table) -> None:
    table.frame.loc[4, "label"] = None


def _named(negative: Any, positive: Any) -> Any:
    def edit(table: Table) -> None:
        table.frame["label"] = np.where(table.labels == 1, positive, negative)

    return edit


def _spam(table: Table) -> None:
    _named("ham", "spam")(table)
    table.frame = table.frame.rename(columns={"p": "spam"})


def _below_zero(table: Table) -> None:
    table.frame.loc[0, NAMES] = [1.0, 2e-16, -2e-16]
    table.probs[0] = [1, 0, 0]


def _reference(table: Table) -> None:
    table.frame[NAMES] = table.frame[NAMES].sub(table.frame["owl"], axis=0)


def _absent(table: Table) -> None:
    table.frame.insert(3, "emu", -9.0 - np.arange(N) % 7 / 3)
    z = table.frame[[*NAMES, "emu"]].to_numpy(float)
    table.probs = softmax(z)


def _called(name: str) -> Any:
    def edit(table: Table) -> None:
        table.frame = table.frame.rename(columns={"label": name})

    return edit


def _named_index(table: Table) -> None:
    table.frame.index = pd.Index(np.arange(N) + 10, name="visit")


def _sigmoids(table: Table) -> None:
    table.frame[NAMES] = 1 / (1 + np.exp(-table.frame[NAMES]))


EDITS: dict[str, Any] = {
    "patient": _beside("patient", lambda t: np.arange(N) // 4),
    "ward": _beside("ward", lambda t: [f"w{i % 9}" for i in range(N)]),
    "visit": _beside("visit", lambda t: np.arange(N) % 17),
    "fold": _beside("fold", lambda t: np.arange(N) % 5),
    "weight": _beside("weight", lambda t: 0.5 + np.arange(N) % 3),
    "group": _beside("group", lambda t: np.arange(N) // 6),
    "id": _beside("id", lambda t: [f"a{i}" for i in range(N)]),
    "pred": _beside("pred", lambda t: t.probs.argmax(axis=1)),
    "confidence": _beside("confidence", lambda t: t.probs.max(axis=1)),
    "top": _beside("top", lambda t: t.probs.max(axis=1)),
    "age": _beside("age", lambda t: 40 + np.arange(N) % 31 + 0.5),
    "date": _beside("date", lambda t: ["2026-01-02"] * N),
    "two decimals": lambda t: t.frame.update(t.frame[NAMES].round(2)),
    "percent": lambda t: t.frame.update((100 * t.frame[NAMES]).round(0)),
    "percent with a decimal": lambda t: t.frame.update((100 * t.frame[NAMES]).round(1)),
    "percent of p": lambda t: t.frame.update(100 * t.frame[["p"]]),
    "below zero": _below_zero,
    "turned": _turned,
    "digits of classes": _digits,
    "classes from 1": _from_one,
    "labels from 1": lambda t: (_ids(t), t.frame.update(t.frame[["label"]] + 1)),
    "labels as texts": lambda t: t.frame.__setitem__("label", t.frame["label"].astype(str)),
    "labels as floats": lambda t: (_ids(t), t.frame.__setitem__("label", t.frame["label"].astype(float))),
    "ids": _ids,
    "prefix": _rename(["p_cat", "p_dog", "p_owl"]),
    "target": _called("target"),
    "Label": _called(" Label "),
    "two labels": lambda t: (t.frame.__setitem__("y_true", t.labels), _called("target")(t)),
    "missing label": _missing_label,
    "void": _void,
    "missing score": _cell(np.nan),
    "text score": _cell("high"),
    "infinite score": _cell(np.inf),
    "sigmoids": _sigmoids,
    "booleans": _named(False, True),
    "yes and no": _named("no", "yes"),
    "spam": _spam,
    "control and case": _named("control", "case"),
    "signs": _named(-1, 1),
    "reference": _reference,
    "absent class": _absent,
    "other labels": lambda t: t.frame.update(pd.DataFrame({"label": ["fox"]}, index=[2])),
    "named index": _named_index,
    "lists": _lists,
}


def written(table: Table, how: str, folder: Path) -> Path:
    frame, path = table.frame, folder / "scores.csv"
    if how == "R write.csv":
        frame.to_csv(path, index_label="", quoting=csv.QUOTE_NONNUMERIC)
    elif how == "R write.csv2":
        frame.to_csv(path, sep=";", decimal=",", index_label="")
    elif how == "R write.table":
        lines = frame.to_csv(sep=" ", header=False)
        path.write_text(" ".join(f'"{name}"' for name in frame.columns) + "\n" + lines)
    elif how in ("tsv", "csv.gz"):
        path = folder / f"scores.{how}"
        frame.to_csv(path, sep="\t" if how == "tsv" else ",", index=False)
    elif how in ("parquet", "feather"):
        path = folder / f"scores.{how}"
        (frame.to_parquet if how == "parquet" else frame.to_feather)(path)
    elif how == "jsonl":
        path = folder / "scores.jsonl"
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    elif how == "npz of objects":
        path = folder / "scores.npz"
        labels, names = frame["label"].to_numpy(object), np.array(NAMES, object)
        np.savez(path, probs=frame[NAMES].to_numpy(), labels=labels, class_names=names)
    else:
        text = frame.to_csv(
            index=how == "csv with index", header=how != "csv without header", na_rep="NA" * ("NA" in how)
        )
        lines = text.splitlines()
        if how == "csv with a column twice":
            lines[0] = lines[0].replace("dog", "cat")
        if how == "csv with a short row":
            lines[7] = lines[7].rpartition(",")[0]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig" if "mark" in how else "utf-8")
    return path


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_table_is_read_right_or_refused(case: dict[str, Any], tmp_path: Path) -> None:
    table = base(case["base"])
    for name in case.get("edit", ()):
        EDITS[name](table)
    path = written(table, case.get("file", "csv"), tmp_path)
    if words := case.get("refused"):
        with pytest.raises(InputError) as error:
            Scores.read(path, **case.get("read", {}))
        said = str(error.value)
        assert all(str(word) in said for word in words), said
        return
    found = Scores.read(path, **case.get("read", {}))
    kept = np.setdiff1d(np.arange(N), case.get("without", []))
    np.testing.assert_allclose(found.probs[:], table.probs[kept], atol=case.get("slack", 1e-7))
    assert found.labelled().tolist() == table.labels[kept].tolist()
    for word in case.get("says", ()):
        assert any(word in remark for remark in found.remarks), found.remarks
    if "has" in case:
        assert len(getattr(found, case["has"])) == len(found)


def test_there_are_forty_of_them_and_names_are_different() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) >= 40


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a,b,label\n" + b"0.5%s,0.5,0\n" % (b"0" * 4000) * 20_000)
    with pytest.raises(InputError, match="bomb"):
        Scores.read(path)
