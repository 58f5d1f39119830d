"""Options of what serves by HTTP: where it listens, who may use it, and how much it takes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from calib_serve.options.base import RARE, Checked, check, check_positive

__all__ = ["WebOptions"]


@dataclass(frozen=True, kw_only=True)
class WebOptions(Checked):
    """Options of ``create_app`` and ``serve_app``."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 9300
    """Port to listen on."""
    token_file: Path | None = None
    """Tokens that may use it: NAME SCOPE[,SCOPE] TOKEN a line; read again on change."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Host names to answer to besides loopback, as a proxy in front sends them."""
    root_path: Annotated[str, RARE] = ""
    """Path under which a proxy serves it, and which the proxy strips."""
    log_format: Literal["text", "json"] = "text"
    """Of the log on stderr: text, or json, one object a line."""
    tls_cert: Path | None = None
    """Certificate with its chain, PEM: serve by TLS."""
    tls_key: Path | None = None
    """The certificate's key, PEM."""
    max_connections: Annotated[int, RARE] = 512
    """Connections at a time; others are answered 503."""
    request_seconds: Annotated[float, RARE] = 30
    """In which a request, and its body, must come."""
    max_waiting: Annotated[int, RARE] = 32
    """Requests at work or in line before 429."""
    max_megabytes: Annotated[float, RARE] = 4
    """The largest body."""
    max_versions: Annotated[int, RARE] = 200
    """Model versions with series of their own; the rest are 'other'."""

    def _check(self) -> None:
        check(0 <= self.port <= 65_535, "port", f"must be 0 to 65535, got {self.port}")
        rooted = self.root_path.startswith("/") and not self.root_path.endswith("/")
        told = f"begins with / and does not end with it, got {self.root_path!r}"
        check(not self.root_path or rooted, "root_path", told)
        lone = "tls_key" if self.tls_cert is None else "tls_cert"
        check(
            (self.tls_cert is None) == (self.tls_key is None),
            lone,
            "is one of two: a certificate and its key, tls_cert and tls_key",
        )
        check_positive(request_seconds=self.request_seconds, max_megabytes=self.max_megabytes)
        for option in ("max_connections", "max_waiting", "max_versions"):
            value = getattr(self, option)
            check(value >= 1, option, f"must be 1 or more, got {value}")

    @property
    def max_bytes(self) -> int:
        """Return the largest body in bytes."""
        return int(self.max_megabytes * 2**20)
