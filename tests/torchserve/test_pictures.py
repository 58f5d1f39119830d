"""In the field: a CIFAR-10 network packed as documented answers PNGs as well as arrays, or refuses them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import calib_serve
from live_server import Running, exported
from PIL import Image
from sizes import sized

from calib_serve.artifact import Artifact
from calib_serve.core.files import import_object

pytestmark = pytest.mark.server

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OPTIONS = ("--pictures", "mean=0.485,0.456,0.406", "--pictures", "std=0.229,0.224,0.225")
SENT, FITTED = sized((12, 100), (60, 300))
CIFAR = Path(__file__).parents[2] / "benchmarks" / "cifar.py"


def call(*arguments: object) -> str:
    done = calib_serve(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


def normalised_outside(data_dir: Path) -> torch.nn.Module:
    """ResNet-20 as it was trained: normalisation belongs to the transforms, not to the network."""
    from safetensors.torch import load_file

    net = import_object(f"{CIFAR}:resnet20")()
    net.load_state_dict(load_file(data_dir / "models" / "akamaster_resnet20_c10.safetensors"))
    net.mean.zero_()
    net.std.fill_(1.0)
    return net.eval()


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(stream, "PNG")
    return stream.getvalue()


@dataclass
class Field:
    """A folder with the model, pictures to fit on, and what is sent."""

    folder: Path
    pixels: np.ndarray
    labels: np.ndarray

    @property
    def arrays(self) -> np.ndarray:
        mean, std = (np.array(stat, np.float32)[:, None, None] for stat in (MEAN, STD))
        return (self.pixels.astype(np.float32) / np.float32(255) - mean) / std


@pytest.fixture(scope="module")
def field(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Field:
    folder = tmp_path_factory.mktemp("field")
    exported(folder / "net.pt2", normalised_outside(data_dir), 3, 32, 32)
    pixels = import_object(f"{CIFAR}:sheet")(data_dir / "images" / "cifar10_test_0_4999.webp")
    with np.load(data_dir / "images" / "cifar10_test_0_4999_labels.npz") as archive:
        labels = archive["labels"].astype(int)
    (folder / "pictures").mkdir()
    rows = ["file,label"]
    for i in range(SENT, SENT + FITTED):
        (folder / "pictures" / f"{i}.png").write_bytes(png(pixels[i]))
        rows.append(f"{i}.png,{labels[i]}")
    (folder / "pictures" / "labels.csv").write_text("\n".join(rows))
    found = Field(folder, pixels[:SENT], labels[:SENT])
    fit = ("fit", "--model", folder / "net.pt2", "--method", "temperature", "--option", "device=cpu")
    call(*fit, "--data", folder / "pictures", *OPTIONS, "-o", folder / "of_pictures")
    whole = Field(folder, pixels[SENT : SENT + FITTED], labels)
    np.savez(folder / "a.npz", inputs=whole.arrays, labels=labels[SENT : SENT + FITTED])
    call(*fit, "--data", folder / "a.npz", "-o", folder / "of_arrays")
    return found


def test_a_calibration_fitted_on_pictures_is_that_of_the_arrays_they_stand_for(field: Field) -> None:
    pictures, arrays = (Artifact.load(field.folder / name) for name in ("of_pictures", "of_arrays"))
    np.testing.assert_array_equal(pictures.logit_maps[0].weight, arrays.logit_maps[0].weight)
    assert arrays.model.pictures is None
    how = pictures.model.pictures
    assert how is not None
    assert (how.mean, how.std, how.size) == (MEAN, STD, None)
    assert json.loads(call("inspect", field.folder / "of_pictures", "--json"))["model"]["pictures"]


@pytest.fixture(scope="module")
def running(register: Callable[..., Running], field: Field) -> Running:
    store = field.folder / "store"
    pack = ("pack", "--model", field.folder / "net.pt2", "-o", store)
    call(*pack, "--artifact", field.folder / "of_pictures", "--name", "by_artifact")
    return register(*sorted(store.glob("*.mar")))


def answers(running: Running, model: str, field: Field) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Replies to the pictures as PNGs, and as the arrays that the network was trained on."""
    found: list[list[dict[str, Any]]] = [[], []]
    for pixels, array in zip(field.pixels, field.arrays, strict=True):
        for replies, body in zip(
            found, ({"content": png(pixels)}, {"json": array.astype(float).tolist()}), strict=True
        ):
            reply = running.predict(None, model, **body)
            assert reply.status_code == 200, reply.text
            replies.append(reply.json())
    return found[0], found[1]


def test_pictures_are_answered_exactly_as_arrays_are(running: Running, field: Field) -> None:
    pictures, arrays = answers(running, "by_artifact", field)
    for one, other in zip(pictures, arrays, strict=True):
        np.testing.assert_allclose(one["probabilities"], other["probabilities"], atol=1e-6)
    right = sum(one["predicted"] == y for one, y in zip(pictures, field.labels, strict=True))
    assert right >= 0.9 * SENT


def test_an_archive_does_not_prepare_pictures_otherwise_than_its_calibration_was_fitted(
    field: Field, tmp_path: Path
) -> None:
    pack = ("pack", "--model", field.folder / "net.pt2", "--artifact", field.folder / "of_pictures")
    others = calib_serve(*pack, "--name", "m", "--pictures", "mean=0", "--pictures", "std=1", "-o", tmp_path)
    assert others.exit_code == 3
    assert re.search(r"fitted on pictures prepared by .*0\.485.*, not by .*0\.0", others.stderr)
    call(*pack, "--name", "m", *OPTIONS, "-o", tmp_path)
