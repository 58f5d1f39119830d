"""A server's configuration: checked before anything starts, then written to its folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from calib_serve.core.errors import KeyringError, ServerError
from calib_serve.core.files import GROUP_READS, read_whole, shipped
from calib_serve.core.options.servers import ServeOptions
from calib_serve.receipts import (
    KEYRING,
    LABEL_BUDGET,
    LEDGER,
    MODELS,
    SAMPLE_RATE,
    SAMPLES,
    SOURCE,
    SOURCE_HEADER,
    Keyring,
    from_environment,
    placed,
    write_host_settings,
)
from calib_serve.torchserve.archive._archive import is_archive, read_archive, stored_archives
from calib_serve.torchserve.archive._packing import labelled_models
from calib_serve.torchserve.metrics_file import metrics_file, undeclared
from calib_serve.torchserve.properties import (
    ADDRESSES,
    edit_properties,
    is_true,
    parse_properties,
)

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
_WORKERS_NEED = (
    *(KEYRING, LEDGER, MODELS, LABEL_BUDGET, SAMPLES, SAMPLE_RATE),
    *(SOURCE, SOURCE_HEADER, GROUP_READS, "PYTHONUNBUFFERED"),
)


def adjusted(
    base: Path | None, settings: Mapping[str, str], needed: Mapping[str, str], *, metrics: Path
) -> tuple[str, list[str]]:
    """Adjust the configuration in ``base`` (None: the shipped one) to ``settings`` and ``needed`` ones.

    Returns the text of config.properties, and the changes, a sentence each. ``metrics``: the file of our
    series, which serves where the user names none. Relative paths are taken from the current folder, as
    TorchServe does. ServerError where it can not work.
    """
    source = base or shipped("config.properties")
    try:
        text = edit_properties(read_whole(Path(source)).decode(), settings)
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"cannot read {source}: {error}") from error
    found = parse_properties(text)
    said = {*settings} if base is None else {*found}
    named = found.get("metrics_config", _OWN_METRICS)
    is_ours = "metrics_config" not in said or (named == _OWN_METRICS and not Path(named).is_file())
    _refuse(found, None if is_ours else Path(named))
    ours = {
        "metrics_mode": "prometheus",  # TorchServe's default, log, shows nothing on the metrics page
        "metrics_config": str(metrics if is_ours else Path(named).absolute()),
        "enable_envvars_config": "false",  # the file that is written is what runs
        "model_snapshot": None,
        **needed,
    }
    notes = [
        f"{key}: {value or 'left out'} instead of {given}"
        for key, value in ours.items()
        if key in said
        and (given := found.get(key))
        and given != value
        and (value is None or Path(given).absolute() != Path(value))
    ]
    paths = {key: str(Path(found[key]).absolute()) for key in _PATHS if found.get(key)}
    if "vmargs" in found:
        paths["vmargs"] = " ".join(map(_absolute, found["vmargs"].split()))
    return edit_properties(text, {**paths, **ours}), notes


def _refuse(found: Mapping[str, str], metrics: Path | None) -> None:
    """Raise ServerError for settings, or a metrics file, by which nothing would be counted."""
    detects = is_true(found.get("model_metrics_auto_detect"))
    if metrics is not None and not detects and (lacking := undeclared(metrics)):
        raise ServerError(
            f"metrics_config={metrics} lacks {len(lacking)} of the series that are counted, such as"
            f" {lacking[0]}: add what this prints, or leave the line out:"
            " python -m calib_serve.torchserve.metrics_file"
        )
    if not is_true(found.get("enable_metrics_api", "true")):
        raise ServerError(
            "enable_metrics_api=false: nobody could read what is counted; set it to true, with a"
            " metrics_address of this host alone"
        )
    for key in (f"{api}_address" for api in ADDRESSES):
        if not found.get(key, "http").lower().startswith("http"):
            raise ServerError(f"{key}={found[key]}: calib-serve serve needs an address http://HOST:PORT")
    # Without these a worker would serve, and count nothing.
    hidden = found.get("blacklist_env_vars", "")
    try:
        names = [name for name in _WORKERS_NEED if re.fullmatch(hidden, name)]
    except re.error:
        names = []  # another dialect of patterns than Java's
    if names:
        raise ServerError(
            f"blacklist_env_vars={hidden} hides {', '.join(names)} from the workers, which need it; narrow it"
        )


def _absolute(word: str) -> str:
    """Make the path in Java's argument absolute, where it names a log4j2 file of this host."""
    given = Path(word.removeprefix(_LOG_CONFIG))
    if not word.startswith(_LOG_CONFIG) or not given.is_file():
        return word
    return f"{_LOG_CONFIG}{given.absolute().as_uri()}"


@dataclass(frozen=True)
class Configuration:
    """``text`` of config.properties, ``environment`` of the workers, and notes.

    ``notes``: what differs from what the user wrote. ``log_config``: the log4j2 file, None where vmargs name
    it.
    """

    folder: Path
    store: Path
    models: tuple[str, ...]
    text: str
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
    log_config: Path | None = None

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The keys and values of ``text``."""
        return parse_properties(self.text)

    @property
    def file(self) -> Path:
        """The path to which ``text`` is written."""
        return self.folder / "config.properties"

    @property
    def names(self) -> list[str]:
        """The models' names, from their archives."""
        return [read_archive(self.store / model, verify=False).name for model in self.models]

    def address(self, api: str) -> str:
        """The base URL of the ``inference``, ``management`` or ``metrics`` API."""
        return self.properties.get(f"{api}_address", ADDRESSES[api])

    @property
    def grpc(self) -> str:
        """HOST:PORT of the gRPC inference API."""
        host = self.properties.get("grpc_inference_address", "127.0.0.1")
        return f"{host}:{self.properties.get('grpc_inference_port', '7070')}"

    @property
    def has_tokens(self) -> bool:
        """Whether the server asks for tokens."""
        return not is_true(self.properties.get("disable_token_authorization"))

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.folder / os.environ.get("LOG_LOCATION", "logs")

    def write(self) -> None:
        """Write the files that TorchServe and its workers read into ``folder``, made if missing."""
        # Every calibrated archive in the store, served or not: labels of retired versions may still arrive.
        labelled = labelled_models(stored_archives(self.store))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.text, "utf-8")
        (self.folder / "metrics.yaml").write_text(metrics_file(), "utf-8")
        (self.folder / "models.json").write_text(json.dumps(labelled, ensure_ascii=False), "utf-8")
        write_host_settings(self.folder, self.environment)


def configure(
    store: str | Path, models: Sequence[str], options: ServeOptions, settings: Mapping[str, str]
) -> Configuration:
    """Configure a :class:`~calib_serve.torchserve.server.Server`, which explains the parameters."""
    from calib_serve.ledger import check_address  # noqa: PLC0415 - the doctor imports this, without extras

    folder, store = Path(options.folder).resolve(), Path(store).resolve()
    _check_archives(store, models)
    text, notes = adjusted(
        Path(options.properties) if options.properties else None,
        settings,
        {"model_store": str(store), "load_models": ",".join(models)},
        metrics=folder / "metrics.yaml",
    )
    own = folder / "keyring.json"
    keyring = options.keyring or from_environment(KEYRING) or (own if own.is_file() else None)
    if keyring is not None:
        Keyring.load(keyring)  # a worker would not start, without saying why
    ledger = options.ledger or from_environment(LEDGER) or folder / "ledger.sqlite"
    check_address(str(ledger))
    environment = {
        "PYTHONUNBUFFERED": "1",
        MODELS: placed(from_environment(MODELS) or folder / "models.json"),
        **({} if keyring is None else {KEYRING: placed(keyring)}),
        LEDGER: placed(ledger),
    }
    if samples := options.samples or from_environment(SAMPLES):
        environment[SAMPLES] = placed(samples)
    notes += [
        f"{name}: {value}, not what the environment says"  # which may hold a password
        for name, value in environment.items()
        if name.startswith("CALIB_SERVE_")
        and (given := from_environment(name))
        and value not in (given, placed(given))
    ]
    named = _LOG_CONFIG in parse_properties(text).get("vmargs", "")
    return Configuration(
        *(folder, store, tuple(models), text, environment, tuple(notes)),
        log_config=None if named else shipped("handlers/log4j2.xml"),
    )


def ensure_keyring(folder: Path) -> Path:
    """``keyring.json`` in ``folder``, made with a first key where there is none."""
    path = folder / "keyring.json"
    if not path.exists():
        try:
            Keyring.create(path)
        except KeyringError:
            if not path.exists():
                raise  # else another server has made it since
    return path


def _check_archives(store: Path, models: Sequence[str]) -> None:
    if not models:
        raise ServerError("name at least one archive of the model store to serve, such as digits.mar")
    for name in models:
        if Path(name).name != name or not is_archive(store / name):
            there = ", ".join(sorted(path.name for path in store.glob("*") if is_archive(path)))
            what = f"it has {there}" if there else "pack it with: calib-serve pack"
            raise ServerError(f"there is no archive {name} in {store}; {what}")
