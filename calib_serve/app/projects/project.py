"""Writes a quickstart project into a folder; existing files stay."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from calib_serve import __version__
from calib_serve.app.projects.kinds import KINDS, Kind
from calib_serve.core.errors import InputError
from calib_serve.core.files import write_whole
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
_FOLDERS = ("deploy", "production")
_FIT = "calib-serve fit loader.py:batches --model model.pt2 --split cal --test-split test -o artifact"


@dataclass(frozen=True)
class Written:
    """The files that were ``made``, and those that were ``kept``, as somebody has changed or made them."""

    made: tuple[str, ...]
    kept: tuple[str, ...]


def first_commands(kind: str) -> tuple[str, ...]:
    """The first commands in a project: train, fit, and put the calibration into the served model."""
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
    monitored = monitoring_files(
        _monitoring(one), parts=["rules", "alerts", "dashboards", "prometheus", "grafana"]
    )
    return found | {
        f"deploy/{path}": text for path, text in monitored.items() if path != "grafana/contact-points.yml"
    }


def _monitoring(kind: Kind) -> MonitoringOptions:
    own = (f"server=server:{kind.metrics}",) if kind.metrics else ()
    # As seen from deploy/prometheus here, and from /etc/prometheus in a container.
    path = "../../secrets/prometheus.token"
    return MonitoringOptions(targets=("calib-serve-watch=watch:9300", *own), token_file=path)


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
        "@packages": " ".join((f"'calib-serve[{','.join(kind.extras)}]'", *kind.packages)),
        "@fit": _FIT,
        "@convert": "\n".join(f"$ {command}" for command in kind.convert),
        "@start": kind.serve,
        "@receipts": kind.receipts,
        "@server": compose,
        "@kubernetes": kubernetes,
        "@services": services,
    }


def write_project(folder: Path, kind: str, *, force: bool = False) -> Written:
    """Write the files of a ``kind``, see ``KINDS``, and secrets of its own.

    InputError for a folder that is not empty, unless ``force``; no file that is there is changed in any case.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder")
    try:
        if folder.is_dir() and not force and any(folder.iterdir()):
            raise InputError(
                f"{folder} is not empty; name another folder, or add --force (force=True), which writes "
                "beside what is there and changes no file"
            )
        made, kept = [], []
        for name, text in project_files(kind).items():
            path = folder / name
            if path.is_symlink() or path.exists():
                kept.append(name)
            else:
                write_whole(path, text)
                made.append(name)
        # Never beside others: keys that are there sign what is served.
        if not (folder / "secrets").exists():
            _write_secrets(folder / "secrets")
            made.append("secrets")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error}") from error
    return Written(tuple(made), tuple(kept))


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
