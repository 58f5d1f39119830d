"""The names by which labels may call the classes: the artifact's, else TorchServe's own mapping."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from live_server import CLASSES, NAMES, foreign, temperature_artifact
from others_archives import HANDLER

from calib_serve import Artifact
from calib_serve.core.errors import FuseError, Refused
from calib_serve.receipts.classes import Classes
from calib_serve.torchserve import labelled_models, pack_around, read_archive, remarks

with warnings.catch_warnings():  # it leaves its version file open
    warnings.simplefilter("ignore", ResourceWarning)
    from ts.utils.util import load_label_mapping

BARE = temperature_artifact(class_names=())
LISTED = {str(k): [f"n{k:08}", name] for k, name in enumerate(NAMES)}
CRANES = {**LISTED, "3": ["n02012849", "crane"], "7": ["n03126707", "crane"]}


def repacked(tmp_path: Path, mapping: Any, artifact: Artifact = BARE) -> Path:
    text = mapping if isinstance(mapping, str) else json.dumps(mapping)
    (tmp_path / "index_to_name.json").write_text(text)
    (tmp_path / "store").mkdir()
    old = foreign(tmp_path / "store", "pets", HANDLER)
    with zipfile.ZipFile(old, "a") as archive:
        archive.write(tmp_path / "index_to_name.json", "index_to_name.json")
    return pack_around(old, artifact, tmp_path / "store", untried=True, unproven=True)


def names(path: Path) -> list[str]:
    (found,) = labelled_models([path])
    return found["class_names"]


@pytest.mark.parametrize(
    "mapping",
    [LISTED, {str(k): name for k, name in enumerate(NAMES)}, {"object_type_names": list(NAMES)}],
    ids=["wordnet", "plain", "older"],
)
def test_labels_have_the_names_that_torchserve_answers_with(mapping: Any, tmp_path: Path) -> None:
    path = repacked(tmp_path, mapping)
    assert names(path) == list(NAMES)
    answers = load_label_mapping(str(tmp_path / "index_to_name.json"))
    assert names(path) == [answers[str(k)] for k in range(CLASSES)]
    assert not any("name" in remark for remark in remarks(read_archive(path)))


def test_a_name_of_two_classes_names_neither(tmp_path: Path) -> None:
    path = repacked(tmp_path, CRANES)
    classes = Classes(CLASSES, tuple(names(path)))
    with pytest.raises(Refused):
        classes.find("crane")
    assert (classes.find("crane (3)"), classes.find("crane (7)"), classes.find(7)) == (3, 7, 7)
    assert classes.find(NAMES[0]) == 0
    remark = remarks(read_archive(path))[0]
    assert "'crane'" in remark
    assert "crane (7)" in remark


def test_names_that_stand_for_several_classes_and_for_others_name_none(tmp_path: Path) -> None:
    path = repacked(tmp_path, {**CRANES, "0": ["n0", "crane (3)"]})
    assert names(path) == []
    assert "these are names as well, so that labels are class ids" in remarks(read_archive(path))[0]


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({str(k): name for k, name in enumerate(NAMES[1:])}, "9 classes"),
        ({f"{k:02}": name for k, name in enumerate(NAMES)}, "10 classes 0 to 9"),
        ({**LISTED, "4": None}, "class 4"),
        ("[" * 100_000, "index_to_name"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_mapping_that_names_other_classes_is_said_and_left_out(
    mapping: Any, says: str, tmp_path: Path
) -> None:
    path = repacked(tmp_path, mapping)
    assert names(path) == []
    remark = remarks(read_archive(path))[0]
    assert says in remark
    assert "class ids" in remark


def test_artifact_and_mapping_may_not_call_a_class_differently(tmp_path: Path) -> None:
    with pytest.raises(FuseError, match=r"class 3 is 'digit 3' .* 'crane'"):
        repacked(tmp_path, CRANES, temperature_artifact())
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["pets.mar"]
