"""A server's configuration: validated before anything starts, then written to its folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from calib_serve.errors import ServerError
from calib_serve.fuse.mar_options import (
    KEYRING,
    LABEL_BUDGET,
    LEDGER,
    METRICS,
    MODELS,
    SAMPLE_RATE,
    SAMPLE_SECONDS,
    SAMPLES,
    WRITER,
    from_environment,
)
from calib_serve.fuse.torchserve import labelled_models, read_archive, shipped
from calib_serve.receipts import Keyring
from calib_serve.serve.metrics_file import metrics_file
from calib_serve.serve.properties import Ports, changed, parse_properties
from calib_serve.watch.policy import parse_policy

__all__ = ["Configuration", "configure", "ensure_keyring"]


@dataclass(frozen=True)
class Configuration:
    """``text`` of config.properties, ``environment`` of the workers, and where everything lies."""

    folder: Path
    store: Path
    models: tuple[str, ...]
    text: str
    environment: Mapping[str, str]

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """The keys and values of ``text``."""
        return parse_properties(self.text)

    @property
    def file(self) -> Path:
        """Where ``text`` is written."""
        return self.folder / "config.properties"

    @property
    def names(self) -> list[str]:
        """The models' names, from their archives."""
        return [read_archive(self.store / model, verify=False).name for model in self.models]

    def address(self, api: str) -> str:
        """Base URL of the ``inference``, ``management`` or ``metrics`` API."""
        return _value(self.properties, f"{api}_address")

    @property
    def grpc(self) -> str:
        """host:port of the gRPC inference API."""
        port = _value(self.properties, "grpc_inference_port")
        return f"{urlsplit(self.address('inference')).hostname}:{port}"

    def write(self) -> None:
        """Write what TorchServe and its workers read into ``folder``, made if missing."""
        # Every calibrated archive in the store, served or not: labels of retired versions may still arrive.
        labelled = labelled_models(sorted(self.store.glob("*.mar")))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.text, "utf-8")
        (self.folder / "metrics.yaml").write_text(metrics_file(), "utf-8")
        (self.folder / "models.json").write_text(json.dumps(labelled, ensure_ascii=False), "utf-8")


def configure(
    store: str | Path,
    models: Sequence[str],
    *,
    folder: str | Path,
    config: str | Path | None = None,
    ports: Ports | None = None,
    settings: Mapping[str, str] | None = None,
    keyring: str | Path | None = None,
    ledger: str | Path | None = None,
    writer: str | None = None,
    samples: str | Path | None = None,
    sample_rate: float = 0.1,
    label_budget: str = "",
    sample_seconds: float = 60.0,
) -> Configuration:
    """The configuration of a :class:`~calib_serve.serve.server.Server`, which explains the parameters."""
    folder, store = Path(folder).resolve(), Path(store).resolve()
    _check_archives(store, models)
    base = Path(config) if config else shipped("config.properties")
    values = {
        **(ports.as_properties() if ports else {}),
        **(settings or {}),
        "model_store": str(store),
        "load_models": ",".join(models),
        "metrics_config": str(folder / "metrics.yaml"),
    }
    text = changed(base.read_text("utf-8"), values)
    environment = {
        "PYTHONUNBUFFERED": "1",
        MODELS: str(folder / "models.json"),
        METRICS: _value(parse_properties(text), "metrics_address"),
        **_keyring(folder, keyring),
        **_ledger(folder, ledger),
        **({WRITER: writer} if writer else {}),
        **_sampling(samples, sample_rate, sample_seconds),
        **_asking(label_budget),
    }
    return Configuration(folder, store, tuple(models), text, environment)


def ensure_keyring(folder: Path) -> Path:
    """``keyring.json`` in ``folder``, made with a first key where there is none."""
    path = folder / "keyring.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        Keyring.new().save(path)
    return path


def _value(properties: Mapping[str, str], key: str) -> str:
    if key not in properties:
        raise ServerError(
            f"config.properties does not say its {key}; add the line, or start from the default"
        )
    return properties[key]


def _check_archives(store: Path, models: Sequence[str]) -> None:
    if not models:
        raise ServerError("name at least one archive of the model store to serve, such as digits.mar")
    for name in models:
        if Path(name).name != name or not (store / name).is_file():
            raise ServerError(f"there is no archive {name} in {store}; pack it with: calib-serve pack")


def _keyring(folder: Path, given: str | Path | None) -> dict[str, str]:
    own = folder / "keyring.json"
    found = {}
    if given is not None or (KEYRING not in os.environ and own.is_file()):
        found[KEYRING] = str(Path(given or own).resolve())
    if path := found.get(KEYRING) or from_environment(KEYRING):
        Keyring.load(path)  # a worker would not start, without saying why
    return found


def _ledger(folder: Path, given: str | Path | None) -> dict[str, str]:
    if given is None and LEDGER in os.environ:
        return {}
    if "://" in str(given):
        return {LEDGER: str(given)}
    return {LEDGER: str(Path(given or folder / "ledger.sqlite").resolve())}


def _sampling(samples: str | Path | None, rate: float, seconds: float) -> dict[str, str]:
    if not (0 < rate <= 1 and 0 < seconds < math.inf):
        raise ServerError(
            f"sample_rate is above 0 and at most 1, sample_seconds above 0; got {rate} and {seconds}"
        )
    if samples is None:
        return {}
    return {
        SAMPLES: str(Path(samples).resolve()),
        SAMPLE_RATE: repr(rate),
        SAMPLE_SECONDS: repr(seconds),
    }


def _asking(label_budget: str) -> dict[str, str]:
    return {LABEL_BUDGET: parse_policy(label_budget).text} if label_budget else {}
