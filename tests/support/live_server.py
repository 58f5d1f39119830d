"""Real archives, and one real TorchServe that tests of one module share."""

from __future__ import annotations

import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from collecting import until
from processes import free_ports

from calib_serve import Artifact, Keyring
from calib_serve.artifact import LogitMap
from calib_serve.torchserve import pack, pack_feedback, read_archive
from calib_serve.torchserve.archive._archive import write_archive
from calib_serve.torchserve.properties import Ports
from calib_serve.torchserve.server import Server

CLASSES, WIDTH = 10, 16
NAMES = tuple(f"digit {k}" for k in range(CLASSES))


def network() -> torch.nn.Module:
    """A small classifier, the same at every call."""
    generator = torch.Generator().manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.5)
    return net.eval()


def exported(path: Path, net: torch.nn.Module | None = None, *shape: int) -> Path:
    """``net``, of inputs of this shape, as a .pt2 file for batches of any size."""
    example, free = torch.zeros(2, *(shape or (WIDTH,))), {0: torch.export.Dim("n")}
    torch.export.save(torch.export.export(net or network(), (example,), dynamic_shapes=(free,)), path)
    return path


def temperature_artifact(t: float = 2.0, **more: Any) -> Artifact:
    """A temperature for the small classifier."""
    facts = {"model": {"input_shape": [WIDTH]}, "class_names": NAMES, **more}
    return Artifact((LogitMap.temperature(t),), method="temperature", classes=CLASSES, **facts)


def inputs(n: int, seed: int = 0) -> np.ndarray:
    """(n, WIDTH) float32."""
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)


def samples(text: str, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """One family of a Prometheus text: labels without the host, to values."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if match:
            labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(1))
            found[tuple((k, v) for k, v in labels if k != "Hostname")] = float(match.group(2))
    return found


def total(text: str, name: str, **labels: str) -> float:
    """The sum of a family's samples that have ``labels``."""
    wanted = set(labels.items())
    return sum(value for key, value in samples(text, name).items() if wanted <= set(key))


@dataclass
class Running:
    """A server under test and a client that holds its token."""

    server: Server
    http: httpx.Client
    keyring: Keyring
    served: list[dict[str, Any]] = field(default_factory=list)  # the client's own record
    model: str = "digits"  # the one that is asked where none is named

    def predict(self, x: Any, model: str = "", **kwargs: Any) -> httpx.Response:
        """One prediction over REST."""
        body = kwargs or {"json": x}
        reply = self.http.post(f"/predictions/{model or self.model}", **body)
        if reply.status_code == 200:
            self.served.append(reply.json())
        return reply

    def predict_all(self, xs: Any, model: str = "", *, threads: int = 8) -> list[httpx.Response]:
        """Many at once, replies in order."""
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda x: self.predict(x.tolist(), model), xs))

    def settled(self) -> str:
        """The metrics once every served prediction has arrived; fails if they never do."""
        name, asked = "calib_predictions_total", Counter(reply["model"] for reply in self.served)

        def arrived() -> bool:
            text = self.server.scrape()
            return all(total(text, name, model=model) >= n for model, n in asked.items())

        until(arrived)
        return self.server.scrape()

    def label(self, items: Any) -> httpx.Response:
        """Labels for receipts."""
        return self.http.post("/predictions/calibration_feedback", json=items)


def rewritten(path: Path, files: Mapping[str, str]) -> Path:
    """An archive with other text in some of its files."""
    found = read_archive(path)
    named = {name: text.encode() for name, text in files.items()}
    facts: dict[str, Any] = {"name": found.name, "version": found.version, "manifest": found.manifest}
    with found.contents() as kept:
        return write_archive(path, {**kept, **named}, **facts)


def foreign(store: Path, name: str, code: str, config: str = "") -> Path:
    """An archive with the handler ``code``, as its user packs it: without this package."""
    model = {"modelName": name, "handler": f"{name}_handler.py", "modelVersion": "1.0"}
    if config:
        model["configFile"] = "model-config.yaml"
    manifest = {"runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    path = store / f"{name}.mar"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr(f"{name}_handler.py", code)
        if config:
            archive.writestr("model-config.yaml", config)
    return path


def small_store(folder: Path, artifact: Artifact | None = None) -> Path:
    """A model store of one classifier, two workers, batches of 8, and the feedback model."""
    artifact = artifact or temperature_artifact()
    model = exported(folder / "net.pt2")
    pack(model, artifact, folder, name="digits", workers=2, batch_size=8, unproven=True)
    pack_feedback(folder)
    return folder


def serve(store: Path, models: list[str], folder: Path, **settings: str) -> Iterator[Running]:
    """A running server with receipts on, stopped afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    keyring = Keyring.new()
    keyring.save(folder / "keyring.json")
    ports = Ports(*free_ports(5)).as_properties()
    server = Server(store, models, folder=folder, settings={**ports, **settings})
    with server, server.client() as http:
        yield Running(server, http, keyring)
