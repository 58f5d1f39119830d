"""Calibration sets: what loads, in which layout, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from calib_serve.core.errors import InputError, ShapeError
from calib_serve.models.dataset import Dataset, load_data
from calib_serve.models.input_shapes import check_input_shape

RNG = np.random.default_rng(0)
X = RNG.random((12, 3, 4, 4)).astype(np.float32)
Y = np.arange(12) % 3
PLAIN = {"mean": 0, "std": 1}


def batches(split):
    """What a user's own function would be: batches of the split asked for."""
    for start in range(0, 12, 5):
        yield X[start : start + 5] * (2 if split == "twice" else 1), Y[start : start + 5]


def test_an_npz_is_read_by_either_name_and_by_split(tmp_path) -> None:
    np.savez(tmp_path / "a.npz", inputs=X, labels=Y, class_names=["cat", "dog", "eel"])
    np.savez(tmp_path / "b.npz", cal_x=X, cal_y=Y, test_x=X[:2], test_y=Y[:2])
    whole, part = load_data(tmp_path / "a.npz"), load_data(tmp_path / "b.npz", split="test")
    assert np.array_equal(whole.inputs, X)
    assert whole.class_names == ("cat", "dog", "eel")
    assert len(part) == 2
    with pytest.raises(InputError, match="val_inputs or val_images or val_x"):
        load_data(tmp_path / "b.npz", split="val")


def test_pictures_come_by_their_table_with_names_and_splits(tmp_path) -> None:
    rows = ["file,label,split"]
    for i, name in enumerate(["eel", "cat", "eel"]):
        Image.fromarray((X[i] * 255).astype(np.uint8).transpose(1, 2, 0)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{name},{'cal' if i < 2 else 'test'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    data = load_data(tmp_path, split="cal", pictures=PLAIN)
    assert data.class_names == ("cat", "eel")
    assert data.labels.tolist() == [1, 0]
    np.testing.assert_allclose(data.inputs, X[:2], atol=1 / 255)
    assert len(load_data(tmp_path, pictures=PLAIN)) == 3
    with pytest.raises(InputError, match="no file of split 'val'"):
        load_data(tmp_path, split="val", pictures=PLAIN)
    normalised = load_data(tmp_path, pictures={"mean": 0.5, "std": [0.1, 0.2, 0.4]})
    np.testing.assert_allclose(
        normalised.inputs[:2], (X[:2] - 0.5) / np.array([0.1, 0.2, 0.4])[:, None, None], atol=0.05
    )
    assert normalised.pictures is not None
    assert normalised.pictures.mean == (0.5, 0.5, 0.5)


def test_pictures_are_not_read_before_it_is_said_how_and_arrays_are_as_they_are(tmp_path) -> None:
    (tmp_path / "labels.csv").write_text("file,label\na.png,0\n")
    with pytest.raises(InputError, match=r"mean= and std=.*mean=0 and std=1"):
        load_data(tmp_path)
    np.savez(tmp_path / "a.npz", inputs=X, labels=Y)
    for arrays in (tmp_path / "a.npz", f"{__file__}:batches"):
        with pytest.raises(InputError, match="belongs to a folder of pictures"):
            load_data(arrays, pictures=PLAIN)


def test_a_function_s_batches_are_put_together() -> None:
    data = load_data(f"{__file__}:batches", split="twice")
    assert np.array_equal(data.inputs, 2 * X)
    assert np.array_equal(data.labels, Y)
    with pytest.raises(InputError, match="gave no data"):
        load_data(f"{__file__}:nothing")


def test_labels_and_inputs_that_cannot_be_right_are_refused() -> None:
    with pytest.raises(ShapeError, match="one-hot"):
        Dataset(X, np.eye(3)[Y]).check((3, 4, 4), 3)
    with pytest.raises(InputError, match="0 or 1"):
        Dataset(X, 2 * np.eye(3)[Y])
    with pytest.raises(InputError, match="whole numbers"):
        Dataset(X, Y + 0.5)
    with pytest.raises(InputError, match="no sample"):
        Dataset(X[:0], Y[:0])


def test_data_is_held_against_the_model_before_anything_runs() -> None:
    data = Dataset(X, Y)
    data.check((3, 4, 4), 3)
    with pytest.raises(ShapeError, match=r"takes inputs of shape \(n, 3, 8, 8\)"):
        data.check((3, 8, 8), 3)
    with pytest.raises(InputError, match=r"up to 2, the model has classes 0\.\.1"):
        data.check((3, 4, 4), 2)
    with pytest.raises(InputError, match="all 12 samples are of class 1"):
        Dataset(X, np.ones(12, int)).check((3, 4, 4), 3)
    with pytest.raises(ShapeError, match="has 4 classes, the data names 3"):
        Dataset(X, Y, ("a", "b", "c")).check((3, 4, 4), 4)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((28, 28), (1, 28, 28)),
        ((28, 28), (None, 28, 28)),
        ((28, 28, 3), (3, 28, 28)),
        ((32, 28, 3), (3, None, None)),
        ((3, 28, 32), (28, 32, 3)),
    ],
)
def test_inputs_that_are_turned_as_told_fit(given: tuple[int, ...], wanted: tuple[int | None, ...]) -> None:
    with pytest.raises(ShapeError) as refused:
        check_input_shape(given, wanted)
    (how,) = re.findall(r"inputs[.\[].*", str(refused.value))
    turned = eval(how, {"np": np, "inputs": np.zeros((2, *given))})
    assert turned.ndim == 1 + len(wanted)
    check_input_shape(turned.shape[1:], wanted)


@pytest.mark.parametrize("given", [(5, 7), (3, 28, 28), (2, 28, 28), (28, 28, 28)])
def test_no_wrong_advice_is_given(given: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"as in its training$"):
        check_input_shape(given, (1, 28, 28))
