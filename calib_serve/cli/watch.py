"""``calib-serve watch``: count predictions and labels, look for drift, publish metrics and a page."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from calib_serve.cli.parse import positive, share
from calib_serve.errors import InputError

if TYPE_CHECKING:
    from calib_serve.watch.service import Watched

__all__ = ["run"]

_PATIENCE = 10  # seconds that clients have to end what they began, once the server is to stop
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(
    models: Annotated[
        list[str],
        typer.Argument(help="NAME:VERSION=ARTIFACT (a folder), or NAME:VERSION=CLASSES (a number)."),
    ],
    *,
    keyring: Annotated[Path, typer.Option("--keyring", help="Keys that sign and verify receipts.")],
    ledger: Annotated[
        str, typer.Option("--ledger", help="Where labels are counted: a file, or redis://...")
    ] = "ledger.db",
    writer: Annotated[
        str, typer.Option("--writer", help="This replica's name, where several share a ledger.")
    ] = "",
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Port to listen on.")] = 9300,
    token_file: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, also on 3.10
        typer.Option("--token-file", help="Tokens that may use it, one a line."),
    ] = None,
    arl: Annotated[
        float, typer.Option("--arl", help="Labels between two false drift alarms, on average, at least.")
    ] = 100_000,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="How far accuracy may be from confidence.")
    ] = 0.01,
    block: Annotated[
        int, typer.Option("--block", help="Labels that may hang together, where errors come in runs.")
    ] = 1,
    ttl_days: Annotated[
        float,
        typer.Option(
            "--ttl-days", parser=positive, metavar="NUMBER", help="For how long labels are welcome."
        ),
    ] = 30,
    max_segments: Annotated[
        int, typer.Option("--max-segments", min=0, help="Different segments a version; the rest are 'other'.")
    ] = 32,
    sample_log: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--sample-log", help="Keep logits and labels here, to refit on; default: keep none."),
    ] = None,
    sample_rate: Annotated[
        float,
        typer.Option("--sample-rate", parser=share, metavar="SHARE", help="Share of predictions to keep."),
    ] = 0.1,
    sample_days: Annotated[
        float,
        typer.Option("--sample-days", parser=positive, metavar="NUMBER", help="For how long to keep them."),
    ] = 30,
    step: Annotated[
        float,
        typer.Option(
            "--step", parser=positive, metavar="NUMBER", help="Seconds between points of the page's curve."
        ),
    ] = 300,
    max_megabytes: Annotated[
        float, typer.Option("--max-megabytes", parser=positive, metavar="NUMBER", help="Largest batch.")
    ] = 4,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", min=1, help="Batches in line before 429.")
    ] = 32,
) -> None:
    """Watch model versions beside any server: POST /v1/predictions and /v1/labels, GET /metrics and /.

    Stops cleanly on Ctrl-C or SIGTERM; what was acknowledged is in the ledger.
    """
    import uvicorn

    from calib_serve.receipts import DAY, Keyring
    from calib_serve.watch.drift import Detector
    from calib_serve.watch.http import create_app
    from calib_serve.watch.ledger import open_ledger
    from calib_serve.watch.samples import SampleLog
    from calib_serve.watch.service import Watch

    tokens = () if token_file is None else read_tokens(token_file)
    if host not in _LOOPBACK and not tokens:
        raise InputError(f"{host} can be reached by others; give --token-file, or listen on 127.0.0.1")
    Detector(
        arl=arl, tolerance=tolerance, block=block
    )  # options that cannot be are said now, not at the first label
    log = None if sample_log is None else SampleLog(sample_log, rate=sample_rate, days=sample_days).start()
    book = open_ledger(ledger, writer=writer)
    try:
        watch = Watch(
            Keyring.load(keyring),
            book,
            models=dict(parse_model(text) for text in models),
            detector=lambda: Detector(arl=arl, tolerance=tolerance, bins=book.bins, block=block),
            ttl=ttl_days * DAY,
            max_segments=max_segments,
            history_step=step,
            log=log,
        )
        app = create_app(
            watch,
            tokens=tokens,
            hosts=("*",) if tokens else _LOOPBACK,
            max_bytes=int(max_megabytes * 2**20),
            max_waiting=max_waiting,
        )
        typer.echo(f"watching {', '.join(models)} on http://{host}:{port}")
        # uvicorn answers what is in hand, then sends itself the signal again: let it end here.
        signal.signal(signal.SIGTERM, _leave)
        uvicorn.run(
            app,
            host=host,
            port=port,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
    except KeyboardInterrupt:
        typer.echo("stopped")
    finally:
        book.close()
        if log is not None:
            log.close()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def parse_model(text: str) -> tuple[tuple[str, str], Watched]:
    """``name:version=artifact folder`` or ``name:version=number of classes``."""
    from calib_serve.artifact import Artifact
    from calib_serve.watch.intake import Classes
    from calib_serve.watch.service import Watched

    name, _, what = text.partition("=")
    model, _, version = name.rpartition(":")
    if not (model and version and what):
        raise InputError(f"a model is NAME:VERSION=ARTIFACT or NAME:VERSION=CLASSES, got {text!r}")
    if what.isdecimal():
        return (model, version), Watched(Classes(int(what)))
    artifact = Artifact.load(what)
    classes = Classes(artifact.classes, artifact.class_names)
    return (model, version), Watched(classes, artifact.reference)


def read_tokens(path: Path) -> list[str]:
    """The tokens in a file, one a line; InputError if others may read it or a token is short."""
    try:
        mode, text = path.stat().st_mode, path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the tokens {path}: {error}") from error
    if mode & 0o077 and os.name == "posix":
        raise InputError(f"{path} has mode {mode & 0o777:o}; run: chmod 600 {path}")
    tokens = [line.strip() for line in text.splitlines() if line.strip()]
    if not tokens or min(map(len, tokens)) < 16:
        raise InputError(f"{path} must hold tokens of at least 16 characters, one a line")
    return tokens
