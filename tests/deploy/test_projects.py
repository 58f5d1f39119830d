"""What a generated project starts, by the schemas of those who read it: Compose, Kubernetes, Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from manifests import check

from calib_serve.app.projects.kinds import KINDS
from calib_serve.app.projects.project import write_project

COMPOSE = json.loads(
    files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text("utf-8")
)
OVERLAYS = ("deploy", "production")


@pytest.fixture(params=KINDS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_project(tmp_path / "own", request.param)
    return tmp_path / "own"


def of(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_compose_files_are_of_its_schema_and_every_file_that_they_mount_is_there(project: Path) -> None:
    for name in ("compose.yaml", "compose.postgres.yaml"):
        jsonschema_rs.validate(COMPOSE, of(project / name))
        for service in of(project / name)["services"].values():
            assert not [port for port in service.get("ports", ()) if not port.startswith("127.0.0.1:")]
            mounts = [volume.split(":")[0] for volume in service.get("volumes", ())]
            mounts += [service["env_file"]] if "env_file" in service else []
            for mount in mounts:
                made = mount == "./artifact"  # by fit
                assert made or "/" not in mount or (project / mount).exists(), mount
            if "build" in service:
                assert (project / service["build"]["dockerfile"]).is_file()
                assert service["read_only"]
                assert service["user"]
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(COMPOSE, {"services": {"watch": {"imagine": "no such key"}}})


def every(project: Path, overlay: str) -> list[dict[str, Any]]:
    """The objects that kubectl would apply."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        pytest.skip("kubectl is missing")
    done = subprocess.run(
        [kubectl, "kustomize", str(project / overlay)], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_kubernetes_knows_every_field_of_every_manifest(project: Path) -> None:
    manifests = [path for folder in OVERLAYS for path in (project / folder).glob("*.yaml")]
    objects = [one for path in manifests for one in yaml.safe_load_all(path.read_text())]
    kinds = {one["kind"] for one in objects if one["kind"] != "Kustomization"}
    assert kinds == {
        "Namespace", "Deployment", "Service", "PersistentVolumeClaim", "StatefulSet", "PodDisruptionBudget",
    }  # fmt: skip
    for one in objects:
        if one["kind"] in kinds and "selector" in one.get("spec", {"selector": 1}):  # but for patches
            check(one, f"V1{one['kind']}")


def patches_are_whole(objects: list[dict[str, Any]]) -> None:
    """Two of everything that serves, on several nodes, with limits, and started again."""
    there = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    for kind, name in there:
        if kind in ("Deployment", "StatefulSet"):
            pod = there[kind, name]["spec"]["template"]["spec"]
            assert pod["restartPolicy"] == "Always"
            assert all({"requests", "limits"} <= set(one["resources"]) for one in pod["containers"]), name
    for name in ("server", "watch"):
        whole = there["Deployment", name]["spec"]
        assert whole["replicas"] == 2
        (spread,) = whole["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"] == whole["selector"]
        assert there["PodDisruptionBudget", name]["spec"]["selector"] == whole["selector"]
    assert ("PersistentVolumeClaim", "ledger") not in there


@pytest.mark.server
def test_an_operator_scrapes_each_pod_by_the_jobs_that_the_rules_name(project: Path) -> None:
    objects = every(project, "operator")
    (rules,) = (one for one in objects if one["kind"] == "PrometheusRule")
    groups = [one for name in ("rules", "alerts")
              for one in of(project / "deploy" / "prometheus" / f"{name}.yml")["groups"]]  # fmt: skip
    assert rules["spec"]["groups"] == groups
    pods = {one["metadata"]["name"]: one for one in every(project, "deploy") if one["kind"] == "Deployment"}
    jobs = set()
    for one in objects:
        if one["kind"] == "PodMonitor":
            whole = pods[one["metadata"]["name"]]["spec"]
            assert one["spec"]["selector"] == whole["selector"]
            (endpoint,) = one["spec"]["podMetricsEndpoints"]
            (container,) = whole["template"]["spec"]["containers"]
            assert endpoint["port"] in {port["name"] for port in container["ports"]}
            assert endpoint["honorLabels"]
            jobs |= {each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job"}
    (absent,) = (one["expr"] for one in groups[-1]["rules"] if one.get("alert") == "MonitorAbsent")
    assert set(re.findall(r"absent\(up\{job='([\w-]+)'\}\)", absent)) == jobs


@pytest.mark.server
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kustomize_makes_whole_objects_whose_parts_fit_one_another(project: Path, overlay: str) -> None:
    objects = every(project, overlay)
    for one in objects:
        check(one, f"V1{one['kind']}")
    there = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    for (kind, name), one in there.items():
        if kind not in ("Deployment", "StatefulSet"):
            continue
        pod = one["spec"]["template"]["spec"]
        claims = {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
        volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == claims | set(volumes)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["securityContext"]["runAsNonRoot"]
        for volume in volumes.values():
            named = volume.get("configMap", {}).get("name")
            assert named in (None, "artifact") or ("ConfigMap", named) in there, volume
            for part in volume.get("projected", {}).get("sources", ()):
                assert part.get("secret", {"optional": True})["optional"]
                assert "secret" in part or ("ConfigMap", part["configMap"]["name"]) in there
            if "secret" in volume:
                assert not volume["secret"]["defaultMode"] & 0o027
                for item in volume["secret"]["items"]:
                    assert (project / "secrets" / item["key"]).is_file()
        for env in container.get("env", ()):
            if "valueFrom" in env:
                assert (project / "secrets" / env["valueFrom"]["secretKeyRef"]["key"]).is_file()
        if name in ("server", "watch"):
            pods = there["Service", f"{name}-pods"]["spec"]
            assert pods["clusterIP"] == "None"
            assert pods["selector"] == there["Service", name]["spec"]["selector"]
            assert pods["ports"] == there["Service", name]["spec"]["ports"]
        service = there["Service", name]
        assert service["spec"]["selector"] == one["spec"]["template"]["metadata"]["labels"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    if overlay == "production":
        patches_are_whole(objects)
    watch = there["Deployment", "watch"]["spec"]
    assert watch["replicas"] == (1 if overlay == "deploy" else 2)
    ledger = next(one for one in watch["template"]["spec"]["containers"][0]["args"] if "--ledger" in one)
    assert ("postgresql" in ledger) == (overlay == "production") == (("StatefulSet", "postgres") in there)


def test_the_secrets_are_for_their_owner_alone_and_of_this_project_alone(tmp_path: Path) -> None:
    for name in "ab":
        write_project(tmp_path / name, "fastapi")
    assert (tmp_path / "a" / "secrets").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "a" / "secrets").iterdir():
        assert path.read_bytes() != (tmp_path / "b" / "secrets" / path.name).read_bytes()
        assert path.stat().st_mode & 0o077 == 0 or path.name in ("pgpassword", "prometheus.token")
