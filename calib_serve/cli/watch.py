"""``calib-serve watch``: count predictions and labels, look for drift, publish metrics and a page."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from calib_serve.cli.parse import names, positive, share, watched_model

__all__ = ["run"]


def run(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="NAME:VERSION=ARTIFACT (a folder), or NAME:VERSION=CLASSES (a number)."),
    ] = None,
    *,
    follow: Annotated[
        Path | None,
        typer.Option(
            "--follow", help="More versions, looked for while running: a list, or a folder of NAME/VERSION."
        ),
    ] = None,
    keyring: Annotated[
        Path, typer.Option("--keyring", help="Keys that sign and verify receipts; read again when changed.")
    ],
    ledger: Annotated[
        str,
        typer.Option("--ledger", help="Where labels are counted: a file, or postgresql://HOST/DATABASE."),
    ] = "ledger.db",
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port to listen on.")] = 9300,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            help="Tokens that may use it: NAME SCOPE[,SCOPE] TOKEN a line; read again on change.",
        ),
    ] = None,
    arl: Annotated[
        float, typer.Option("--arl", help="Labels between two false drift alarms, on average, at least.")
    ] = 100_000,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", help="How far accuracy may be from confidence: of verdicts and the detector."
        ),
    ] = 0.02,
    block: Annotated[
        int, typer.Option("--block", help="Labels that may depend on one another, where errors come in runs.")
    ] = 1,
    maturity: Annotated[
        str,
        typer.Option("--maturity", help="Age at which labels are in: auto, or such as 30m, 6h, 7d; or 0."),
    ] = "auto",
    label_budget: Annotated[
        str,
        typer.Option(
            "--label-budget",
            help="Which labels to ask for: 500/day, a rate 0.05, or rates by confidence 0.7:1,1:0.01.",
        ),
    ] = "",
    ttl_days: Annotated[
        float,
        typer.Option(
            "--ttl-days", parser=positive, metavar="NUMBER", help="For how long labels are accepted."
        ),
    ] = 30,
    max_segments: Annotated[
        int, typer.Option("--max-segments", min=0, help="Different segments a version; the rest are 'other'.")
    ] = 32,
    segments: Annotated[
        Any,
        typer.Option(
            "--segments", parser=names, metavar="NAMES", help="The segments alone; 'other' the rest."
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option("--samples", help="Keep logits and labels here, to refit on; default: keep none."),
    ] = None,
    sample_rate: Annotated[
        float,
        typer.Option("--sample-rate", parser=share, metavar="SHARE", help="Share of predictions to keep."),
    ] = 0.1,
    sample_days: Annotated[
        float,
        typer.Option("--sample-days", parser=positive, metavar="NUMBER", help="For how long to keep them."),
    ] = 30,
    max_megabytes: Annotated[
        float, typer.Option("--max-megabytes", parser=positive, metavar="NUMBER", help="Largest batch.")
    ] = 4,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Batches in line before 429.")
    ] = 32,
    max_versions: Annotated[
        int, typer.Option("--max-versions", min=1, help="With series of their own; the rest are 'other'.")
    ] = 200,
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
        Path | None, typer.Option("--tls-cert", help="Certificate with its chain, PEM: serve HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="The certificate's key, PEM.")] = None,
) -> None:
    """Watch model versions beside any server: POST /v1/predictions and /v1/labels, GET /metrics and /.

    Stops cleanly on Ctrl-C or SIGTERM; what was acknowledged is in the ledger.
    """
    from calib_serve.receipts import DAY, LiveKeyring
    from calib_serve.signals import on_hangup
    from calib_serve.watch.host_checks import file_check
    from calib_serve.watch.http import TokenFile, allowed_hosts, create_app, serve_app
    from calib_serve.watch.maturity import parse_maturity
    from calib_serve.watch.policy import parse_policy
    from calib_serve.watch.service import Watch

    if label_budget:
        parse_policy(label_budget)  # validated before anything is opened
    tokens = None if token_file is None else TokenFile(token_file)
    hosts = allowed_hosts(host, guarded=tokens is not None)
    ring = LiveKeyring(keyring)

    def read_again() -> None:
        ring.again()
        if tokens is not None:
            tokens.again()

    with (
        contextlib.ExitStack() as running,
        Watch.open(
            dict(watched_model(text) for text in models or []),
            keyring=ring,
            ledger=ledger,
            arl=arl,
            tolerance=tolerance,
            block=block,
            ttl=ttl_days * DAY,
            max_segments=max_segments,
            segments=segments,
            maturity=parse_maturity(maturity),
            policy=functools.partial(parse_policy, label_budget) if label_budget else None,
            samples=samples,
            sample_rate=sample_rate,
            sample_days=sample_days,
            follow=follow,
        ) as watch,
    ):
        running.callback(on_hangup(read_again))
        if tokens is not None:
            tokens.failed = functools.partial(watch.counts.errors.update, ["tokens"])
            watch.checks.add(file_check("tokens", tokens))
        app = create_app(
            watch,
            tokens=tokens or (),
            hosts=hosts,
            max_bytes=int(max_megabytes * 2**20),
            max_waiting=max_waiting,
            max_versions=max_versions,
        )
        for (name, version), watched in watch.models.items():
            if watched.reference is None and not watched.classes.pairs:
                told = "it has no reference; give its artifact, not a number of classes"
                typer.echo(f"{name}:{version}: shifts of confidence are not detected, as {told}", err=True)
        address = f"[{host}]" if ":" in host else host
        named = ", ".join(f"{name}:{version}" for name, version in watch.models) or f"what {follow} names"
        typer.echo(f"watching {named} on http{'s' if tls_cert else ''}://{address}:{port}")
        serve_app(
            app,
            host=host,
            port=port,
            max_connections=max_connections,
            request_seconds=request_seconds,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
    typer.echo("stopped")
