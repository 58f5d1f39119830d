"""TorchServe's management API."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from calib_serve.core.errors import ServerError
from calib_serve.core.files import read_whole
from calib_serve.torchserve.properties import is_true, read_properties

NOT_FOUND = httpx.codes.NOT_FOUND


def client_of(url: str, token: str | None, *, timeout: float = 30.0) -> httpx.Client:
    """Make a client of an API of the server at ``url``, with its token where it asks for one."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # Loopback never goes through the environment's proxies. Its own certificate is often self-signed; and the
    # system's certificates take 30 ms to read, ten times a second while Java starts.
    return httpx.Client(
        base_url=url,
        headers=headers,
        timeout=timeout,
        trust_env=False,
        verify=False,  # noqa: S501
    )


@dataclass(frozen=True, repr=False)
class Management:
    """The management API at ``url``; ``token`` None where the server asks for none."""

    url: str
    token: str | None

    @classmethod
    def of(cls, folder: Path) -> Management:
        """Find the API of the server that runs in ``folder``, by its config.properties and its tokens."""
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
        """List the pids of the ready workers."""
        workers = [worker for version in self.versions(model) for worker in version["workers"]]
        return [w["pid"] for w in workers if w["status"] == "READY" and w["pid"] > 0]

    def set_workers(self, model: str, version: str, workers: int) -> None:
        """Change the number of workers by TorchServe's API; return when it is done."""
        number = {"min_worker": workers, "max_worker": workers, "synchronous": "true"}
        self._do(f"scale {model} {version}", "PUT", f"/models/{model}/{version}", params=number)

    def register(self, archive: str, workers: int) -> None:
        """Register ``archive`` of the model store; return when all its workers are ready."""
        query = {"url": archive, "initial_workers": workers, "synchronous": "true"}
        self._do(f"register {archive}", "POST", "/models", params=query)

    def set_default(self, model: str, version: str) -> None:
        """Send requests that name no version to ``version`` from now on; earlier ones are still answered."""
        path = f"/models/{model}/{version}/set-default"
        self._do(f"make {model} {version} the default", "PUT", path, timeout=30.0)

    def unregister(self, model: str, version: str) -> None:
        """Forget a version, with all requests that wait for it."""
        self._do(f"unregister {model} {version}", "DELETE", f"/models/{model}/{version}", or_is=NOT_FOUND)

    def _do(self, what: str, method: str, path: str, *, or_is: int | None = None, **more: Any) -> None:
        """Request a change, ``what`` in words; ServerError for any error's status but ``or_is``."""
        # Without a limit: it is done only when all workers are there, or gone.
        reply = self._ask(method, path, **{"timeout": None, **more})
        if reply.is_error and reply.status_code != or_is:
            disabled = reply.status_code == httpx.codes.METHOD_NOT_ALLOWED
            hint = " Start it with enable_model_api=true in its config.properties" if disabled else ""
            raise ServerError(f"TorchServe did not {what}: {_message(reply)}{hint}")

    def _ask(self, method: str, path: str, *, timeout: float | None = 30.0, **more: Any) -> httpx.Response:
        with client_of(self.url, self.token) as http:
            return http.request(method, path, timeout=timeout, **more)


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {reply.status_code}"


@dataclass(frozen=True, repr=False)
class Tokens:
    """Tokens of ``key_file.json``; send one as ``Authorization: Bearer ...``."""

    inference: str
    management: str

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Read the tokens of a server that runs in the file's folder."""
        try:
            keys = json.loads(read_whole(path))
            return cls(keys["inference"]["key"], keys["management"]["key"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerError(f"cannot read the tokens in {path}: {error}") from error
