"""What can be held of the container files without a container engine: paths, ports, names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from command_line import calib_serve

from calib_serve.torchserve.properties import read_properties

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KSERVE = next(
    one
    for one in yaml.safe_load_all((DEPLOY / "kserve.yaml").read_text())
    if one["kind"] == "InferenceService"
)
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


IMAGES = {
    name: (DEPLOY / name).read_text() for name in ("Dockerfile", "triton/Dockerfile", "watch/Dockerfile")
}
each_image = pytest.mark.parametrize("name", IMAGES)


def copied(text: str) -> set[str]:
    """What an image takes from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
    mounted = re.findall(r"--mount=type=bind,source=([^,\s]+)", text)
    return {name for line in lines for name in line.split()[:-1]} | set(mounted)


@each_image
def test_an_image_copies_what_exists_and_is_not_ignored(name: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for path in copied(IMAGES[name]):
        assert (ROOT / path).exists(), path
        assert f"!{path}" in ignored, path


def of_the_dockerfile(instruction: str) -> list[str]:
    """The words of the last ENTRYPOINT or CMD."""
    return json.loads(re.findall(rf"^{instruction} (.+)$", DOCKERFILE, re.MULTILINE)[-1])


@pytest.mark.parametrize(
    "arguments",
    [of_the_dockerfile("CMD"), KSERVE["spec"]["predictor"]["containers"][0]["args"]],
    ids=["Dockerfile", "KServe"],
)
def test_the_container_s_options_are_the_command_s(arguments: list[str], tmp_path: Path) -> None:
    program, *start = of_the_dockerfile("ENTRYPOINT")
    assert program == "calib-serve"
    start = [str(tmp_path / word[1:]) if word.startswith("/") else word for word in start]
    result = calib_serve(*start, *arguments)
    assert result.exit_code != 2, result.output  # 2: an option that does not exist
    assert "name at least one archive" in result.stderr
    settings = set(re.findall(r"--option[= ](\w+)=|^(\w+)=http", "\n".join(arguments), re.M))
    assert settings
    assert {a or b for a, b in settings} <= set(read_properties(ROOT / "config.properties"))
