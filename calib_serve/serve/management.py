"""TorchServe's own APIs: their tokens, and the state of models and workers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from calib_serve.errors import ServerError
from calib_serve.serve.properties import is_true, read_properties

__all__ = ["Management", "Tokens", "client_of"]


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


def client_of(url: str, token: str | None, *, timeout: float = 30.0) -> httpx.Client:
    """A client of an API of the server that runs at ``url``, with its token where it asks for one."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # Loopback never goes through the environment's proxies. Its own certificate is often self-signed.
    return httpx.Client(
        base_url=url, headers=headers, timeout=timeout, trust_env=False, verify=not url.startswith("https:")
    )


@dataclass(frozen=True, repr=False)
class Management:
    """The management API at ``url``; ``token`` None where the server asks for none."""

    url: str
    token: str | None

    @classmethod
    def of(cls, folder: Path) -> Management:
        """Of the server that runs in ``folder``, by its config.properties and its tokens."""
        properties = read_properties(folder / "config.properties")
        token = None
        if not is_true(properties.get("disable_token_authorization")):
            token = Tokens.read(folder / "key_file.json").management
        return cls(properties.get("management_address", "http://127.0.0.1:8081"), token)

    def versions(self, model: str, version: str | None = "all") -> list[dict[str, Any]]:
        """The server's description of each version of ``model``, or of one; None: the default one."""
        reply = self._ask("GET", f"/models/{model}/{version}" if version else f"/models/{model}")
        versions: list[dict[str, Any]] = reply.raise_for_status().json()
        return versions

    def workers(self, model: str) -> list[int]:
        """The pids of the ready workers."""
        workers = [worker for version in self.versions(model) for worker in version["workers"]]
        return [w["pid"] for w in workers if w["status"] == "READY" and w["pid"] > 0]

    def set_workers(self, model: str, version: str, workers: int) -> None:
        """TorchServe's own way to another number of workers; returns when it is done."""
        number = {"min_worker": workers, "max_worker": workers, "synchronous": "true"}
        reply = self._ask("PUT", f"/models/{model}/{version}", timeout=None, params=number)
        if reply.is_error:
            raise ServerError(f"TorchServe did not scale {model} {version}: {_message(reply)}")

    def register(self, archive: str, workers: int) -> None:
        """Register ``archive`` of the model store; returns when all its workers are ready."""
        query = {"url": archive, "initial_workers": workers, "synchronous": "true"}
        reply = self._ask("POST", "/models", timeout=None, params=query)
        if reply.status_code == httpx.codes.METHOD_NOT_ALLOWED:
            raise ServerError(
                f"TorchServe did not register {archive}: {_message(reply)} Start it with"
                " enable_model_api=true in its config.properties"
            )
        if reply.is_error:
            raise ServerError(f"TorchServe did not register {archive}: {_message(reply)}")

    def set_default(self, model: str, version: str) -> None:
        """Requests that name no version go to ``version`` from now on; those before it are still answered."""
        reply = self._ask("PUT", f"/models/{model}/{version}/set-default")
        if reply.is_error:
            raise ServerError(f"TorchServe did not make {model} {version} the default: {_message(reply)}")

    def unregister(self, model: str, version: str) -> None:
        """Forget a version, with all requests that wait for it."""
        reply = self._ask("DELETE", f"/models/{model}/{version}", timeout=None)
        if reply.is_error and reply.status_code != httpx.codes.NOT_FOUND:
            raise ServerError(f"TorchServe did not unregister {model} {version}: {_message(reply)}")

    def _ask(self, method: str, path: str, *, timeout: float | None = 30.0, **more: Any) -> httpx.Response:
        with client_of(self.url, self.token) as http:
            return http.request(method, path, timeout=timeout, **more)


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"
