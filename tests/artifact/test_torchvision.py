"""Pictures become what torchvision makes of them, bit for bit; its transforms are read or refused."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from libraries import torchvision_here
from PIL import Image

from calib_serve.artifact.preprocessing import Preprocessing, read_picture
from calib_serve.artifact.transforms import preprocessing_of
from calib_serve.core.errors import InputError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def t() -> ModuleType:
    return torchvision_here().transforms


@pytest.fixture(scope="module")
def v2() -> Any:
    torchvision_here()
    from torchvision.transforms import v2

    return v2


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


def composes(t: ModuleType) -> dict[str, Any]:
    """Evaluation transforms as people write them; the crop is 32."""
    last = [t.ToTensor(), t.Normalize(MEAN, STD)]
    mode = t.InterpolationMode
    return {
        **{f"shorter {m}": [t.Resize(40, mode(m)), t.CenterCrop(32), *last] for m in MODES},
        **{f"exact {m}": [t.Resize((32, 32), mode(m)), *last] for m in MODES},
        "exact, then cropped": [t.Resize((45, 37)), t.CenterCrop((32, 32)), *last],
        "cropped only": [t.CenterCrop(32), *last],
        "odd crop": [t.Resize([41]), t.CenterCrop((31, 27)), *last],
        "any shape": [t.Resize(33), *last],
        "not normalised": [t.Resize((32, 32)), t.ToTensor()],
        "as bytes first": [t.Resize(32), t.PILToTensor(), t.ConvertImageDtype(_float()), last[1]],
    }


def _float() -> Any:
    import torch

    return torch.float32


NAMES = tuple(f"{how} {m}" for how in ("shorter", "exact") for m in MODES)
NAMES += ("exact, then cropped", "cropped only", "odd crop", "any shape", "not normalised", "as bytes first")


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_bit_for_bit_what_torchvision_makes_of_it(t: ModuleType, name: str) -> None:
    compose = t.Compose(composes(t)[name])
    how = preprocessing_of(compose)
    assert Preprocessing.of(how.as_dict()) == how
    for kind, raw in FILES.items():
        with Image.open(io.BytesIO(raw)) as picture:
            wanted = compose(picture.convert("RGB")).numpy()  # as its datasets' default loader does
        found = read_picture(io.BytesIO(raw), how, shape=(3, None, None))
        assert found.dtype == np.float32
        assert np.array_equal(found, wanted), kind


def test_grey_models_get_what_torchvision_makes_of_grey(t: ModuleType) -> None:
    grey = [t.Grayscale(), t.Resize(40), t.CenterCrop(32), t.ToTensor()]
    with pytest.raises(InputError, match="TypeError"):
        preprocessing_of(
            t.Compose([*grey, t.Normalize(0.13, 0.31)])
        )  # torchvision itself fails on such a mean
    compose = t.Compose([*grey, t.Normalize([0.13], [0.31])])
    how = preprocessing_of(compose)
    assert how.channels == 1
    for kind, raw in FILES.items():
        with Image.open(io.BytesIO(raw)) as picture:
            wanted = compose(picture.convert("L")).numpy()
        assert np.array_equal(read_picture(io.BytesIO(raw), how, shape=(1, 32, 32)), wanted), kind


def test_a_weights_preset_is_read_and_done(t: ModuleType) -> None:
    from torchvision.models import ResNet18_Weights, Swin_T_Weights

    spec = "torchvision.models:ResNet18_Weights.DEFAULT.transforms"
    assert preprocessing_of(spec) == preprocessing_of(ResNet18_Weights.DEFAULT.transforms())
    for weights in (ResNet18_Weights, Swin_T_Weights):
        preset = weights.DEFAULT.transforms()
        how = preprocessing_of(preset)
        assert how.size == (224, 224)
        for kind in ("jpeg", "png", "alpha", "jpeg turned"):
            with Image.open(io.BytesIO(FILES[kind])) as picture:
                wanted = preset(picture.convert("RGB")).numpy()
            assert np.array_equal(read_picture(io.BytesIO(FILES[kind]), how), wanted), kind


def test_what_cannot_be_written_down_is_refused_by_name(t: ModuleType, v2: Any) -> None:
    tensor, norm, mode = t.ToTensor(), t.Normalize(MEAN, STD), t.InterpolationMode
    for transforms, said in (
        ([t.RandomHorizontalFlip(), tensor, norm], "RandomHorizontalFlip"),
        ([t.Lambda(lambda x: x), tensor], "Lambda"),
        ([t.Resize(40, max_size=60), tensor], "max_size"),
        ([t.CenterCrop(32), t.Resize(40), tensor], "Resize: .* stands after"),
        ([tensor, norm, t.Resize(32)], "stands after Normalize"),
        ([t.Resize(40, mode.BOX), tensor], "interpolation"),
        ([tensor, t.Resize(40, antialias=False), norm], "resizes a tensor"),
        ([tensor, t.Resize(40, mode.NEAREST), norm], "resizes a tensor"),
        ([t.PILToTensor()], "never scale"),
        ([t.PILToTensor(), norm], "before the picture is scaled"),
        ([t.Resize(16), t.CenterCrop(32), tensor], "crop"),
    ):
        with pytest.raises(InputError, match=said):
            preprocessing_of(t.Compose(transforms))
    for foreign in (t.Resize(3), 7, None, "nowhere", "no.such.module:name", "math:tau", {"mean": 1}):
        with pytest.raises(InputError):
            preprocessing_of(foreign)


class Resize:
    """Somebody's own, by the same name."""

    size, interpolation, max_size = 32, "bilinear", None


TIMM = {
    "input_size": (3, 224, 224),
    "interpolation": "bicubic",
    "mean": MEAN,
    "std": STD,
    "crop_pct": 0.9,
    "crop_mode": "center",
}


def test_timm_s_data_config_is_read_as_timm_does() -> None:
    how = preprocessing_of(TIMM)
    assert (how.resize, how.crop, how.interpolation) == (248, (224, 224), "bicubic")
    assert preprocessing_of(lambda: TIMM) == how
    squashed = preprocessing_of({**TIMM, "crop_mode": "squash", "crop_pct": 1.0})
    assert squashed.resize == (224, 224)
    for change in (
        {"crop_mode": "border"}, {"input_size": (3, 224, 192)}, {"interpolation": "random"},
        {"crop_pct": None}, {"crop_pct": 0}, {"mean": "x"}, {"input_size": 7},
    ):  # fmt: skip
        with pytest.raises(InputError):
            preprocessing_of({**TIMM, **change})
