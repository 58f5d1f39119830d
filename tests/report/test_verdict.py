"""The verdict says what the numbers say, in each of its four levels and on real shifts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calib_serve.fit.output.temperature import fit_temperature
from calib_serve.metrics import softmax
from calib_serve.report import Verdict, prepare_report


def binary(n: int, *, off: float, seed: int = 0, high: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, confidences even in [.6, high], right that often less ``off``."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.6, high, n)
    return np.stack([c, 1 - c], axis=1), (rng.random(n) >= c - off).astype(int)


def verdict(after: tuple[np.ndarray, np.ndarray], **more: object) -> Verdict:
    return prepare_report(title="x", after=after, replicates=200, **more).verdict  # type: ignore[arg-type]


def test_a_calibrated_model_with_enough_samples_is_called_calibrated() -> None:
    found = verdict(binary(20_000, off=0.0))
    assert found.level == "calibrated"
    assert found.do == (
        "Deploy it, and watch it with live labels: calibration lasts only as long as its data.",
    )


def test_too_few_samples_prove_nothing_and_the_number_needed_is_told() -> None:
    found = verdict(binary(150, off=0.0))
    assert found.level == "unproven"
    needed = int(found.do[0].split("about ")[1].split(" samples")[0].replace(",", ""))
    assert needed > 1000
    # With as many, an error of the tolerance does stand out.
    assert verdict(binary(needed, off=0.0, seed=1)).level in ("calibrated", "close")


def test_a_real_error_within_the_tolerance_is_close() -> None:
    found = verdict(binary(60_000, off=0.01))
    assert found.level == "close"
    assert "within the tolerance" in found.headline


@pytest.mark.parametrize(("off", "way"), [(0.1, "overconfident"), (-0.05, "underconfident")])
def test_a_large_error_is_called_by_its_direction(off: float, way: str) -> None:
    found = verdict(binary(5000, off=off))
    assert found.level == "off"
    assert way in found.headline
    assert f"{100 * abs(off):.0f}." in found.headline or f"{100 * abs(off) - 1:.0f}." in found.headline


def test_errors_that_cancel_have_no_one_direction() -> None:
    rng = np.random.default_rng(2)
    c = np.concatenate([np.full(5000, 0.7), np.full(5000, 0.9)])
    right = rng.random(10_000) < c + np.where(c < 0.8, 0.1, -0.1)
    found = verdict((np.stack([c, 1 - c], axis=1), (~right).astype(int)))
    assert found.level == "off"
    assert "in some ranges" in found.headline


def test_a_calibration_that_costs_accuracy_is_not_to_be_deployed() -> None:
    probs, labels = binary(5000, off=0.0)
    rng = np.random.default_rng(0)
    flipped = np.where((rng.random(5000) < 0.1)[:, None], probs[:, ::-1], probs)
    found = verdict((flipped, labels), before=(probs, labels))
    assert any(line.startswith("Do not deploy") and "accuracy fell" in line for line in found.do)
    assert not any(line.startswith("Deploy") for line in found.do)


def test_a_class_that_is_surely_off_is_named() -> None:
    rng = np.random.default_rng(4)
    c = rng.uniform(0.7, 0.9, 8000)
    first = np.arange(8000) % 2 == 0
    right = rng.random(8000) < c + np.where(first, 0.08, -0.08)
    probs = np.where(first[:, None], np.stack([c, 1 - c], 1), np.stack([1 - c, c], 1))
    labels = np.where(right, probs.argmax(1), probs.argmin(1))
    found = verdict((probs, labels), class_names=["up", "down"])
    (line,) = [line for line in found.do if line.startswith("Mind the class")]
    assert "“up”" in line or "“down”" in line


def test_on_a_real_shift_the_remedy_is_data(data_dir: Path) -> None:
    with np.load(data_dir / "logits" / "pneumonia_cnn_inhouse.npz") as arrays:
        cal, test = (
            tuple(arrays[f"{part}_{what}"] for what in ("logits", "labels")) for part in ("cal", "test")
        )
    artifact = fit_temperature(*cal)
    after = artifact.probs(test[0]), test[1]
    found = verdict(after, before=(softmax(test[0]), test[1]), artifact=artifact)
    assert found.level == "off"
    assert any("The test data differ from the calibration data" in line for line in found.do)


def test_on_real_logits_the_published_numbers_are_told(data_dir: Path) -> None:
    with np.load(data_dir / "logits" / "kull_resnet110_c10.npz") as arrays:
        cal, test = (
            tuple(arrays[f"{part}_{what}"] for what in ("logits", "labels")) for part in ("cal", "test")
        )
    artifact = fit_temperature(*cal)
    found = verdict((artifact.probs(test[0]), test[1]), before=(softmax(test[0]), test[1]), artifact=artifact)
    assert found.level == "close"
    told = found.changed[0].replace("\xa0", " ")
    assert told.startswith("The calibration error fell from 4.75 % to 1.13 %")
