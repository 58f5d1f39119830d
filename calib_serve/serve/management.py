"""TorchServe's own APIs: their tokens, and the state of models and workers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from calib_serve.errors import ServerError

__all__ = ["Management", "Tokens"]


@dataclass(frozen=True, repr=False)
class Tokens:
    """The content of ``key_file.json``; send one as ``Authorization: Bearer ...``."""

    inference: str
    management: str
    api: str

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Of a server that runs in the file's folder."""
        try:
            keys = json.loads(path.read_text("utf-8"))
            return cls(keys["inference"]["key"], keys["management"]["key"], keys["API"]["key"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServerError(f"cannot read the tokens in {path}: {error}") from error


@dataclass(frozen=True, repr=False)
class Management:
    """The management API at ``url``."""

    url: str
    token: str

    def versions(self, model: str) -> list[dict[str, Any]]:
        """The server's description of each version of ``model``."""
        headers = {"Authorization": f"Bearer {self.token}"}
        # Loopback never goes through the environment's proxies.
        reply = httpx.get(f"{self.url}/models/{model}/all", headers=headers, timeout=30.0, trust_env=False)
        versions: list[dict[str, Any]] = reply.raise_for_status().json()
        return versions

    def ready(self, model: str) -> bool:
        """Whether every version has the workers it was configured with."""
        return all(
            sum(w["status"] == "READY" for w in version["workers"]) >= max(1, version["minWorkers"])
            for version in self.versions(model)
        )

    def workers(self, model: str) -> list[int]:
        """The pids of the ready workers."""
        workers = [worker for version in self.versions(model) for worker in version["workers"]]
        return [w["pid"] for w in workers if w["status"] == "READY" and w["pid"] > 0]
