"""How pictures are prepared is one value that cannot be wrong, and hostile pictures cost little."""

from __future__ import annotations

import io
import resource
from typing import Any

import numpy as np
import pytest
from PIL import Image

from calib_serve.artifact.preprocessing import Preprocessing, read_picture
from calib_serve.core.errors import InputError, ShapeError

PLAIN = Preprocessing(mean=(0.0,), std=(1.0,))


@pytest.mark.parametrize(
    "given",
    [
        {"mean": 0, "std": 1, "stdd": 1},
        {"mean": 0, "std": 0},
        {"mean": 0, "std": 1e-300},
        {"mean": [0, 0], "std": 1},
        {"mean": float("nan"), "std": 1},
        {"mean": [[0]], "std": 1},
        {"mean": [0, 0, 0], "std": 1, "channels": 1},
        {"mean": 0, "std": 1, "resize": 0},
        {"mean": 0, "std": 1, "resize": [32, 32, 3]},
        {"mean": 0, "std": 1, "resize": 10**9},
        {"mean": 0, "std": 1, "crop": [32, -1]},
        {"mean": 0, "std": 1, "resize": 32, "crop": [33, 32]},
        {"mean": 0, "std": 1, "interpolation": "cubic"},
        7,
    ],
    ids=repr,
)  # fmt: skip
def test_what_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(InputError):
        Preprocessing.of(given)


def test_one_number_stands_for_every_channel_and_a_file_says_the_same() -> None:
    how = Preprocessing.of({"mean": 0.5, "std": [0.25], "resize": 40, "crop": 32})
    assert (how.mean, how.std, how.crop, how.channels) == ((0.5,), (0.25,), (32, 32), None)
    colour = how.for_input((3, 32, None))
    assert colour.as_dict() == {
        "mean": [0.5] * 3, "std": [0.25] * 3, "resize": 40, "crop": [32, 32], "channels": 3
    }  # fmt: skip
    assert Preprocessing.of(colour.as_dict()) == colour == colour.for_input((3, 32, 32))
    assert how.for_input((1, 32, 32)).channels == 1


@pytest.mark.parametrize(
    ("how", "shape", "said"),
    [
        ({"mean": [0] * 3, "std": 1}, (1, 8, 8), "3 channels, the model takes 1"),
        ({"mean": 0, "std": 1, "crop": 7}, (3, 8, 8), r"to \(7, 7\), the model takes \(8, 8\)"),
        ({"mean": 0, "std": 1, "resize": [8, 7]}, (3, 8, 8), "the model takes"),
        ({"mean": 0, "std": 1}, (8, 8, 3), "no picture"),
    ],
)
def test_pictures_that_cannot_be_the_model_s_inputs_are_refused(how: Any, shape: Any, said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        Preprocessing.of(how).for_input(shape)


def png(width: int, height: int, mode: str = "1") -> io.BytesIO:
    stream = io.BytesIO()
    Image.new(mode, (width, height)).save(stream, "PNG")
    stream.seek(0)
    return stream


def test_a_thin_picture_that_would_grow_to_gigabytes_is_refused_before_it_does() -> None:
    how = Preprocessing(mean=(0.0,), std=(1.0,), resize=224, crop=(224, 224))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="resized, the picture would have 224 x 224000000 pixels"):
        read_picture(png(1, 1_000_000), how)
    with pytest.raises(InputError, match="25000001 x 1 pixels, more than"):
        read_picture(png(25_000_001, 1), how)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_a_limit_on_what_is_sent_is_none_on_what_it_is_resized_to() -> None:
    how = Preprocessing(mean=(0.0,), std=(1.0,), resize=(64, 64))
    assert read_picture(png(8, 8), how, max_pixels=64).shape == (3, 64, 64)
    with pytest.raises(InputError, match="the picture has 9 x 8 pixels, more than the 64 allowed"):
        read_picture(png(9, 8), how, max_pixels=64)


def test_a_picture_of_another_size_than_the_model_s_is_refused_where_nobody_said_how_to_resize() -> None:
    assert read_picture(png(8, 6), PLAIN, shape=(3, 6, 8)).shape == (3, 6, 8)
    with pytest.raises(ShapeError, match=r"height and width \(6, 8\), the model takes \(8, 8\)"):
        read_picture(png(8, 6), PLAIN, shape=(3, 8, 8))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_more_than_eight_bits_are_refused_instead_of_cut_off(mode: str) -> None:
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 8), 4000, np.uint16)).convert(mode).save(stream, "TIFF")
    with pytest.raises(InputError, match="more than 8 bits"):
        read_picture(stream, PLAIN)


def test_channels_are_the_model_s_else_those_that_are_said_else_the_picture_s() -> None:
    grey = Preprocessing(mean=(0.0,), std=(1.0,), channels=1)
    assert read_picture(png(4, 4, "RGB"), grey).shape == (1, 4, 4)
    assert read_picture(png(4, 4, "L"), PLAIN, shape=(3, 4, 4)).shape == (3, 4, 4)
    assert read_picture(png(4, 4, "L"), PLAIN).shape == (1, 4, 4)
    assert read_picture(png(4, 4, "P"), PLAIN).shape == (3, 4, 4)
