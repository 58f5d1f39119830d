"""Files and tables of scores: what is read, and what is refused."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from numpy.typing import NDArray

from calib_serve import Scores
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.scores import softmax

CASES = yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text("utf-8"))
NAMES = ["cat", "dog", "owl"]
N = 120


@dataclass
class Table:
    """A frame of scores and labels, and what is right of it: probabilities (n, K) and class ids (n,)."""

    frame: pd.DataFrame
    probs: NDArray[Any]
    labels: NDArray[Any]


def base(kind: str) -> Table:
    rng = np.random.default_rng(7)
    z = 3 * rng.normal(size=(N, 3))
    p = softmax(z)
    y = (p.cumsum(axis=1) > rng.random((N, 1))).argmax(axis=1)
    if kind == "binary":
        event = p[:, 0]
        came = (rng.random(N) < event).astype(int)
        return Table(pd.DataFrame({"p": event, "label": came}), np.stack([1 - event, event], 1), came)
    frame = pd.DataFrame(z if kind == "logits" else p, columns=NAMES)
    frame["label"] = np.array(NAMES)[y]
    return Table(frame, p, y)


def _beside(name: str, values: Any) -> Any:
    def edit(table: Table) -> None:
        table.frame[name] = values(table)

    return edit


def _ids(table: Table) -> None:
    table.frame["label"] = table.labels


def _called(**names: str) -> Any:
    """Rename columns."""

    def edit(table: Table) -> None:
        table.frame = table.frame.rename(columns=names)

    return edit


def _renamed(pattern: str) -> Any:
    """Rename the columns of classes, such as cat to p_cat."""
    return _called(**{name: pattern.format(name) for name in (*NAMES, "emu", "yes", "no")})


def _classes(names: list[str]) -> Any:
    """Call the classes otherwise, in columns and labels."""

    def edit(table: Table) -> None:
        called = dict(zip(NAMES, names, strict=True))
        table.frame = table.frame.rename(columns=called)
        table.frame["label"] = table.frame["label"].map(called)

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
    _called(cat="1", dog="2", owl="3")(table)


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
    _called(p="spam")(table)


def _made(of: Any) -> Any:
    """Scores of classes as a function of themselves."""

    def edit(table: Table) -> None:
        names = [name for name in (*NAMES, "p", "no", "yes") if name in table.frame]
        table.frame[names] = of(table.frame[names].to_numpy(float))

    return edit


def _margin(table: Table) -> None:
    _made(lambda p: np.log(p / (1 - p)))(table)
    _called(p="score")(table)


def _votes(of: Any) -> Any:
    def edit(table: Table) -> None:
        many = np.broadcast_to(of, N)
        counts = np.floor(table.probs * many[:, None])
        counts[:, 0] += many - counts.sum(axis=1)
        table.probs = counts / many[:, None]
        names = NAMES if "cat" in table.frame else ["p"]
        table.frame[names] = counts[:, -len(names) :].astype(int)

    return edit


def _ranks(table: Table) -> None:
    table.probs = -np.sort(-table.probs)
    table.frame[NAMES] = table.probs


def _odds(table: Table) -> None:
    table.probs = (table.probs + 0.05) / 1.15
    table.frame[NAMES] = 1 / (1.06 * table.probs)


def _cells(of: Any) -> Any:
    """One column, whose cells are made of a row's probabilities by class."""

    def edit(table: Table) -> None:
        rows = [of(dict(zip(NAMES, row, strict=True))) for row in table.frame[NAMES].to_numpy().tolist()]
        table.frame = pd.DataFrame({"id": np.arange(N), "probs": rows, "label": table.frame["label"]})

    return edit


def _pair(row: dict[str, float], names: list[str]) -> list[dict[str, Any]]:
    return [{"label": name, "score": row[name]} for name in names]


def _best_first(row: dict[str, float]) -> list[str]:
    return sorted(row, key=lambda name: -row[name])


def _two(negative: str, positive: str, *, turned: bool = False) -> Any:
    """Two columns in place of that of class 1; ``turned``: that of class 1 first."""

    def edit(table: Table) -> None:
        p = table.frame["p"]
        names = [positive, negative] if turned else [negative, positive]
        table.frame = pd.DataFrame({negative: 1 - p, positive: p, "label": table.labels})[[*names, "label"]]

    return edit


def _two_logits(table: Table) -> None:
    _two("ham", "spam")(table)
    table.frame[["ham", "spam"]] = np.log(table.frame[["ham", "spam"]]) + 1.5


def _words_of_yes_no(table: Table) -> None:
    _named("no", "yes")(table)
    table.probs, table.labels = table.probs[:, ::-1], 1 - table.labels


def _predicted(table: Table) -> None:
    table.labels = table.probs.argmax(axis=1)
    table.frame["label"] = np.array(NAMES)[table.labels]


def _at(rows: list[int], value: float, *names: str) -> Any:
    def edit(table: Table) -> None:
        table.frame.loc[rows, list(names)] = value

    return edit


def _below_zero(table: Table) -> None:
    table.frame.loc[0, NAMES] = [1.0, 2e-16, -2e-16]
    table.probs[0] = [1, 0, 0]


def _reference(table: Table) -> None:
    table.frame[NAMES] = table.frame[NAMES].sub(table.frame["owl"], axis=0)


def _absent(table: Table) -> None:
    table.frame.insert(3, "emu", -9.0 - np.arange(N) % 7 / 3)
    z = table.frame[[*NAMES, "emu"]].to_numpy(float)
    table.probs = softmax(z)


def _named_index(table: Table) -> None:
    table.frame.index = pd.Index(np.arange(N) + 10, name="visit")


def _sigmoids(table: Table) -> None:
    table.frame[NAMES] = 1 / (1 + np.exp(-table.frame[NAMES]))


EDITS: dict[str, Any] = {
    # Names.
    "logit_": _renamed("logit_{}"),
    "_logit": _renamed("{}_logit"),
    "prob_": _renamed("prob_{}"),
    "log_prob_": _renamed("log_prob_{}"),
    "percent_": _renamed("percent_{}"),
    "clf_": _renamed("clf_{}"),
    "prefix": _renamed("p_{}"),
    "sp": _called(cat="sp0", dog="sp1", owl="sp2"),
    "score": _called(p="score"),
    "prob": _called(p="prob"),
    "y_pred_proba": _called(p="y_pred_proba"),
    "prob_fraud": _called(p="prob_fraud"),
    "prob_spam": _called(spam="prob_spam"),
    "prob_ham": lambda t: (_called(spam="prob_spam")(t), _named("eggs", "ham")(t)),
    "output": _called(probs="output"),
    "target": _called(label="target"),
    "Label": _called(label=" Label "),
    "id weight no": _classes(["id", "weight", "no"]),
    "None": _classes(["cat", "None", "owl"]),
    "prob_NA": lambda t: (
        _classes(["cat", "NA", "owl"])(t),
        _called(cat="prob_cat", NA="prob_NA", owl="prob_owl")(t),
    ),
    "class label": lambda t: (_called(label="target")(t), _called(dog="label")(t)),
    # Columns beside.
    "and probabilities": lambda t: t.frame.insert(3, "prob_cat", t.probs[:, 0]),
    "and margin": _beside("margin", lambda t: np.log(t.probs[:, 1] / t.probs[:, 0])),
    "and calibrated": _beside("calibrated", lambda t: t.probs[:, 1] ** 2),
    "patient": _beside("patient", lambda t: np.arange(N) // 4),
    "ward": _beside("ward", lambda t: [f"w{i % 9}" for i in range(N)]),
    "visit": _beside("visit", lambda t: np.arange(N) % 17),
    "fold": _beside("fold", lambda t: np.arange(N) % 5),
    "weight": _beside("weight", lambda t: 0.5 + np.arange(N) % 3),
    "group": _beside("group", lambda t: np.arange(N) // 6),
    "id": _beside("id", lambda t: [f"a{i}" for i in range(N)]),
    "id of four": _beside("id", lambda t: [f"a{i // 4}" for i in range(N)]),
    "pred": _beside("pred", lambda t: t.probs.argmax(axis=1)),
    "named pred": _beside("pred", lambda t: np.array(NAMES)[t.probs.argmax(axis=1)]),
    "confidence": _beside("confidence", lambda t: t.probs.max(axis=1)),
    "age": _beside("age", lambda t: 40 + np.arange(N) % 31 + 0.5),
    "amount": _beside("amount", lambda t: np.arange(N) % 7 / 10),
    "largest of two": lambda t: t.frame.__setitem__("prob", t.probs.max(axis=1)),
    "ranks": _ranks,
    "date": _beside("date", lambda t: ["2026-01-02"] * N),
    "named index": _named_index,
    # Scales.
    "log": _made(np.log),
    "two decimals": _made(lambda p: p.round(2)),
    "percent": _made(lambda p: (100 * p).round(0)),
    "percent with a decimal": _made(lambda p: (100 * p).round(1)),
    "percent of p": _made(lambda p: 100 * p),
    "below zero": _below_zero,
    "votes of each": _votes(10 + np.arange(N) % 7),
    "votes of twenty": _votes(20),
    "votes of p": _votes(20),
    "odds": _odds,
    "log10": _made(np.log10),
    "log2": _made(np.log2),
    "log-odds": _made(lambda p: np.log10(p / (1 - p))),
    "per ln 10": _made(lambda z: z / np.log(10)),
    "points": _made(lambda p: 1000 * p),
    "points from the other end": _made(lambda p: 1000 - 1000 * p),
    "neg-log-p": _made(lambda p: -np.log(p)),
    "margin": _margin,
    "reference": _reference,
    "sigmoids": _sigmoids,
    **{f"cell of {value}": _cell(float(value)) for value in ("101", "-1", "0.5", "0.9", "1001")},
    # Cells of several numbers.
    "lists": _lists,
    "mappings": _cells(dict),
    "pairs": _cells(lambda row: _pair(row, NAMES)),
    "sorted pairs": _cells(lambda row: _pair(row, _best_first(row))),
    "top pairs": _cells(lambda row: _pair(row, _best_first(row)[:2])),
    # Classes and labels.
    "turned": _turned,
    "digits of classes": _digits,
    "classes from 1": _from_one,
    "absent class": _absent,
    "ids": _ids,
    "labels from 1": lambda t: (_ids(t), t.frame.update(t.frame[["label"]] + 1)),
    "labels as texts": lambda t: t.frame.__setitem__("label", t.frame["label"].astype(str)),
    "labels as floats": lambda t: (_ids(t), t.frame.__setitem__("label", t.frame["label"].astype(float))),
    "label of predictions": _predicted,
    "other labels": _at([2], "fox", "label"),
    "two labels": lambda t: (t.frame.__setitem__("y_true", t.labels), _called(label="target")(t)),
    "two columns": _two("prob_0", "prob_1"),
    "complement": _two("0", "1"),
    "two logits": _two_logits,
    "no yes": _two("no", "yes"),
    "yes no": _two("no", "yes", turned=True),
    "words of yes no": _words_of_yes_no,
    "spam": _spam,
    "booleans": _named(False, True),
    "yes and no": _named("no", "yes"),
    "control and case": _named("control", "case"),
    "signs": _named(-1, 1),
    # What is missing.
    "missing label": _missing_label,
    "void": _void,
    "missing score": _cell(np.nan),
    "text score": _cell("high"),
    "infinite score": _cell(np.inf),
    "sentinels": _at([5, 9], -999, "cat"),
    "sentinels of score": _at([5, 9], -999, "score"),
    "rows of -1": _at([3, 4, 5, 6], -1, *NAMES),
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
    elif how in ("tsv", "tsv.gz", "csv.gz"):
        path = folder / f"scores.{how}"
        frame.to_csv(path, sep="\t" if how.startswith("tsv") else ",", index=False)
    elif how == "parquet":
        path = folder / "scores.parquet"
        frame.to_parquet(path)
    elif how == "jsonl":
        path = folder / "scores.jsonl"
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    elif how == "npz of objects":
        path = folder / "scores.npz"
        labels, names = frame["label"].to_numpy(object), np.array(NAMES, object)
        np.savez(path, probs=frame[NAMES].to_numpy(), labels=labels, class_names=names)
    else:
        text = frame.to_csv(
            index=how == "csv with index",
            header=how != "csv without header",
            na_rep="NA" * ("NA" in how),
            decimal="," if "commas" in how else ".",
        )
        lines = text.splitlines()
        if how == "csv with the label twice":
            lines = [f"{line},{line.rpartition(',')[2]}" for line in lines]
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
    assert all(word in found.reading for word in case.get("says", ())), found.reading
    if "has" in case:
        assert len(getattr(found, case["has"])) == len(found)


def test_each_has_a_name_of_its_own() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a,b,label\n" + b"0.5%s,0.5,0\n" % (b"0" * 4000) * 20_000)
    with pytest.raises(InputError, match="bomb"):
        Scores.read(path)


LOGITS = np.array([[1.5, -2.25, 0.125], [0.0, 3.5, -1.0], [2.0, 2.0, 0.5], [9.0, -1.0, 0.0]])
LABELS = np.array([0, 1, 2, 0])
FOXES = ("cat", "dog", "fox")


def write_csv(path: Path) -> Path:
    lines = ["label,logit_cat,logit_dog,logit_fox,split"]
    for i, (z, y) in enumerate(zip(LOGITS.tolist(), LABELS.tolist(), strict=True)):
        lines.append(f"{FOXES[y]},{z[0]},{z[1]},{z[2]},{'cal' if i < 2 else 'test'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = {f"logit_{name}": LOGITS[:, k] for k, name in enumerate(FOXES)}
    table = {"label": np.array(FOXES)[LABELS], **columns, "split": ["cal", "cal", "test", "test"]}
    pyarrow.parquet.write_table(pa.table(table), path)
    return path


@pytest.mark.parametrize(("write", "name"), [(write_csv, "z.csv"), (write_parquet, "z.parquet")])
def test_a_table_gives_each_split_its_rows(write, name: str, tmp_path: Path):
    path = write(tmp_path / name)
    for split, rows in (("cal", slice(0, 2)), ("test", slice(2, 4))):
        found = Scores.read(path, split=split)
        np.testing.assert_array_equal(found.logits, LOGITS[rows])
        np.testing.assert_array_equal(found.labels, LABELS[rows])
        assert found.class_names == FOXES
    with pytest.raises(InputError, match=r"the splits cal, test; name one \(--split"):
        Scores.read(path)
    with pytest.raises(InputError, match="the splits cal, test, got 'val'"):
        Scores.read(path, split="val")


def test_arrays_are_found_by_split_and_by_themselves(tmp_path: Path):
    path = tmp_path / "z.npz"
    arrays = {"cal_logits": LOGITS[:2], "cal_labels": LABELS[:2], "logits": LOGITS, "labels": LABELS}
    np.savez(path, **arrays)
    np.testing.assert_array_equal(Scores.read(path, split="cal").logits, LOGITS[:2])
    np.testing.assert_array_equal(Scores.read(path).labels, LABELS)
    with pytest.raises(InputError, match="no array test_logits; it has cal_labels, cal_logits"):
        Scores.read(path, split="test")


def test_an_npy_file_is_mapped_and_takes_its_labels_from_another(tmp_path: Path):
    np.save(tmp_path / "z.npy", LOGITS.astype(np.float16))
    np.save(tmp_path / "y.npy", LABELS)
    found = Scores.read(tmp_path / "z.npy", labels=tmp_path / "y.npy", outputs="logits")
    assert isinstance(found.logits, np.memmap)
    assert found.logits.dtype == np.float16
    np.testing.assert_array_equal(found.labels, LABELS)
    assert Scores.read(tmp_path / "z.npy", outputs="logits").labels is None
    with pytest.raises(InputError, match=r"the 3 columns hold numbers .*\(--outputs logits"):
        Scores.read(tmp_path / "z.npy")
    with pytest.raises(InputError, match="no split 'cal'"):
        Scores.read(tmp_path / "z.npy", split="cal")


def test_probabilities_become_logarithms_and_zero_stays_finite(tmp_path: Path):
    np.savez(tmp_path / "p.npz", probs=np.array([[0.25, 0.75], [1.0, 0.0]]), labels=[0, 1])
    found = Scores.read(tmp_path / "p.npz").logits
    np.testing.assert_allclose(np.exp(found), [[0.25, 0.75], [1.0, 0.0]], atol=1e-37)
    assert np.isfinite(found).all()
    np.savez(tmp_path / "z.npz", probs=LOGITS, labels=LABELS)
    with pytest.raises(InputError, match=r"lie in \[0, 1\], and row 0, .* say --outputs .*logits"):
        Scores.read(tmp_path / "z.npz")


def test_shapes_that_do_not_fit_and_missing_files_are_told(tmp_path: Path):
    np.savez(tmp_path / "z.npz", logits=LOGITS, labels=LABELS[:2])
    with pytest.raises(ShapeError, match="one for each row"):
        Scores.read(tmp_path / "z.npz")
    with pytest.raises(InputError, match="no file"):
        Scores.read(tmp_path / "none.npz")


def samples(n: int) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, n)
    return rng.normal(size=(n, 3)) * 2 + 3 * np.eye(3)[labels], labels


def test_arrays_beside_the_scores_are_read_by_the_names_that_people_give_them(tmp_path):
    logits, labels = samples(60)
    beside = {"weights": 1.0 + np.arange(60), "group": np.arange(60) // 3, "id": np.arange(60)}
    np.savez(tmp_path / "z.npz", scores=logits, outputs=labels, labels=labels, **beside)
    with pytest.raises(InputError, match="--outputs logits"):
        Scores.read(tmp_path / "z.npz")
    found = Scores.read(tmp_path / "z.npz", outputs="logits")
    np.testing.assert_array_equal(found.values, logits)
    for name, given in (("weights", "weights"), ("groups", "group"), ("ids", "id")):
        np.testing.assert_array_equal(getattr(found, name), beside[given])
    assert "weighs the rows" in " ".join(found.remarks)
    found = Scores.read(tmp_path / "z.npz", sample_weight="id", groups="weights", outputs="logits")
    np.testing.assert_array_equal(found.weights, beside["id"])
    np.testing.assert_array_equal(found.groups, beside["weights"])
    with pytest.raises(InputError, match="no column 'day' for the group; there are 'scores'"):
        Scores.read(tmp_path / "z.npz", groups="day")


def test_one_file_of_lists_keeps_labels_and_splits_beside_each_row(tmp_path):
    logits, labels = samples(60)
    parts = np.array(["cal", "test"])[np.arange(60) % 2]
    table = pa.table({"logits": logits.tolist(), "label": labels, "split": parts})
    pq.write_table(table, tmp_path / "z.parquet")
    found = Scores.read(tmp_path / "z.parquet", split="test")
    np.testing.assert_array_equal(found.logits, logits[1::2])
    np.testing.assert_array_equal(found.labels, labels[1::2])


def test_labels_and_groups_of_arrays_beside_a_table_are_of_its_rows(tmp_path):
    np.save(tmp_path / "g.npy", np.arange(4) // 2)
    assert Scores.read(write_csv(tmp_path / "z.csv"), split="cal", groups=None).groups is None
    pd.DataFrame(LOGITS, columns=["logit 0", "logit 1", "logit 2"]).to_csv(tmp_path / "l.csv", index=False)
    found = Scores.read(tmp_path / "l.csv", groups=tmp_path / "g.npy")
    assert found.groups.tolist() == [0, 0, 1, 1]
    np.save(tmp_path / "g.npy", np.arange(3))
    with pytest.raises(ShapeError, match="one group for each of 4 rows"):
        Scores.read(tmp_path / "l.csv", groups=tmp_path / "g.npy")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"logit_a": [None, 1.0], "logit_b": [1.0, 2.0]}, "row 1, column 'logit_a' is missing"),
        ({"logit_a": ["x", "y"], "logit_b": [1.0, 2.0]}, "row 1 holds 'x', which is no score"),
        ({"logits": [[1.0, 2.0], [1.0]]}, "row 2: the list is missing, or not of 2"),
        ({"logit_a": np.empty(0), "logit_b": np.empty(0)}, "column names but no rows"),
    ],
)
def test_a_parquet_that_holds_no_scores_is_refused(columns, says, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "z.parquet")
    with pytest.raises(InputError, match=says):
        Scores.read(tmp_path / "z.parquet")
    with pytest.raises(InputError, match="is a folder"):
        Scores.read(tmp_path)


def test_json_that_names_a_column_twice_would_lose_a_label_and_is_refused(tmp_path):
    path = tmp_path / "scores.jsonl"
    path.write_text('{"cat": 0.2, "dog": 0.8, "label": "cat", "label": "dog"}\n')
    with pytest.raises(InputError, match="row 1 is no JSON: it names a column twice"):
        Scores.read(path)


@pytest.mark.parametrize(
    ("beside", "prefix"),
    [
        (("image_id", "true_label", "pred_label"), "prob_"), (("sequence", "label", "pred_label"), "prob_"),
        (("subject_id", "true_label", "model", "evaluation_level"), "prob_"),
        (("match_id", "timestamp_seconds", "label"), "p_"), (("id", "target", "y_pred", "name"), "score_"),
    ],
)  # fmt: skip
def test_tables_as_others_export_them_are_read_by_their_names_or_the_pattern_that_the_refusal_names(
    beside: tuple[str, ...], prefix: str
) -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 40)
    labels = rng.integers(0, 3, 40)
    table = {name: np.array([f"{name} {i}" for i in range(40)], object) for name in beside}
    table |= {name: labels for name in beside if name in ("label", "true_label", "target")}
    table |= {f"{prefix}{k}": p[:, k] for k in range(3)}
    with_age = {**table, "age": 20.0 + np.arange(40)}
    ways: list[tuple[Any, dict[str, Any]]] = [(table, {}), (with_age, {"columns": [f"{prefix}*"]})]
    if prefix == "score_":
        with pytest.raises(InputError, match=r"--columns 'score_\*'"):
            Scores.of(with_age)
    else:
        ways.append((with_age, {}))
    for given, how in ways:
        found = Scores.of(given, **how)
        assert (found.outputs, found.classes) == ("probabilities", 3)
        assert found.labels.tolist() == labels.tolist()


def test_rows_of_one_index_are_aligned_and_of_another_refused() -> None:
    table = base("probs")
    frame, labels = table.frame[NAMES], table.frame["label"]
    turned = np.random.default_rng(0).permutation(N)
    weights = pd.Series(1.0 + np.arange(N), index=frame.index)
    found = Scores.of(frame, labels.iloc[turned], sample_weight=weights.iloc[::-1])
    assert found.labels.tolist() == table.labels.tolist()
    assert found.weights.tolist() == weights.tolist()
    one = Scores.of(frame["cat"], (labels == "cat").iloc[turned], outputs="probability")
    assert one.labels.tolist() == (table.labels == 0).tolist()
    by_position = Scores.of(frame, labels.iloc[turned].to_numpy())
    assert by_position.labels.tolist() == table.labels[turned].tolist()
    for other in (labels.set_axis(np.arange(N) + 1), labels.set_axis([0] * N), labels.iloc[:-1]):
        with pytest.raises(InputError, match="the index of the label is not that of the scores"):
            Scores.of(frame, other)
    with pytest.raises(InputError, match="the index of the group is not"):
        Scores.of(frame, labels, groups=pd.Series(np.arange(N), index=np.arange(N) + 7))


@pytest.mark.parametrize("edits", [[], ["absent class"], ["age"], ["id weight no"], ["turned"]])
@pytest.mark.parametrize("how", [{}, {"outputs": "logits"}])
def test_a_frame_is_read_as_its_file_is(edits: list[str], how: dict[str, Any], tmp_path: Path) -> None:
    table = base("logits")
    for name in edits:
        EDITS[name](table)
    table.frame.to_csv(tmp_path / "scores.csv", index=False)
    told: list[str] = []
    for read, scores in ((Scores.of, table.frame), (Scores.read, tmp_path / "scores.csv")):
        try:
            told.append(read(scores, labels="label", **how).reading.partition(": ")[2])
        except InputError as error:
            told.append(str(error).removeprefix(f"{scores}: "))
    assert told[0] == told[1]
