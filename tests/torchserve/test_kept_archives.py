"""What an archive holds for its workers is a file format: options, and the modules that its entry names.

The files in ``tests/kept/archive-1`` are never made again.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from calib_serve.artifact.preprocessing import Preprocessing
from calib_serve.core.errors import ModelError
from calib_serve.torchserve.feedback import read_models
from calib_serve.torchserve.mar_options import ModelOptions

KEPT = Path(__file__).parents[1] / "kept" / "archive-1"


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((KEPT / f"{name}.yaml").read_text())
    return found


def test_options_of_a_kept_archive_are_read_and_written_as_they_were() -> None:
    kept = config("model")
    options = ModelOptions.read(kept)
    assert options.as_dict() == kept["calib_serve"]
    assert (options.kind, options.artifact, options.shadow) == ("torchscript", "artifact", "shadow")
    assert options.pictures == Preprocessing((0.5,), (0.25,), 5, (4, 4), "bicubic", 1)
    assert (options.top, options.probabilities, options.abstain_below) == (3, False, 0.5)
    around = ModelOptions.read(config("wrapped"))
    assert (around.wraps, around.seam, around.output) == ("old_handler.py", "inference", "0")
    assert (around.outputs, around.receipts, around.artifact) == ("probabilities", "body", "calibration")
    assert around.pictures == "unknown"


def test_a_kept_feedback_archive_names_its_models_and_its_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALIB_SERVE_MODELS", raising=False)
    section = config("feedback")["calib_serve"]
    assert read_models(section["models"])["digits", "1.0"].classes.count == 10


def test_a_version_without_quotes_in_an_archives_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALIB_SERVE_MODELS", raising=False)
    with pytest.raises(ModelError, match="in quotes"):
        read_models(yaml.safe_load("[{name: m, version: 1.10, classes: 3}]"))


@pytest.mark.parametrize("entry", sorted(path.name for path in KEPT.glob("*.py")))
def test_the_modules_that_a_kept_entry_names_are_where_they_were(entry: str) -> None:
    spec = importlib.util.spec_from_file_location(entry.removesuffix(".py"), KEPT / entry)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.Handler.initialize)
    assert callable(module.Handler.handle)
