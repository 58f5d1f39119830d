"""TorchServe's config.properties: read, changed in places, written."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from calib_serve.errors import ServerError

__all__ = ["Ports", "changed", "read_properties"]

_ADDRESSES = ("inference", "management", "metrics")


@dataclass(frozen=True)
class Ports:
    """Where a server listens, all on one host."""

    inference: int = 8080
    management: int = 8081
    metrics: int = 8082
    grpc_inference: int = 7070
    grpc_management: int = 7071

    @classmethod
    def free(cls, host: str = "127.0.0.1") -> Ports:
        """Five ports that nobody listens on now."""
        sockets = [socket.socket() for _ in range(5)]
        try:
            for one in sockets:
                one.bind((host, 0))
            return cls(*(one.getsockname()[1] for one in sockets))
        finally:
            for one in sockets:
                one.close()

    def available(self, host: str = "127.0.0.1") -> bool:
        """Whether nobody listens on any of them now."""
        for port in astuple(self):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError:
                    return False
        return True

    def as_properties(self, host: str = "127.0.0.1") -> dict[str, str]:
        """The lines of config.properties that set these ports."""
        return {
            **{f"{name}_address": f"http://{host}:{getattr(self, name)}" for name in _ADDRESSES},
            "grpc_inference_port": str(self.grpc_inference),
            "grpc_management_port": str(self.grpc_management),
        }


def read_properties(path: Path) -> dict[str, str]:
    """Keys and values; comments and empty lines are left out."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"cannot read {path}: {error}") from error
    pairs = (line.split("=", 1) for line in map(str.strip, lines) if line and not line.startswith("#"))
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def changed(text: str, values: Mapping[str, str]) -> str:
    r"""``text`` with ``values`` in the place of its own, comments kept; new keys go to the end.

    >>> changed("# why\na=1\n", {"a": "2", "b": "3"})
    '# why\na=2\nb=3\n'
    """
    left = dict(values)
    for key, value in left.items():
        if "\n" in value or "\r" in value:
            raise ServerError(f"the value of {key} may not hold a line break")
    lines = []
    for line in text.splitlines():
        key = line.split("=", 1)[0].strip()
        lines.append(f"{key}={left.pop(key)}" if key in left and not line.startswith("#") else line)
    return "\n".join([*lines, *(f"{key}={value}" for key, value in left.items())]) + "\n"
