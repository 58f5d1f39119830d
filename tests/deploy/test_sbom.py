"""The bill of materials of a release: valid CycloneDX, with every locked package and its hashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from locks import LOCKS, locked

import calib_serve

pytestmark = [pytest.mark.server, pytest.mark.nightly]
ROOT = Path(__file__).parents[2]
PARTS = {
    "triton-image": ("triton",),
    "torchserve-image": ("torch", "torchvision", "torchserve"),
    "all": ("torch", "all"),
}
each_part = pytest.mark.parametrize("part", PARTS)


def make(folder: Path) -> None:
    environment = os.environ | {"VENV": sys.prefix, "OUT": str(folder)}
    subprocess.run([ROOT / "scripts" / "sbom.sh", *PARTS], env=environment, check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What scripts/sbom.sh makes, with the environment of the tests."""
    if not (Path(sys.prefix) / "bin" / "cyclonedx-py").is_file():
        if os.environ.get("CI") == "true":
            pytest.fail("cyclonedx-bom is not installed, and CI must not skip: make setup")
        pytest.skip("cyclonedx-bom is not installed: make setup")
    folder = tmp_path_factory.mktemp("sbom")
    make(folder)
    return folder


def read(made: Path, part: str) -> tuple[str, dict[str, Any]]:
    text = (made / f"calib-serve-{calib_serve.__version__}-{part}.cdx.json").read_text()
    return text, json.loads(text)


@each_part
def test_it_is_valid_by_the_schema(made: Path, part: str) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text, found = read(made, part)
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    found["components"] = [{"type": "library"}]
    assert validator.validate_str(json.dumps(found)) is not None


@each_part
def test_it_names_this_release_and_each_locked_package_with_its_hashes(made: Path, part: str) -> None:
    _, found = read(made, part)
    main = found["metadata"]["component"]
    assert (main["name"], main["version"]) == ("calib-serve", calib_serve.__version__)
    held = {(one["name"], one["version"]): json.dumps(one) for one in found["components"]}
    for lock in PARTS[part]:
        for package, version, hashes in locked(LOCKS[lock]):
            told = held[package, version]
            assert f"pkg:pypi/{package}@" in told
            assert all(one.removeprefix("--hash=sha256:") in told for one in hashes), package
