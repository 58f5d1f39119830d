"""What of a user's config.properties must differ under ``calib-serve serve``, and why.

His values stay, except where calibration or counting would break: then a note says what was changed, or an
error what to change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from calib_serve.errors import ServerError
from calib_serve.fuse.mar_options import KEYRING, LABEL_BUDGET, LEDGER, METRICS, MODELS, SAMPLES, WRITER
from calib_serve.fuse.torchserve import shipped
from calib_serve.serve.metrics_file import metrics_file
from calib_serve.serve.properties import changed, effective, is_true, parse_properties

__all__ = ["Adjusted", "adjusted"]

_OWN_METRICS = "handlers/metrics.yaml"  # as the shipped configuration names it
_PATHS = (
    "keystore",
    "private_key_file",
    "certificate_file",
    "cpp_log_config",
    "workflow_store",
    "plugins_path",
)
_LOG_CONFIG = "-Dlog4j.configurationFile="
_WORKERS_NEED = (KEYRING, LABEL_BUDGET, LEDGER, METRICS, MODELS, SAMPLES, WRITER, "PYTHONUNBUFFERED")


class Adjusted(NamedTuple):
    """``text`` of config.properties, that of the metrics file, and what was changed, a sentence each."""

    text: str
    metrics: str
    notes: list[str]


def adjusted(
    base: Path | None, settings: Mapping[str, str], needed: Mapping[str, str], *, metrics: Path
) -> Adjusted:
    """The configuration in ``base`` (None: the shipped one) with ``settings``, and with what is ``needed``.

    Relative paths are taken from the current folder, as TorchServe does, else from that of ``base``. The file
    ``metrics`` will hold the metrics text. ServerError where it can not work.
    """
    source = base or shipped("config.properties")
    try:
        text = changed(source.read_text("utf-8"), settings)
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"cannot read {source}: {error}") from error
    values, notes = _from_environment(text, settings)
    text = changed(text, values)
    found = parse_properties(text)
    _refuse(found)
    for key in _PATHS:
        if key in found:
            values[key] = str(_path(found[key], source))
    if "vmargs" in found:
        values["vmargs"] = " ".join(_log_config(word, source) for word in found["vmargs"].split())
    if (mode := found.get("metrics_mode", "log").strip()).lower() != "prometheus":
        notes.append(
            f"metrics_mode: prometheus instead of {mode}, or nothing would be counted on the metrics page"
        )
    if "model_snapshot" in found and "model_snapshot" not in needed:
        values["model_snapshot"] = None
        notes.append(
            "model_snapshot: left out, as the archives are named; --snapshots starts from the last one"
        )
    for key in ("load_models", "model_store"):
        if (base or key in settings) and _differs(found.get(key, ""), needed[key]):
            notes.append(f"{key}: {needed[key]} instead of {found[key]}, as the command line says")
    merged, told = _metrics(found.get("metrics_config", ""), source, metrics)
    values |= {"metrics_mode": "prometheus", "metrics_config": str(metrics), **needed}
    return Adjusted(changed(text, values), merged, notes + told)


def _from_environment(text: str, settings: Mapping[str, str]) -> tuple[dict[str, str | None], list[str]]:
    """What variables of the environment say, written down: what is in the file is what runs."""
    notes = []
    if "TS_CONFIG_FILE" in os.environ:
        notes.append("TS_CONFIG_FILE: not used; say --config FILE")
    raw, found = parse_properties(text), effective(text, os.environ)
    plain = effective(changed(text, {"enable_envvars_config": "false"}), os.environ)
    given = {*settings, "enable_envvars_config", "config_file"}
    if by_name := sorted(key for key in {*found} - given if plain.get(key) != found[key]):
        notes.append(f"enable_envvars_config: TS_* variables of the environment set {', '.join(by_name)}")
    said = {key: value for key, value in found.items() if raw.get(key) != value and key not in given}
    return {**said, "enable_envvars_config": "false"}, notes


def _refuse(found: Mapping[str, str]) -> None:
    if not is_true(found.get("enable_metrics_api", "true")):
        raise ServerError(
            "enable_metrics_api=false: nobody could read what is counted; set it to true, with a"
            " metrics_address of this host alone"
        )
    for key in ("inference_address", "management_address", "metrics_address"):
        if found.get(key, "").lower().startswith("unix:"):
            raise ServerError(f"{key}={found[key]}: calib-serve serve needs an address http://HOST:PORT")
    hidden = found.get("blacklist_env_vars", "")
    try:
        names = [name for name in _WORKERS_NEED if re.fullmatch(hidden, name)]
    except re.error:
        names = []  # another dialect of patterns than Java's
    if names:
        raise ServerError(
            f"blacklist_env_vars={hidden} hides {', '.join(names)} from the workers, which need it; narrow it"
        )


def _metrics(given: str, source: Path, ours: Path) -> tuple[str, list[str]]:
    path = _path(given, source) if given else None
    if path is None or (given == _OWN_METRICS and not path.is_file()):
        return metrics_file(), []
    merged = metrics_file(path)
    if merged.partition("\n")[2] == metrics_file().partition("\n")[2].partition("\n")[2]:
        return metrics_file(), []
    return merged, [
        f"metrics_config: {ours} instead of {path}; it holds all of that and what calib-serve counts"
    ]


def _path(given: str, source: Path) -> Path:
    """An absolute path: from the current folder, as TorchServe takes it, else from that of ``source``."""
    here, beside = Path(given).absolute(), (source.parent / given).absolute()
    return beside if beside.exists() and not here.exists() else here


def _log_config(word: str, source: Path) -> str:
    given = word.removeprefix(_LOG_CONFIG)
    known = given != word and ":" not in given and (path := _path(given, source)).is_file()
    return f"{_LOG_CONFIG}{path.as_uri()}" if known else word


def _differs(given: str, needed: str) -> bool:
    return bool(given) and given != needed and Path(given).absolute() != Path(needed)
