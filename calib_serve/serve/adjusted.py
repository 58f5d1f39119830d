"""Lay what calibration and counting need over a user's config.properties, and say what was changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from calib_serve.errors import ServerError
from calib_serve.fuse.mar_options import KEYRING, LABEL_BUDGET, LEDGER, MODELS, SAMPLES, WRITER
from calib_serve.fuse.torchserve import shipped
from calib_serve.serve.metrics_file import metrics_file
from calib_serve.serve.properties import changed, is_true, parse_properties

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
_WORKERS_NEED = (KEYRING, LABEL_BUDGET, LEDGER, MODELS, SAMPLES, WRITER, "PYTHONUNBUFFERED")
_HINTS = {
    "metrics_config": "; it holds all of that and what calib-serve counts",
    "enable_envvars_config": "; write into the file what TS_* variables said",
}


class Adjusted(NamedTuple):
    """``text`` of config.properties, that of the metrics file, and what was changed, a sentence each."""

    text: str
    metrics: str
    notes: list[str]


def adjusted(
    base: Path | None, settings: Mapping[str, str], needed: Mapping[str, str], *, metrics: Path
) -> Adjusted:
    """The configuration in ``base`` (None: the shipped one) with ``settings``, and with what is ``needed``.

    ``metrics``: where the metrics file is written: all of the user's, and our series. Relative paths are
    taken from the current folder, as TorchServe does. ServerError where it can not work.
    """
    source = base or shipped("config.properties")
    try:
        text = changed(source.read_text("utf-8"), settings)
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"cannot read {source}: {error}") from error
    found = parse_properties(text)
    _refuse(found)
    ours = {
        "metrics_mode": "prometheus",  # TorchServe's default, log, shows nothing on the metrics page
        "metrics_config": str(metrics),
        "enable_envvars_config": "false",  # the file that is written is what runs
        "model_snapshot": None,
        **needed,
    }
    said = {*settings} if base is None else {*found}
    notes = [
        f"{key}: {value or 'left out'} instead of {found[key]}{_HINTS.get(key, '')}"
        for key, value in ours.items()
        if key in said and _differs(found.get(key, ""), value)
    ]
    theirs = Path(found.get("metrics_config", _OWN_METRICS)).absolute()
    is_ours = found.get("metrics_config", _OWN_METRICS) == _OWN_METRICS and not theirs.is_file()
    merged = metrics_file(None if is_ours or "metrics_config" not in said else theirs)
    paths = {key: str(Path(found[key]).absolute()) for key in _PATHS if found.get(key)}
    if "vmargs" in found:
        paths["vmargs"] = " ".join(map(_log_config, found["vmargs"].split()))
    return Adjusted(changed(text, {**paths, **ours}), merged, notes)


def _refuse(found: Mapping[str, str]) -> None:
    if not is_true(found.get("enable_metrics_api", "true")):
        raise ServerError(
            "enable_metrics_api=false: nobody could read what is counted; set it to true, with a"
            " metrics_address of this host alone"
        )
    for key in ("inference_address", "management_address", "metrics_address"):
        if not found.get(key, "http").lower().startswith("http"):
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


def _log_config(word: str) -> str:
    """The argument of Java with an absolute path, where it names a log4j2 file of this host."""
    given = Path(word.removeprefix(_LOG_CONFIG))
    if not word.startswith(_LOG_CONFIG) or not given.is_file():
        return word
    return f"{_LOG_CONFIG}{given.absolute().as_uri()}"


def _differs(given: str, needed: str | None) -> bool:
    return bool(given) and given != needed and (needed is None or Path(given).absolute() != Path(needed))
