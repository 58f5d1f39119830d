"""Options of a gateway before a server of the Open Inference Protocol."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from calib_serve.options.base import RARE, check, check_positive
from calib_serve.options.web import WebOptions

__all__ = ["GatewayOptions"]


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(WebOptions):
    """Options of ``open_gateway``; in Python ``keyring`` and ``watch`` may be open already."""

    upstream: str
    """The server behind it, such as http://127.0.0.1:8000."""
    output: list[str]
    """The output with the scores, NAME or MODEL=NAME."""
    scores: list[str] = field(default_factory=list)
    """What it holds, such as logits, KIND or MODEL=KIND; by default as the artifact says."""
    shadow: list[str] = field(default_factory=list)
    """An artifact's folder that runs in the shadow of a model's, DIR or MODEL=DIR."""
    keyring: Any = "keyring.json"
    """Keys that sign receipts; read again when the file changes."""
    watch: Any = None
    """The address of a calib-serve watch that counts."""
    watch_token_file: str | None = None
    """A token for it, of the scope predict."""
    ledger: str | None = None
    """Count in this process instead: a file, or postgresql://HOST/DATABASE."""
    samples: str | None = None
    """Keep a share of logits in this folder, to refit on."""
    port: int = 8080
    """Port to listen on for REST."""
    grpc_upstream: str | None = None
    """HOST:PORT of the server's gRPC; grpcs://HOST:PORT by TLS."""
    grpc_port: int | None = None
    """Port to listen on for gRPC."""
    timeout: Annotated[float, RARE] = 60
    """Seconds that the server behind may take."""
    max_waiting: Annotated[int, RARE] = 256
    """Requests at work before 429, or RESOURCE_EXHAUSTED."""
    max_megabytes: Annotated[float, RARE] = 64
    """The largest inference."""

    def _check(self) -> None:
        check(
            (self.watch is None) != (self.ledger is None),
            "watch",
            "or ledger says where to count: the address of a watch, or a file to count in this process",
        )
        check(
            (self.grpc_upstream is None) == (self.grpc_port is None),
            "grpc_port" if self.grpc_upstream is None else "grpc_upstream",
            "is one of two that gRPC needs: grpc_upstream and grpc_port",
        )
        given = self.grpc_port
        check(given is None or 0 < given <= 65_535, "grpc_port", f"must be 1 to 65535, got {given}")
        check_positive(timeout=self.timeout)
