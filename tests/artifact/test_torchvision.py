"""Pictures become what torchvision makes of them, bit for bit."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from libraries import torchvision_here
from PIL import Image

from calib_serve.artifact.preprocessing import Preprocessing, read_picture

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def t() -> ModuleType:
    return torchvision_here().transforms


def noise(width: int, height: int) -> Image.Image:
    """Smooth colours with noise on top, as photographs are."""
    rng = np.random.default_rng(width * 1000 + height)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 9), np.cos(y / 7), np.sin((x + y) / 11)], axis=2) * 90 + 128
    return Image.fromarray(np.clip(waves + rng.normal(0, 25, waves.shape), 0, 255).astype(np.uint8))


def saved(picture: Image.Image, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **how)
    return stream.getvalue()


def turned() -> Image.Exif:
    """What a camera that was held upright writes."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def with_alpha(picture: Image.Image) -> Image.Image:
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return picture


FILES = {
    "png": saved(noise(61, 37), "PNG"),
    "png upright": saved(noise(37, 61), "PNG"),
    "png wide": saved(noise(401, 50), "PNG"),
    "png larger": saved(noise(301, 500), "PNG"),
    "png as cropped": saved(noise(32, 32), "PNG"),
    "png smaller": saved(noise(9, 20), "PNG"),
    "jpeg": saved(noise(333, 251), "JPEG", quality=80),
    "jpeg turned": saved(noise(120, 90), "JPEG", exif=turned()),
    "jpeg cmyk": saved(noise(90, 70).convert("CMYK"), "JPEG"),
    "jpeg grey": saved(noise(90, 71).convert("L"), "JPEG"),
    "grey": saved(noise(71, 90).convert("L"), "PNG"),
    "grey and alpha": saved(noise(71, 90).convert("LA"), "PNG"),
    "alpha": saved(with_alpha(noise(65, 48)), "PNG"),
    "palette": saved(noise(65, 48).quantize(64), "PNG"),
    "palette and transparent": saved(noise(65, 48).quantize(64), "PNG", transparency=3),
    "one bit": saved(noise(65, 48).convert("1"), "PNG"),
    "webp": saved(noise(65, 48), "WEBP"),
    "gif": saved(noise(65, 48), "GIF"),
}

MODES = ("nearest", "bilinear", "bicubic", "lanczos")


SIZES = {
    **{f"shorter {m}": ({"resize": 40, "crop": (32, 32), "interpolation": m}) for m in MODES},
    **{f"exact {m}": ({"resize": (32, 32), "interpolation": m}) for m in MODES},
    "exact, then cropped": {"resize": (45, 37), "crop": (32, 32)},
    "cropped only": {"crop": (32, 32)},
    "odd crop": {"resize": 41, "crop": (31, 27)},
    "any shape": {"resize": 33},
}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("size", SIZES)
def test_every_picture_is_bit_for_bit_what_torchvision_makes_of_it(
    t: ModuleType, size: str, channels: int
) -> None:
    mean, std = (MEAN, STD) if channels == 3 else ((0.13,), (0.31,))
    how = Preprocessing(mean=mean, std=std, channels=channels, **SIZES[size])
    assert Preprocessing.of(how.as_dict()) == how
    resize = [] if how.resize is None else [t.Resize(how.resize, t.InterpolationMode(how.interpolation))]
    crop = [] if how.crop is None else [t.CenterCrop(how.crop)]
    compose = t.Compose([*resize, *crop, t.ToTensor(), t.Normalize(mean, std)])
    for kind, raw in FILES.items():
        with Image.open(io.BytesIO(raw)) as picture:
            wanted = compose(picture.convert("RGB" if channels == 3 else "L")).numpy()  # as its datasets do
        found = read_picture(io.BytesIO(raw), how, shape=(channels, None, None))
        assert found.dtype == np.float32
        assert np.array_equal(found, wanted), kind
