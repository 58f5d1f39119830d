"""Logits come out of every kind of file as they went in, and a wrong file is answered with what it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from calib_serve.errors import InputError, ShapeError
from calib_serve.scores import Scores

LOGITS = np.array([[1.5, -2.25, 0.125], [0.0, 3.5, -1.0], [2.0, 2.0, 0.5], [9.0, -1.0, 0.0]])
LABELS = np.array([0, 1, 2, 0])


def write_csv(path: Path) -> Path:
    lines = ["label,cat,dog,fox,split"]
    for i, (z, y) in enumerate(zip(LOGITS.tolist(), LABELS.tolist(), strict=True)):
        lines.append(f"{y},{z[0]},{z[1]},{z[2]},{'cal' if i < 2 else 'test'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    columns = {name: LOGITS[:, k] for k, name in enumerate(("cat", "dog", "fox"))}
    table = {"label": LABELS, **columns, "split": ["cal", "cal", "test", "test"]}
    pyarrow.parquet.write_table(pa.table(table), path)
    return path


@pytest.mark.parametrize(("write", "name"), [(write_csv, "z.csv"), (write_parquet, "z.parquet")])
def test_a_table_gives_each_split_its_rows(write, name: str, tmp_path: Path):
    path = write(tmp_path / name)
    for split, rows in (("cal", slice(0, 2)), ("test", slice(2, 4))):
        found = Scores.read(path, split=split)
        np.testing.assert_array_equal(found.logits, LOGITS[rows])
        np.testing.assert_array_equal(found.labels, LABELS[rows])
        assert found.class_names == ("cat", "dog", "fox")
    with pytest.raises(InputError, match=r"the splits cal, test; name one \(--split"):
        Scores.read(path)
    with pytest.raises(InputError, match="the splits cal, test, got 'val'"):
        Scores.read(path, split="val")


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_arrays_are_found_by_split_and_by_themselves(kind: str, tmp_path: Path):
    path = tmp_path / f"z.{kind}"
    arrays = {"cal_logits": LOGITS[:2], "cal_labels": LABELS[:2], "logits": LOGITS, "labels": LABELS}
    np.savez(path, **arrays) if kind == "npz" else save_file(arrays, path)
    np.testing.assert_array_equal(Scores.read(path, split="cal").logits, LOGITS[:2])
    np.testing.assert_array_equal(Scores.read(path).labels, LABELS)
    with pytest.raises(InputError, match="no array test_logits; it has cal_labels, cal_logits"):
        Scores.read(path, split="test")


def test_an_npy_file_is_mapped_and_takes_its_labels_from_another(tmp_path: Path):
    np.save(tmp_path / "z.npy", LOGITS.astype(np.float16))
    np.save(tmp_path / "y.npy", LABELS)
    found = Scores.read(tmp_path / "z.npy", labels=tmp_path / "y.npy")
    assert isinstance(found.logits, np.memmap)
    assert found.logits.dtype == np.float16
    np.testing.assert_array_equal(found.labels, LABELS)
    assert Scores.read(tmp_path / "z.npy").labels is None
    with pytest.raises(InputError, match="no split 'cal'"):
        Scores.read(tmp_path / "z.npy", split="cal")


def test_probabilities_become_logarithms_and_zero_stays_finite(tmp_path: Path):
    np.savez(tmp_path / "p.npz", probs=np.array([[0.25, 0.75], [1.0, 0.0]]), labels=[0, 1])
    found = Scores.read(tmp_path / "p.npz").logits
    np.testing.assert_allclose(np.exp(found), [[0.25, 0.75], [1.0, 0.0]], atol=1e-37)
    assert np.isfinite(found).all()
    np.savez(tmp_path / "z.npz", probs=LOGITS, labels=LABELS)
    with pytest.raises(InputError, match="logits are --outputs logits"):
        Scores.read(tmp_path / "z.npz")


def test_shapes_that_do_not_fit_and_missing_files_are_told(tmp_path: Path):
    np.savez(tmp_path / "z.npz", logits=LOGITS, labels=LABELS[:2])
    with pytest.raises(ShapeError, match="one for each row"):
        Scores.read(tmp_path / "z.npz")
    with pytest.raises(InputError, match="no file"):
        Scores.read(tmp_path / "none.npz")
