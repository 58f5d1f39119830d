"""``calib-serve collect``: labels from a topic, a folder or a bucket to the watch, until it is stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from calib_serve.cli.parse import positive
from calib_serve.errors import InputError

__all__ = ["run"]

_GRACE = 3.0  # seconds for which an answer of the watch is waited for after a signal to stop


def run(
    source: Annotated[
        str,
        typer.Argument(
            help="kafka://HOST:PORT/TOPIC?group=GROUP, a folder, or a bucket such as s3://bucket/labels."
        ),
    ],
    *,
    dead_letter: Annotated[
        str,
        typer.Option(
            "--dead-letter", help="Where goes what cannot be counted: kafka://HOST:PORT/TOPIC, or a folder."
        ),
    ],
    url: Annotated[
        str, typer.Option("--url", help="Where labels are taken.")
    ] = "http://127.0.0.1:9300/v1/labels",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", help="File with the token, read for each batch; or set CALIB_SERVE_TOKEN."
        ),
    ] = None,
    wait: Annotated[
        str,
        typer.Option(
            "--wait", help="For how long a label waits for its prediction to be known: 90s, 10m, 6h."
        ),
    ] = "10m",
    batch: Annotated[int, typer.Option("--batch", min=1, max=10_000, help="Labels a request.")] = 1000,
    once: Annotated[
        bool, typer.Option("--once", help="End when all files that are there are settled.")
    ] = False,
    state: Annotated[Path, typer.Option("--state", help="File that says which files were read.")] = Path(
        "collect.db"
    ),
    settle: Annotated[
        float, typer.Option("--settle", min=0, help="Seconds for which a file must not have changed.")
    ] = 5,
    every: Annotated[
        float,
        typer.Option("--every", parser=positive, metavar="NUMBER", help="Seconds between looks for files."),
    ] = 5,
    kafka_config: Annotated[
        Path | None,
        typer.Option("--kafka-config", help="File of NAME=VALUE lines for Kafka's client, such as for TLS."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option("--metrics-port", min=1, max=65_535, help="Serve /metrics here.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address to serve them on.")
    ] = "127.0.0.1",
) -> None:
    """Send labels to the watch as they come, each counted once, through restarts of anything.

    What cannot be counted goes to --dead-letter with the reason. Stops cleanly on Ctrl-C or SIGTERM.
    """
    from calib_serve.collect import Collector, open_dead_letters, open_source
    from calib_serve.collect.opening import kafka_settings
    from calib_serve.watch.maturity import parse_maturity
    from calib_serve.watch.sender import read_token

    def token() -> str:
        return os.environ.get("CALIB_SERVE_TOKEN", "") if token_file is None else read_token(token_file)

    seconds = parse_maturity(wait)
    if seconds is None:
        raise InputError("--wait is a time such as 90s, 10m or 6h")
    if once and source.startswith("kafka://"):
        raise InputError("--once is for files: a topic has no end")
    token()  # before anything is opened
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    kafka = None if kafka_config is None else kafka_settings(kafka_config)
    with contextlib.ExitStack() as running:
        dead = open_dead_letters(dead_letter, kafka=kafka)
        running.callback(dead.close)
        labels = open_source(
            source, kafka=kafka, state=state, settle=settle, every=every, skip=_below(dead_letter, source)
        )
        running.callback(labels.close)
        collector = Collector(labels, url, dead, token=token, wait=seconds, batch=batch)
        if metrics_port is not None:
            from calib_serve.collect.exporter import serve_metrics

            serve_metrics(collector.totals, labels, host=metrics_host, port=metrics_port)
        running.enter_context(_stopped_by_signals(collector))
        typer.echo(f"collecting labels from {source}", err=True)
        totals = collector.run(once=once)
    typer.echo(str(totals))


def _below(dead_letter: str, source: str) -> str:
    """Dead letters of files, which may lie among them, and are not read again."""
    return "" if "kafka://" in (dead_letter[:8], source[:8]) else dead_letter


@contextlib.contextmanager
def _stopped_by_signals(collector: Any) -> Any:
    """Inside, SIGINT and SIGTERM end the collector: at once, or soon where the watch has yet to answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        collector.stop()
        signal.setitimer(signal.ITIMER_REAL, _GRACE, _GRACE)

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGALRM: lambda *_: collector.interrupt()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
