"""Scores by class name: equal or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime import InferenceSession
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

from calib_serve import Scores
from calib_serve.core.errors import InputError, ShapeError

NAMES = ["cat", "dog", "owl"]
N = 40
RNG = np.random.default_rng(3)
P = RNG.dirichlet(np.ones(3), N)
Y = (P.cumsum(axis=1) > RNG.random((N, 1))).argmax(axis=1)
LABELS = [NAMES[k] for k in Y]


def lines(path: Path, rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mapped(row: Any, names: Any = NAMES) -> dict[Any, float]:
    return dict(zip(names, map(float, row), strict=True))


def pairs(row: Any, score: str = "score") -> list[dict[str, Any]]:
    held = [{"label": name, score: float(p)} for name, p in zip(NAMES, row, strict=True)]
    return sorted(held, key=lambda one: -one[score])


# In one cell of row 3, or in all rows where a function is given.
GOOD = mapped(P[2])
BAD: list[tuple[str, Any, list[str]]] = [
    ("a class less", {"cat": 0.5, "dog": 0.25}, ["row 3", "owl", "absent=0"]),
    ("another class", {**mapped([0.5, 0.25, 0.125]), "fox": 0.125}, ["row 1", "fox"]),
    ("a null score", {**GOOD, "owl": None}, ["row 3", "owl", "missing"]),
    ("a text", {**GOOD, "owl": "0.2"}, ["row 3", "owl"]),
    ("a truth", {**GOOD, "owl": True}, ["row 3", "owl"]),
    ("a list of scores", {**GOOD, "owl": [0.2]}, ["row 3", "owl"]),
    ("a number too large", {**GOOD, "owl": 10**400}, ["row 3", "too large"]),
    ("not a number", {**GOOD, "owl": float("nan")}, ["row 3", "owl", "missing"]),
    (
        "beyond 1",
        {"cat": 2.0, "dog": -1.0, "owl": 0.0},
        ["sum to 1 to 1|beyond|from -1 to 2|\\[0, 1\\]|hold numbers"],
    ),
    ("no map", "cat", ["row 3", "class"]),
    ("a number alone", 0.5, ["row 3", "class"]),
    ("null", None, ["row 3", "class"]),
    ("an empty map", {}, ["row 3", "class"]),
    ("an empty list", [], ["row 3", "class"]),
    ("a list of numbers", [0.2, 0.3, 0.5], ["row 3", "class"]),
    ("a list of pairs as lists", [["cat", 0.2], ["dog", 0.8]], ["row 3", "class"]),
    ("two maps in a list", [GOOD, GOOD], ["row 3", "class"]),
    (
        "a name twice",
        [{"label": "cat", "score": 0.5}, {"label": "cat", "score": 0.5}],
        ["row 3", "'cat' twice"],
    ),
    ("a null name", [{"label": None, "score": 1.0}], ["row 3", "None"]),
    ("a name of a list", [{"label": ["cat"], "score": 1.0}], ["row 3"]),
    ("a name that is a fraction", [{"label": 0.5, "score": 1.0}], ["row 3", "0.5"]),
    ("a name that is a number", [{"label": 1, "score": 1.0}], ["row 3", "one type", "int", "str"]),
    ("no score", [{"label": "cat"}], ["row 3", "class"]),
    ("two scores", [{"label": "cat", "score": 1.0, "prob": 1.0}], ["row 3", "class"]),
    ("one entry alone", {"label": 1, "score": 0.0}, ["row 3", "one type"]),
    ("a vector of Spark", {"type": 1, "values": [*map(float, P[2])]}, ["row 3", "vector_to_array"]),
]


@pytest.mark.parametrize(("name", "cell", "words"), BAD, ids=[case[0] for case in BAD])
def test_a_cell_that_is_no_scores_is_refused_by_its_row(
    name: str, cell: Any, words: list[str], tmp_path: Path
) -> None:
    rows = [{"output": mapped(p), "label": y} for p, y in zip(P, LABELS, strict=True)]
    rows[2]["output"] = cell
    with pytest.raises(InputError) as refused:
        Scores.read(lines(tmp_path / "bad.jsonl", rows))
    for word in words:
        assert any(part.replace("\\", "") in str(refused.value) for part in word.split("|")), str(
            refused.value
        )


def test_rows_keep_their_numbers_where_others_are_left_out(tmp_path: Path) -> None:
    halves = ["ab"[i % 2] for i in range(N)]
    rows = [{"output": mapped(p), "label": y, "split": s} for p, y, s in zip(P, LABELS, halves, strict=True)]
    rows[7]["output"] = {**rows[7]["output"], "owl": None}
    with pytest.raises(InputError, match="row 8"):
        Scores.read(lines(tmp_path / "x.jsonl", rows), split="b")
    rows = [{"output": mapped(p), "label": y} for p, y in zip(P, LABELS, strict=True)]
    rows[0]["label"], rows[7]["output"] = "NA", mapped([0.5, 0.75, 0.5])
    with pytest.raises(InputError, match=r"\brow 8 to 1.75"):
        Scores.read(lines(tmp_path / "x.jsonl", rows), ignore_label="NA", outputs="probabilities")


@given(
    st.permutations(range(3)),
    st.permutations(range(N)),
    st.sampled_from(["map", "pairs", "one", "tuples"]),
    st.data(),
)
def test_any_order_of_names_and_rows_gives_the_same_scores(
    columns: Any, rows: Any, form: str, data: Any
) -> None:
    mine = st.permutations(range(3)) if data.draw(st.booleans()) else st.just(columns)
    cells = []
    for i in rows:
        held = [(NAMES[k], float(P[i, k])) for k in data.draw(mine)]
        as_pairs = [{"label": name, "prob": p} for name, p in held]
        cells.append({"map": dict(held), "pairs": as_pairs, "one": [dict(held)], "tuples": held}[form])
    column = np.empty(N, object)
    column[:] = cells
    found = Scores.of({"output": column, "label": np.array(LABELS)[rows]})
    assert found.class_names == tuple(NAMES)
    assert (found.values == P[rows]).all()
    assert found.labels.tolist() == Y[rows].tolist()


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(NAMES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*NAMES, "label", "score", "type", "values", "size", "indices"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.lists(ANY, min_size=1, max_size=4), st.booleans(), st.sampled_from([None, "nan", "absent=0"]))
def test_whatever_a_cell_holds_it_is_read_or_refused(cells: list[Any], first: bool, missing: Any) -> None:
    column = np.empty(len(cells) + first, object)
    column[:] = [*([mapped(P[0])] if first else []), *cells]
    try:
        found = Scores.of({"output": column}, missing=missing)
    except (InputError, ShapeError):
        return
    assert np.isfinite(found.values).all()


def test_names_that_are_numbers_go_by_value_and_class_names_by_their_order(tmp_path: Path) -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(12), 60)
    y = np.arange(60) % 12
    ids = [str(k) for k in np.random.default_rng(1).permutation(12)]
    rows = [
        {"output": {k: float(one[int(k)]) for k in ids}, "label": int(t)} for one, t in zip(p, y, strict=True)
    ]
    path = lines(tmp_path / "ids.jsonl", rows)
    found = Scores.read(path)
    assert found.class_names == tuple(map(str, range(12)))
    assert (found.values == p).all()
    assert found.labels.tolist() == y.tolist()
    names = [f"class {k}" for k in range(12)]
    assert Scores.read(path, class_names=names).class_names == tuple(names)
    rows = [{"output": mapped(p), "label": t} for p, t in zip(P, LABELS, strict=True)]
    turned = Scores.read(lines(tmp_path / "names.jsonl", rows), class_names=["owl", "dog", "cat"])
    assert (turned.values == P[:, ::-1]).all()
    assert turned.labels.tolist() == (2 - Y).tolist()
    two = [{"output": {"0": 0.25, "1": 0.75}, "label": 1}, {"output": {"1": 1.0, "0": 0.0}, "label": 0}] * 9
    by_name = Scores.read(lines(tmp_path / "two.jsonl", two), class_names=["1", "0"])
    assert by_name.values[:2].tolist() == [[0.75, 0.25], [1, 0]]
    assert by_name.labels[:2].tolist() == [0, 1]
    one = [{"output": {"no": p}, "label": y} for p, y in ((0.25, "yes"), (0.75, "no"), (0.5, "no"))]
    with pytest.raises(InputError, match="row 1 has no score of 'yes'"):
        Scores.read(lines(tmp_path / "one.jsonl", one), class_names=["no", "yes"], outputs="probability")
    found = Scores.read(tmp_path / "one.jsonl", class_names=["yes", "no"], outputs="probability")
    assert found.labels.tolist() == [0, 1, 1]
    with pytest.raises(InputError, match="names the class 'cat', 'owl', and the classes are"):
        Scores.read(tmp_path / "names.jsonl", class_names=["a", "dog", "b"])


def test_a_rest_that_nobody_told_is_not_zero(tmp_path: Path) -> None:
    exact = np.array([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.125, 0.0, 0.875]] * 10)
    kept = [{"output": {n: p for n, p in mapped(row).items() if p}, "label": "dog"} for row in exact]
    path = lines(tmp_path / "zero.jsonl", kept)
    # Not even where others sum to 1: a float32 softmax rounds to that.
    with pytest.raises(InputError, match=r"row 1 has no score of 'owl', and an unknown rest is not 0"):
        Scores.read(path)
    found = Scores.read(path, missing="absent=0")
    assert (found.values == exact).all()
    assert Scores.read(path, schema=found.schema).schema.missing == ("absent=0",)
    with pytest.raises(InputError, match="row 1 has no score of 'emu'"):
        Scores.read(path, class_names=["emu", *NAMES], missing="none")
    with pytest.raises(InputError, match="probability 0, and these are logits"):
        Scores.read(path, outputs="logits", missing="absent=0")
    top = [{"output": pairs(p)[:2], "label": y} for p, y in zip(P, LABELS, strict=True)]
    path = lines(tmp_path / "top.jsonl", top)
    with pytest.raises(InputError, match=r"row 1 has no score of .* an unknown rest is not 0"):
        Scores.read(path)
    with pytest.raises(InputError, match=r"sum to 0.684"):  # absent ones that are said to be 0 are not
        Scores.read(path, missing="absent=0")
    some = [*top[:3], *({"output": mapped(p), "label": y} for p, y in zip(P[3:], LABELS[3:], strict=True))]
    found = Scores.read(lines(tmp_path / "some.jsonl", some), missing="nan")
    assert (found.values == P[3:]).all()
    assert "3 of 40 rows are left out" in found.reading
    counts = [{n: int(v) for n, v in zip(NAMES, row, strict=True) if v} for row in 8 * exact]
    path = lines(tmp_path / "votes.jsonl", [{"output": one, "label": "dog"} for one in counts])
    np.testing.assert_array_equal(Scores.read(path, outputs="votes", missing="absent=0").probs[:], exact)
    in_memory = [{n: p for n, p in mapped(row).items() if p} for row in exact]
    assert (Scores.of(in_memory, missing="absent=0").values == exact).all()


def test_results_of_a_pipeline_are_read_as_they_come_and_as_lines(tmp_path: Path) -> None:
    results = [pairs(p) for p in P]
    for found in (Scores.of(results, LABELS), Scores.of(tuple(results), LABELS)):
        assert (found.values == P).all()
        assert found.class_names == tuple(NAMES)
    np.save(tmp_path / "labels.npy", Y)
    found = Scores.read(lines(tmp_path / "out.jsonl", results), labels=tmp_path / "labels.npy")
    assert (found.values == P).all()
    assert "classes by name from 'scores'" in found.reading


@pytest.mark.parametrize("form", ["struct", "map", "pairs", "list of a map"])
def test_parquet_gives_what_the_arrays_hold(form: str, tmp_path: Path) -> None:
    pair = pa.struct([("label", pa.string()), ("prob", pa.float64())])
    as_map = pa.map_(pa.string(), pa.float64())
    cells, kind = {
        "struct": ([mapped(row) for row in P], None),
        "map": ([list(mapped(row[::-1], NAMES[::-1]).items()) for row in P], as_map),
        "pairs": ([pairs(row, "prob") for row in P], pa.list_(pair)),
        "list of a map": ([[list(mapped(row).items())] for row in P], pa.list_(as_map)),
    }[form]
    table = pa.table({"predicted_label_probs": pa.array(cells, kind), "label": LABELS})
    pq.write_table(table, tmp_path / "scores.parquet")
    found = Scores.read(tmp_path / "scores.parquet")
    assert (found.values == P).all()
    assert found.class_names == tuple(NAMES)
    assert found.labels.tolist() == Y.tolist()


def test_a_map_of_parquet_that_names_a_class_twice_is_refused(tmp_path: Path) -> None:
    cells = [[("cat", 0.5), ("cat", 0.5)], *([("cat", 0.5), ("dog", 0.5)] for _ in range(9))]
    table = pa.table({"probs": pa.array(cells, pa.map_(pa.string(), pa.float64())), "label": ["cat"] * 10})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"row 1 .*'cat' twice"):
        Scores.read(tmp_path / "x.parquet")


# What libraries write.


def test_maps_of_an_onnx_file_of_scikit_learn(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    x = X.astype(np.float32)
    for target in (np.array(["setosa", "versicolor", "virginica"])[y], 10 * y + 5):
        model = RandomForestClassifier(7, max_depth=2, random_state=0).fit(X[::2], target[::2])
        _, maps = answers(to_onnx(model, x[:1]), x)
        _, p = answers(to_onnx(model, x[:1], options={"zipmap": False}), x)
        for cell in (dict, lambda one: [one]):
            rows = [
                {"output_probability": cell(m), "label": t}
                for m, t in zip(maps, target.tolist(), strict=True)
            ]
            found = Scores.read(lines(tmp_path / "maps.jsonl", rows))
            assert (found.values == p).all()
            assert found.class_names == tuple(map(str, model.classes_))
            assert found.labels.tolist() == y.tolist()
        assert (Scores.of(maps, target).values == p).all()


def answers(graph: Any, x: Any) -> Any:
    session = InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_structs_and_maps_that_duckdb_copies(ending: str, tmp_path: Path) -> None:
    table = pa.table({**{name: P[:, k] for k, name in enumerate(NAMES)}, "label": LABELS, "id": np.arange(N)})
    path = tmp_path / f"scores.{ending}"
    with duckdb.connect() as database:
        database.register("scores", table)
        for cell in (
            "{'owl': owl, 'cat': cat, 'dog': dog}",
            "map {'dog': dog, 'owl': owl, 'cat': cat}",
            "[{'label': 'dog', 'prob': dog}, {'label': 'cat', 'prob': cat}, {'label': 'owl', 'prob': owl}]",
        ):
            database.execute(
                f"COPY (SELECT id, {cell} AS predicted_label_probs, label FROM scores) TO '{path}'"
            )
            found = Scores.read(path)
            assert (found.values == P).all()
            assert (found.class_names, found.labels.tolist()) == (tuple(NAMES), Y.tolist())
