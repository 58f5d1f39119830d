"""Writes a quickstart project into a folder."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from textwrap import indent

from calib_serve import __version__
from calib_serve.app.projects.kinds import KINDS, Kind
from calib_serve.core.errors import InputError
from calib_serve.core.files import write_changed, write_whole
from calib_serve.receipts import Keyring
from calib_serve.web import MonitoringOptions, monitoring_files

_TEMPLATES = Path(__file__).parent / "templates"
# Programs lie there as .py.txt: nobody is to import or check them as parts of this package.
_SAME = {
    "train.py": "train.py.txt",
    "loader.py": "loader.py.txt",
    "client.py": "client.py.txt",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "watch.Dockerfile": "watch.Dockerfile",
    "compose.yaml": "compose.yaml",
    "compose.postgres.yaml": "compose.postgres.yaml",
}
_FOLDERS = ("deploy", "production", "operator")
_FIT = (
    "calib-serve fit loader.py:batches --model model.pt2 --split cal --test-split test --keep-rows "
    "-o artifact"
)

_RULES = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: calib-serve
spec:
"""
_OF_SERVER = """---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: server
spec:
  selector:
    matchLabels: {app: server}
  podMetricsEndpoints:
    - port: metrics
      honorLabels: true
      relabelings:
        - {targetLabel: job, replacement: server}
"""


def first_commands(kind: str) -> tuple[str, ...]:
    """The first commands in a project, up to a calibration in what is served, or before it."""
    return ("python train.py", _FIT, *KINDS[kind].convert)


def project_files(kind: str) -> dict[str, str]:
    """The text of each file of a project, by its path, without its secrets."""
    one = KINDS[kind]
    paths = dict(_SAME)
    for folder in _FOLDERS:
        paths |= {
            f"{folder}/{path.name}": f"{folder}/{path.name}" for path in (_TEMPLATES / folder).iterdir()
        }
    if one.program:
        paths["serve.py"] = one.program
    found = {path: (_TEMPLATES / template).read_text("utf-8") for path, template in paths.items()}
    found["server.Dockerfile"] = one.dockerfile
    values = {**_values(one), "@version": __version__}
    for path, text in found.items():
        for name, value in values.items():
            text = text.replace(name, value)  # noqa: PLW2901  # each name in what the others made
        found[path] = text
    found["constraints.txt"] = files("calib_serve").joinpath("constraints.txt").read_text("utf-8")
    return found | _monitoring(one)


def _monitoring(kind: Kind) -> dict[str, str]:
    """Prometheus' and Grafana's files: as they are, and as an object of the Prometheus operator."""
    # Of each address of a name: a Service of pods, or a network's alias.
    own = (f"server=dns+server-pods:{kind.metrics}",) if kind.metrics else ()
    options = MonitoringOptions(
        targets=("calib-serve-watch=dns+watch-pods:9300", *own),
        # As seen from deploy/prometheus here, and from /etc/prometheus in a container.
        token_file="../../secrets/prometheus.token",  # noqa: S106 - a file's name
    )
    here = monitoring_files(options, parts=["rules", "alerts", "dashboards", "prometheus", "grafana"])
    del here["grafana/contact-points.yml"]
    with_alerts = replace(options, alertmanager="alertmanager:9093")
    production = monitoring_files(with_alerts, parts=["prometheus", "alertmanager"])
    _, _, alerts = here["prometheus/alerts.yml"].partition("groups:\n")
    rules = indent(f"{here['prometheus/rules.yml']}\n{alerts}", "  ")
    return {
        **{f"deploy/{path}": text for path, text in here.items()},
        **{f"production/{path}": text for path, text in production.items()},
        "operator/rules.yaml": f"{_RULES}{rules}",
    }


def _values(kind: Kind) -> dict[str, str]:
    """The values of the templates' names that differ between kinds."""
    first = next(iter(kind.ports.values()))
    env = "".join(f"      {name}: {value}\n" for name, value in kind.env.items())
    compose = (
        (f"    environment:\n{env}" if env else "")
        + ("    env_file: secrets/app.env\n" if "WATCH" in kind.env else "")
        + "    volumes:\n      - ./secrets/keyring.json:/app/secrets/keyring.json:ro\n"
        + "      - spool:/app/spool\n"
        + f'    ports: ["127.0.0.1:{first}:{first}"]\n    depends_on: [watch]'
    )
    named = "".join(f'            - {{name: {name}, value: "{value}"}}\n' for name, value in kind.env.items())
    if "WATCH" in kind.env:
        named += (
            "            - name: CALIB_SERVE_TOKEN\n              valueFrom:\n"
            "                secretKeyRef: {name: calib-serve, key: app.token}\n"
        )
    ports = "".join(f"            - {{name: {n}, containerPort: {port}}}\n" for n, port in kind.ports.items())
    kubernetes = (
        '          env:\n            - {name: CALIB_SERVE_GROUP_READS, value: "1"}\n'
        f"{named}          ports:\n{ports}"
        f"          readinessProbe:\n            httpGet: {{path: {kind.ready}, port: http}}"
    )
    services = "\n".join(
        f"    - {{name: {n}, port: {port}, targetPort: {n}}}" for n, port in kind.ports.items()
    )
    return {
        "@title": kind.title,
        "@extras": ",".join(kind.extras),
        "@packages": f"'calib-serve[{','.join(kind.extras)}]' scikit-learn",
        "@fit": _FIT,
        "@convert": "\n".join(f"$ {command}" for command in kind.convert),
        "@start": kind.serve,
        "@receipts": kind.receipts,
        "@server": compose,
        "@kubernetes": kubernetes,
        "@services": services,
        "@podmonitor": _OF_SERVER if kind.metrics else "",
    }


def write_project(folder: Path, kind: str, *, force: bool = False) -> list[str]:
    """Write the files of a ``kind``, and secrets of its own; return their names.

    InputError where a file would change, unless ``force``: then nothing is written. Secrets stay in any case.
    """
    files = {folder / name: text.encode() for name, text in project_files(kind).items()}
    written = [str(path.relative_to(folder)) for path in write_changed(files, force=force)]
    # Never in place of others: keys that are there sign what is served.
    if (folder / "secrets").exists():
        return written
    try:
        _write_secrets(folder / "secrets")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error
    return [*written, "secrets"]


def _write_secrets(folder: Path) -> None:
    """Write a keyring, the watch's tokens and their holders, and a password of a database."""
    folder.mkdir(mode=0o700)
    Keyring.create(folder / "keyring.json")
    app, prometheus, password = (secrets.token_urlsafe(32) for _ in range(3))
    lines = [
        f"{name} {scopes} sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"
        for name, scopes, token in (("app", "predict,label", app), ("prometheus", "scrape", prometheus))
    ]
    write_whole(folder / "tokens", "".join(lines), mode=0o600)
    write_whole(folder / "app.token", app, mode=0o600)
    write_whole(folder / "app.env", f"CALIB_SERVE_TOKEN={app}\n", mode=0o600)
    write_whole(folder / "pgpass", f"*:*:labels:labels:{password}\n", mode=0o600)
    # Containers that run as nobody in particular read these two; the folder is closed to others on this host.
    write_whole(folder / "pgpassword", password, mode=0o644)
    write_whole(folder / "prometheus.token", prometheus, mode=0o644)
