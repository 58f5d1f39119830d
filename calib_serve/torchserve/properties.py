"""TorchServe's config.properties: read and changed as Java does, and the ports that it names."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from calib_serve.core.errors import ServerError
from calib_serve.core.files import read_whole

# As java.util.Properties reads a line: key, then = or : or a blank, then value.
_PROPERTY = re.compile(r"[ \t\f]*([^#!=:\s][^=: \t\f]*)[ \t\f]*[=:]?(.*)", re.DOTALL)

_HOST = "127.0.0.1"
ADDRESSES = {
    "inference": "http://127.0.0.1:8080",
    "management": "http://127.0.0.1:8081",
    "metrics": "http://127.0.0.1:8082",
}
"""TorchServe's APIs, and where each listens if no line says it."""


@dataclass(frozen=True)
class Ports:
    """The ports of a server, all on one host.

    Args:
        inference: Of the inference API.
        management: Of the management API.
        metrics: Of the metrics API.
        grpc_inference: Of the inference API over gRPC.
        grpc_management: Of the management API over gRPC.
    """

    inference: int = 8080
    management: int = 8081
    metrics: int = 8082
    grpc_inference: int = 7070
    grpc_management: int = 7071

    @classmethod
    def free(cls) -> Ports:
        """Find five free ports."""
        sockets = [socket.socket() for _ in range(5)]
        try:
            for one in sockets:
                one.bind((_HOST, 0))
            return cls(*(one.getsockname()[1] for one in sockets))
        finally:
            for one in sockets:
                one.close()

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Ports:
        """Read the ports in a config.properties; TorchServe's defaults for the others, or for Unix sockets.

        >>> Ports.of({"inference_address": "http://0.0.0.0:9080", "grpc_inference_port": "9070"})
        Ports(inference=9080, management=8081, metrics=8082, grpc_inference=9070, grpc_management=7071)
        """
        found = {}
        for name in (each.name for each in fields(cls)):
            said = properties.get(f"{name}_{'port' if name.startswith('grpc_') else 'address'}", "")
            number = re.search(r"(\d+)/?$", said)
            if number is not None and not said.startswith("unix:"):
                found[name] = int(number[1])
        return cls(**found)

    def taken(self) -> dict[str, int]:
        """The ports, by name, that a server of this host could not listen on now."""
        return {name: port for name, port in asdict(self).items() if not is_free(port)}

    def as_properties(self) -> dict[str, str]:
        """Write the lines of config.properties that set these ports."""
        return {
            **{f"{name}_address": f"http://{_HOST}:{getattr(self, name)}" for name in ADDRESSES},
            "grpc_inference_port": str(self.grpc_inference),
            "grpc_management_port": str(self.grpc_management),
        }


def is_free(port: int) -> bool:
    """Whether a server of this host could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def read_properties(path: Path) -> dict[str, str]:
    """Read the keys and values of a file, see :func:`parse_properties`."""
    try:
        return parse_properties(read_whole(path).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ServerError(f"cannot read {path}: {error}") from error


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse keys and values, the last one of a key as Java takes it; comments are left out.

    >>> parse_properties("# why\na=1\nb: 2\na = 3")
    {'a': '3', 'b': '2'}
    """
    found = (_PROPERTY.match(line) for line in _lines(text))
    return {match[1]: match[2].strip() for match in found if match}


def is_true(value: str | None) -> bool:
    """Read a flag as Java does."""
    return (value or "").strip().lower() == "true"


def edit_properties(text: str, values: Mapping[str, str | None]) -> str:
    r"""Put ``values`` into ``text``, comments kept; new keys are appended, None takes a line out.

    >>> edit_properties("# why\na=1\nc=4\n", {"a": "2", "b": "3", "c": None})
    '# why\na=2\nb=3\n'
    """
    for key, value in values.items():
        if value is not None and ("\n" in value or "\r" in value or value.endswith("\\")):
            raise ServerError(f"the value of {key} may not hold a line break, nor end in a backslash")
    left, lines = {key: value for key, value in values.items() if value is not None}, []
    for line in _lines(text):
        match = _PROPERTY.match(line)
        if match is None or match[1] not in values:
            lines.append(line)
        elif match[1] in left:
            lines.append(f"{match[1]}={left.pop(match[1])}")
        # Drop a second line of the same key: Java would take it instead of ours.
    return "\n".join([*lines, *(f"{key}={value}" for key, value in left.items())]) + "\n"


def _lines(text: str) -> list[str]:
    """Split lines as Java does: CR and LF end one, and a backslash at its end joins the next."""
    found, begun = [], ""
    for piece in re.split(r"\r\n|\r|\n", text.removesuffix("\n")):
        line = begun + piece.lstrip(" \t\f") if begun else piece
        comment = line.lstrip(" \t\f").startswith(("#", "!"))
        if not comment and (len(line) - len(line.rstrip("\\"))) % 2:
            begun = line[:-1]
        else:
            begun = ""
            found.append(line)
    return [*found, begun] if begun else found
