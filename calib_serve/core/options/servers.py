"""Options of servers: the watch, the gateway, and a TorchServe over calibrated archives."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from calib_serve.core.options.base import (
    Checked,
    Tolerant,
    check,
    check_default,
    check_positive,
)
from calib_serve.core.options.samples import OF_FOLDER, SampleOptions


@dataclass(frozen=True, kw_only=True)
class DriftOptions(Tolerant):
    """Options of the drift ``Detector``."""

    arl: float = 100_000
    """Labels between two false drift alarms, on average, at least."""
    block: int = 1
    """Labels that may depend on one another, where errors come in runs."""

    def _check(self) -> None:
        check(self.block >= 1, "block", f"is a number of labels, at least 1, got {self.block}")
        # What the detector may multiply it with still fits a float.
        check(2 <= self.arl <= 1e30, "arl", f"is a number of labels, 2 to 1e+30, got {self.arl}")
        check(0 <= self.tolerance < 0.5, "tolerance", f"must be in [0, 0.5), got {self.tolerance}")


@dataclass(frozen=True, kw_only=True)
class WatchOptions(SampleOptions, DriftOptions):
    """Options of ``Watch.open``.

    In Python ``keyring`` and ``samples`` may be open already, and ``label_budget`` a function that makes a
    ``LabelPolicy``; ``maturity`` and ``segments`` also take numbers, ``segments`` a list of names.
    """

    keyring: Any = "keyring.json"
    """Keys that sign and verify receipts; read again when the file changes."""
    ledger: Any = "ledger.db"
    """Where labels are counted: a file, or postgresql://HOST/DATABASE."""
    follow: Path | None = None
    """A list of more versions, a file that is looked at while running."""
    maturity: Any = "auto"
    """Age at which labels are in: auto, or such as 30m, 6h, 7d; or 0."""
    ttl_days: float = 30
    """For how many days after its prediction a label is accepted."""
    segments: Any = "32"
    """How many segments a version may have, or their names, a,b,c; the rest are 'other'."""
    sample_days: float = 30
    """For how many days samples are kept."""

    def _check(self) -> None:
        check_positive("ttl_days", self.ttl_days)
        check_positive("sample_days", self.sample_days)
        if not isinstance(self.samples, (str, Path)):
            check_default(self, ["sample_days"], OF_FOLDER)

    @property
    def most_segments(self) -> Any:
        """The number of different segments that a version may have, or their names."""
        if not isinstance(self.segments, str):
            return self.segments
        if self.segments.isdecimal():
            return int(self.segments)
        names = [name.strip() for name in self.segments.split(",") if name.strip()]
        check(bool(names), "segments", f"are a number, or names with commas between, got {self.segments!r}")
        return names


@dataclass(frozen=True, kw_only=True)
class ListenOptions(Checked):
    """Options of ``serve_app``."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 9300
    """Port to listen on."""
    tls_cert: Path | None = None
    """Certificate with its chain, PEM: serve by TLS."""
    tls_key: Path | None = None
    """The certificate's key, PEM."""

    def _check(self) -> None:
        check(0 <= self.port <= 65_535, "port", f"must be 0 to 65535, got {self.port}")
        lone = "tls_key" if self.tls_cert is None else "tls_cert"
        check(
            (self.tls_cert is None) == (self.tls_key is None),
            lone,
            "is one of two: a certificate and its key, tls_cert and tls_key",
        )


@dataclass(frozen=True, kw_only=True)
class WebOptions(ListenOptions):
    """Options of a command that serves an app."""

    token_file: Path | None = None
    """Tokens that may use it: NAME SCOPE[,SCOPE] TOKEN a line; read again on change."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Host names to answer to besides loopback, as a proxy in front sends them."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log on stderr: text, or json, one object a line."""


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(WebOptions):
    """Options of ``open_gateway``; in Python ``keyring`` and ``watch`` may be open already."""

    upstream: str
    """The server that the gateway stands before, such as http://127.0.0.1:8000."""
    output: list[str]
    """The output with the scores, NAME or MODEL=NAME."""
    scores: list[str] = field(default_factory=list)
    """The kind of its scores, such as logits, KIND or MODEL=KIND; by default as the artifact says."""
    shadow: list[str] = field(default_factory=list)
    """An artifact's folder that runs in the shadow of a model's, DIR or MODEL=DIR."""
    keyring: Any = "keyring.json"
    """Keys that sign receipts; read again when the file changes."""
    watch: Any = None
    """The address of a calib-serve watch that counts predictions."""
    watch_token_file: str | None = None
    """A file with a token of the scope predict for that watch."""
    ledger: str | None = None
    """Count in this process instead: a file, or postgresql://HOST/DATABASE."""
    label_budget: str = ""
    """Which labels this gateway asks for: 500/day, or 0.05; by default all."""
    port: int = 8080
    """Port to listen on for REST."""
    grpc_upstream: str | None = None
    """HOST:PORT of the server's gRPC; grpcs://HOST:PORT by TLS."""
    grpc_port: int | None = None
    """Port to listen on for gRPC."""
    timeout: float = 60
    """Seconds that the server behind may take."""
    trust_headers: bool = False
    """Believe x-calib-segment, -group and -id of every client: a proxy in front sets or strips them."""
    max_megabytes: float = 64
    """The largest inference, in MiB."""

    def _check(self) -> None:
        check(
            (self.watch is None) != (self.ledger is None),
            "watch",
            "or ledger says where to count: the address of a watch, or a file to count in this process",
        )
        if self.watch is None:
            check_default(self, ["watch_token_file"], "is for a watch at another address: name that by watch")
        check(
            (self.grpc_upstream is None) == (self.grpc_port is None),
            "grpc_port" if self.grpc_upstream is None else "grpc_upstream",
            "is one of two that gRPC needs: grpc_upstream and grpc_port",
        )
        given = self.grpc_port
        check(given is None or 0 < given <= 65_535, "grpc_port", f"must be 1 to 65535, got {given}")
        check_positive("timeout", self.timeout)
        check_positive("max_megabytes", self.max_megabytes)


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Checked):
    """Options of ``Server``."""

    folder: str | Path = Path("serving")
    """The folder to run in: configuration, logs, tokens, keyring and ledger."""
    properties: str | Path | None = None
    """A config.properties to start from; by default the safe one."""
    keyring: str | Path | None = None
    """Keys that sign receipts; by default FOLDER/keyring.json, made if missing."""
    ledger: str | Path | None = None
    """Where labels are counted: a file, or postgresql://HOST/DATABASE; by default in FOLDER."""
    samples: str | Path | None = None
    """Keep a tenth of logits, and their labels, in this folder, to refit on; by default none are kept."""
