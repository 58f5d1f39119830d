"""``calib-serve gateway``: calibrate, sign and watch what passes to an Open Inference Protocol server."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from calib_serve.cli.parse import positive, watched_model
from calib_serve.errors import InputError, ServerError

__all__ = ["run"]


def run(
    models: Annotated[
        list[str],
        typer.Argument(
            help="MODEL[:VERSION]=ARTIFACT (a folder), or =CLASSES (a number) where the output is calibrated "
            "already; version 1 unless it is said."
        ),
    ],
    *,
    upstream: Annotated[
        str, typer.Option("--upstream", help="The server behind it, such as http://127.0.0.1:8000.")
    ],
    output: Annotated[
        list[str], typer.Option("--output", help="The output with the scores, NAME or MODEL=NAME.")
    ],
    scores: Annotated[
        list[str] | None,
        typer.Option(
            "--scores",
            help="What it holds, such as logits, KIND or MODEL=KIND; default: as the artifact says.",
        ),
    ] = None,
    keyring: Annotated[
        Path, typer.Option("--keyring", help="Keys that sign and verify receipts; read again when changed.")
    ],
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT to listen on.")] = "127.0.0.1:8080",
    grpc_upstream: Annotated[
        str | None,
        typer.Option("--grpc-upstream", help="HOST:PORT of the server's gRPC; grpcs://HOST:PORT by TLS."),
    ] = None,
    grpc_listen: Annotated[
        str | None, typer.Option("--grpc-listen", help="HOST:PORT to listen on for gRPC.")
    ] = None,
    watch: Annotated[
        str | None, typer.Option("--watch", help="The address of a calib-serve watch that counts.")
    ] = None,
    watch_token_file: Annotated[
        Path | None, typer.Option("--watch-token-file", help="A token for it, of the scope predict.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", help="Count in this process: a file, or postgresql://HOST/DATABASE."),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="Tokens that may read metrics and send labels: NAME SCOPE[,SCOPE] TOKEN a line.",
        ),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option("--samples", help="Keep a share of logits here, to refit on.")
    ] = None,
    shadow: Annotated[
        list[str] | None,
        typer.Option(
            "--shadow", help="An artifact's folder that runs in the shadow of a model's, DIR or MODEL=DIR."
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", parser=positive, metavar="NUMBER", help="Seconds that the server may take."
        ),
    ] = 60,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Requests at work before 429, or RESOURCE_EXHAUSTED.")
    ] = 256,
    max_megabytes: Annotated[
        float, typer.Option("--max-megabytes", parser=positive, metavar="NUMBER", help="Largest inference.")
    ] = 64,
    max_connections: Annotated[
        int, typer.Option("--max-connections", min=1, help="Connections at a time; others are answered 503.")
    ] = 512,
    request_seconds: Annotated[
        float,
        typer.Option(
            "--request-seconds",
            parser=positive,
            metavar="NUMBER",
            help="In which a request, and its body, must come.",
        ),
    ] = 30,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Certificate with its chain, PEM: serve by TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key, PEM.")] = None,
) -> None:
    """Stand before a server of the Open Inference Protocol: Triton, KServe, MLServer, OpenVINO, TorchServe.

    What is not an inference of the models given passes unchanged. Stops cleanly on Ctrl-C or SIGTERM.
    """
    from calib_serve.gateway.opening import Limits, Named, Ports, open_gateway
    from calib_serve.receipts import LiveKeyring
    from calib_serve.signals import on_hangup
    from calib_serve.watch.http import TokenFile, allowed_hosts, serve_app
    from calib_serve.watch.sender import read_token
    from calib_serve.watch.service import Watch

    host, port = _address(listen)
    if (watch is None) == (ledger is None):
        raise InputError("say where to count: --watch URL, or --ledger FILE to do it in this process")
    if bool(grpc_upstream) != bool(grpc_listen):
        raise InputError("gRPC needs both addresses: give --grpc-upstream and --grpc-listen")
    tokens = None if token_file is None else TokenFile(token_file)
    hosts = allowed_hosts(host, guarded=tokens is not None)
    ring = LiveKeyring(keyring)
    found = dict(watched_model(text, version="1") for text in models)

    def read_again() -> None:
        ring.again()
        if tokens is not None:
            tokens.again()

    with contextlib.ExitStack() as running:
        counting: Any = watch
        if ledger is not None:
            counting = running.enter_context(Watch.open(found, keyring=ring, ledger=ledger))
        gateway = running.enter_context(
            open_gateway(
                found,
                upstream,
                output=Named.read(output, "--output"),
                scores=Named.read(scores or [], "--scores"),
                keyring=ring,
                watch=counting,
                watch_token=read_token(watch_token_file) if watch_token_file else "",
                tokens=tokens or (),
                hosts=hosts,
                grpc=Ports(grpc_upstream, grpc_listen, _pair(tls_cert, tls_key))
                if grpc_upstream and grpc_listen
                else None,
                samples=samples,
                shadow=Named.read(shadow or [], "--shadow"),
                limits=Limits(timeout, max_waiting, int(max_megabytes * 2**20)),
            )
        )
        running.callback(on_hangup(read_again))
        typer.echo(f"{', '.join(models)} on http{'s' if tls_cert else ''}://{listen} before {upstream}")
        serve_app(
            gateway,
            host=host,
            port=port,
            max_connections=max_connections,
            request_seconds=request_seconds,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        if gateway.failed is not None:
            raise ServerError(f"the gateway did not start: {gateway.failed}")
    typer.echo("stopped")


def _address(text: str) -> tuple[str, int]:
    """``host:port``, an IPv6 address in brackets; InputError for anything else."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InputError(f"an address is HOST:PORT, got {text!r}")
    return host, int(port)


def _pair(cert: Path | None, key: Path | None) -> tuple[bytes, bytes] | None:
    """The bytes of both files; InputError where one cannot be read."""
    if cert is None or key is None:
        return None
    try:
        return cert.read_bytes(), key.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the certificate and its key: {error}") from error
