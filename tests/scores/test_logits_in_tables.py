"""Logits that lie in folders of Parquet files or in a database fit as those of a file do."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import invoke
from engines import postgres

from calib_serve import Artifact, Scores, calibrate
from calib_serve.errors import InputError

ibis = pytest.importorskip("ibis")

NAMES = ["bird", "cat", "dog"]


def samples(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    return rng.normal(size=(n, 3)) * 2 + 3 * np.eye(3)[labels], labels


def as_lists(logits):
    values = pa.array(logits.ravel())
    return pa.ListArray.from_arrays(np.arange(0, logits.size + 1, logits.shape[1], dtype=np.int32), values)


def write(folder, logits, labels, *, files=3, wide=True, **more):
    folder.mkdir(parents=True, exist_ok=True)
    for i, at in enumerate(np.array_split(np.arange(len(labels)), files)):
        table = (
            dict(zip(NAMES, logits[at].T, strict=True))
            if wide
            else {"id": at, "logits": as_lists(logits[at])}
        )
        table |= {"label": labels[at], **{name: np.asarray(values)[at] for name, values in more.items()}}
        pq.write_table(pa.table(table), folder / f"part-{i}.parquet")
    return folder


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("how", ["folder", "pattern"])
def test_a_folder_of_parquet_fits_as_one_array_does(wide, how, tmp_path):
    logits, labels = samples()
    where = write(tmp_path / "logs", logits, labels, wide=wide)
    found = Scores.read(where if how == "folder" else f"{where}/part-*.parquet")
    order, ours = (np.lexsort(z.T) for z in (logits, found.logits))
    np.testing.assert_array_equal(found.logits[ours], logits[order])
    np.testing.assert_array_equal(found.labels[ours], labels[order])
    assert found.class_names == (tuple(NAMES) if wide else ())
    assert isinstance(found.values, np.memmap)
    # What is chosen by folds depends on the order of rows, which an engine does not promise.
    for method, far in (("temperature", 1e-6), ("vector", 1e-6), ("structured-vector", 5e-3)):
        one = calibrate(found, method=method, cross_validate=False)
        other = calibrate(logits, labels, method, cross_validate=False)
        np.testing.assert_allclose(one.probs(logits), other.probs(logits), rtol=0, atol=far)


def test_one_file_of_lists_keeps_labels_and_splits_beside_each_row(tmp_path):
    logits, labels = samples(60)
    parts = np.array(["cal", "test"])[np.arange(60) % 2]
    write(tmp_path, logits, labels, files=1, wide=False, split=parts)
    found = Scores.read(tmp_path / "part-0.parquet", split="test")
    np.testing.assert_array_equal(found.logits, logits[1::2])
    np.testing.assert_array_equal(found.labels, labels[1::2])


def test_what_has_no_order_takes_no_labels_or_groups_by_their_order(tmp_path):
    logits, labels = samples(60)
    where = write(tmp_path / "logs", logits, labels)
    np.save(tmp_path / "y.npy", labels)
    for many in (where, f"{where}/*.parquet"):
        with pytest.raises(InputError, match="come in any order"):
            Scores.read(many, labels=tmp_path / "y.npy")
        with pytest.raises(InputError, match="come in any order"):
            Scores.read(many, groups=tmp_path / "y.npy")
    np.save(tmp_path / "g.npy", labels[:20])
    assert len(Scores.read(where / "part-0.parquet", groups=tmp_path / "g.npy").groups) == 20


def missing(table):
    return table.set_column(0, "bird", pa.array([None, *([1.0] * (len(table) - 1))]))


def text(table):
    return table.set_column(1, "cat", pa.array(["a"] * len(table)))


def ragged(table):
    rows = [[1.0, 2.0]] * (len(table) - 1) + [[1.0, 2.0, 3.0]]
    return pa.table({"logits": rows, "label": [0] * len(table)})


def nothing(table):
    return table.slice(0, 0)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (missing, r"'bird', row 1: the score is missing"),
        (text, "scores are numbers, and cat is string"),
        (ragged, "row 30: the list is missing, or not of 2"),
        (nothing, "column names but no rows"),
    ],
)
def test_tables_that_cannot_be_fitted_are_refused(broken, says, tmp_path):
    write(tmp_path / "logs", *samples(30), files=1)
    path = tmp_path / "logs" / "part-0.parquet"
    pq.write_table(broken(pq.read_table(path)), path)
    with pytest.raises(InputError, match=says):
        Scores.read(tmp_path / "logs")


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    write(tmp_path / "logs", *samples(3000))

    def full(**_):
        return open("/dev/full", "r+b")  # noqa: PTH123

    monkeypatch.setattr("calib_serve.scores.files.tempfile.TemporaryFile", full)
    with pytest.raises(InputError, match="name a folder with room by TMPDIR"):
        Scores.read(tmp_path / "logs")


@pytest.mark.server
def test_a_table_of_postgres_is_fitted_from_the_command_line(tmp_path, monkeypatch):
    logits, labels = samples(1500)
    with postgres(password="s3cret") as address:
        connection = ibis.connect(address, password="s3cret")
        table = pa.table({**dict(zip(NAMES, logits.T, strict=True)), "label": labels})
        connection.create_table("scores", table)
        connection.disconnect()
        monkeypatch.setenv("CALIB_SERVE_ENGINE_PASSWORD", "s3cret")
        asked = ["fit", "--data", "scores", "--engine", address, "--method", "temperature"]
        told = invoke([*asked, "-o", str(tmp_path / "a")])
        assert told.exit_code == 0, told.output
        with_password = address.replace("auditor@", "auditor:s3cret@")
        refused = invoke([*asked[:4], with_password, "-o", str(tmp_path / "b")])
        assert refused.exit_code != 0
        assert "s3cret" not in refused.output
    want = calibrate(logits, labels, "temperature")
    made = Artifact.load(tmp_path / "a")
    assert made.fit["temperature"] == pytest.approx(want.fit["temperature"], rel=1e-6)
    assert made.class_names == tuple(NAMES)
