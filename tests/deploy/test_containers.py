"""What can be held of the container files without a container engine: paths, ports, names."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.testing import CliRunner

from calib_serve.cli import app
from calib_serve.serve.properties import read_properties

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KSERVE = next(
    one
    for one in yaml.safe_load_all((DEPLOY / "kserve.yaml").read_text())
    if one["kind"] == "InferenceService"
)
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def test_every_folder_that_compose_mounts_is_there() -> None:
    for service in COMPOSE["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).resolve().is_dir(), mount


def test_compose_shows_nothing_beyond_this_host() -> None:
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_prometheus_scrapes_where_torchserve_listens() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = [t for job in config["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    metrics = read_properties(ROOT / "config.properties")["metrics_address"]
    assert metrics.removeprefix("http://") in targets
    assert COMPOSE["services"]["prometheus"]["network_mode"] == "service:torchserve"


def test_grafana_finds_its_source_and_dashboards() -> None:
    grafana = COMPOSE["services"]["grafana"]
    source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "$PROMETHEUS_URL"
    assert grafana["environment"]["PROMETHEUS_URL"] == "http://127.0.0.1:9090"
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/calib-serve.yml").read_text())
    where = provider["providers"][0]["options"]["path"]
    assert any(mount.split(":")[1] == where for mount in grafana["volumes"])


def test_the_dockerfile_copies_what_exists_and_installs_known_extras() -> None:
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.MULTILINE):
        for name in line.split()[:-1]:
            assert (ROOT / name).exists(), name
    extras = re.search(r"/src\[(.+?)\]", DOCKERFILE)
    assert extras
    known = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in known for extra in extras.group(1).split(","))
    assert "USER serving" in DOCKERFILE


def installed_in_the_image() -> list[str]:
    """What its pip commands name, apart from the options."""
    lines = re.findall(r"pip install (.+?)(?= && |\n)", DOCKERFILE)
    options = r"--no-cache-dir|(?:-c|--index-url) \S+"
    return [name.strip('"') for line in lines for name in re.sub(options, "", line).split()]


def test_every_package_of_the_image_has_the_version_that_is_tested() -> None:
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    packages = [name for name in installed_in_the_image() if not name.startswith(("/src", "$"))]
    assert {name.split("==")[0] for name in packages} == {"torch", "torchvision", "captum"}
    assert set(packages) <= set(pinned)
    assert "-c /src/constraints.txt" in DOCKERFILE


def required(package: str) -> list[str]:
    """By its metadata: torchvision can be imported only beside a torch of the same build, CPU or CUDA."""
    try:
        return requires(package) or []
    except PackageNotFoundError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{package} is not installed")


def closure(names: list[str]) -> set[str]:
    """These packages and all they require, as their own metadata say."""
    found: set[str] = set()
    left = [Requirement(name) for name in names]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        key = f"{name}{sorted(one.extras)}"
        if key in found:
            continue
        found |= {key, name}
        wanted = [Requirement(text) for text in required(name)]
        extras = [*one.extras, ""]
        left += [r for r in wanted if not r.marker or any(r.marker.evaluate({"extra": e}) for e in extras)]
    return found


def test_the_image_has_what_torchserve_s_image_classifier_imports() -> None:
    found = find_spec("ts")  # not imported: it leaves a file open
    assert found is not None
    assert found.origin is not None
    handlers = Path(found.origin).parent / "torch_handler"
    imported = set()
    for name in ("image_classifier", "vision_handler", "base_handler"):
        imported |= set(re.findall(r"^(?:from|import) (\w+)", (handlers / f"{name}.py").read_text(), re.M))
    assert {"captum", "torchvision", "PIL"} <= imported
    named = [name.replace("/src[", "calib-serve[") for name in installed_in_the_image() if name[0] != "$"]
    there, packages = closure(named), packages_distributions()
    for name in imported - set(sys.stdlib_module_names):
        assert there & {canonicalize_name(package) for package in packages[name]}, name


def test_torchvision_is_that_of_this_torch() -> None:
    (torch,) = (one for one in installed_in_the_image() if one.startswith("torch=="))
    assert torch in [re.sub(r"[ ()]", "", one) for one in required("torchvision")]


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
    result = CliRunner().invoke(app, [*start, *arguments])
    assert result.exit_code != 2, result.output  # 2: an option that does not exist
    assert "name at least one archive" in str(result.exception)
    settings = set(re.findall(r"--set[= ](\w+)=|^(\w+)=http", "\n".join(arguments), re.M))
    assert settings
    assert {a or b for a, b in settings} <= set(read_properties(ROOT / "config.properties"))
