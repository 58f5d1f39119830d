"""``calib-serve label``: send the labels of a file, or those of a folder, bucket or topic as they come."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calib_serve.app._command import Flat, Json, OfOutput, command, named_columns, panel
from calib_serve.app._progress import stages
from calib_serve.app._show import note, print_json
from calib_serve.core.errors import InputError
from calib_serve.core.options.base import check, check_default, fields_of
from calib_serve.core.options.label import (
    CollectOptions,
    FollowOptions,
    LabelColumns,
    LabelOptions,
    SendLimits,
)

if TYPE_CHECKING:
    from calib_serve.integrations.collect.collector import Collector
    from calib_serve.integrations.collect.source import Source

app = command(
    "label",
    "calib-serve label labels.csv --url http://127.0.0.1:9300/v1/labels\n"
    "calib-serve label labels/ --dead-letter dead --once\n"
    "calib-serve label 'kafka://host:9092/labels?group=calib' --dead-letter kafka://host:9092/dead",
    details="SOURCE is a CSV, Parquet or JSON lines file with the columns receipt or id, label[, model, by, "
    "segment]: what was counted before is refused as a duplicate, so a run that broke off is repeated. "
    "Or it is a folder, a bucket such as s3://bucket/labels, or a topic kafka://HOST:PORT/TOPIC?group=GROUP, "
    "whose labels are sent as they come, each counted once through restarts of anything, until Ctrl-C or "
    "SIGTERM. Exit code 1 where a label was refused, or is a dead letter, and a person must look at it.",
)


@dataclass(frozen=True, kw_only=True)
class _Options(LabelOptions):
    """Options of ``calib-serve label``."""

    column: list[str] = field(default_factory=list)
    """What a column, or field, is called where it is not by its own name, NAME=COLUMN: id=order_id; of id,
    receipt and label."""
    token_file: Path | None = None
    """A file with the token, read for each batch; or set CALIB_SERVE_TOKEN."""


@dataclass(frozen=True, kw_only=True)
class _Followed(FollowOptions):
    """Options of a source that is followed."""

    dead_letter: str | None = None
    """Where what cannot be counted goes: kafka://HOST:PORT/TOPIC, a folder or a bucket."""
    once: bool = False
    """End when all files that are there are settled."""
    kafka_config: Path | None = None
    """A file of NAME=VALUE lines for Kafka's client, such as for TLS."""
    metrics_port: int | None = None
    """Serve /metrics of this program here."""
    metrics_host: str = "127.0.0.1"
    """The address to serve them on."""

    def _check(self) -> None:
        port = self.metrics_port
        check(port is None or 0 < port <= 65_535, "metrics_port", f"must be 1 to 65535, got {port}")
        if port is None:
            check_default(self, ["metrics_host"], "is of metrics_port, which is not given")


@app.default
def _label(
    source: str,
    *,
    options: Annotated[_Options, Flat] = _Options(),
    followed: Annotated[_Followed, panel("Of a folder, bucket or topic")] = _Followed(),
    output: Annotated[Json, OfOutput] = Json(),
) -> int:
    """Send labels."""
    from calib_serve.core.names import parse_duration

    columns = named_columns(options.column, ("id", "receipt", "label"))
    renamed: dict[str, Any] = {f"{name}_column": column for name, column in columns.items()}
    options = replace(options, column=[], **renamed)
    if "://" in source or Path(source).is_dir():
        check_default(options, ["refused"], "is for a file of labels; dead letters are these of others")
        check(followed.dead_letter is not None, "dead_letter", "must say where what cannot be counted goes")
        if not any(str(one).startswith("kafka://") for one in (source, followed.dead_letter)):
            check_default(
                followed, ["kafka_config"], "is for Kafka, and neither labels nor dead letters are there"
            )
        shared = {**fields_of(LabelColumns, options), **fields_of(SendLimits, options)}
        collecting = CollectOptions(**shared, **fields_of(FollowOptions, followed))
        wait = parse_duration(str(followed.wait), what="--wait")
        return _collect(source, options, followed, replace(collecting, wait=wait), as_json=output.json)
    names = [one.name for one in fields(followed)]
    check_default(followed, names, f"is for a folder, a bucket or a topic, and {source} is none")
    return _send(source, options, as_json=output.json)


def _token(options: _Options) -> str:
    from calib_serve.receipts import read_token

    # Read anew for each batch: a token is exchanged while the collector runs.
    if options.token_file is None:
        return os.environ.get("CALIB_SERVE_TOKEN", "")
    return read_token(options.token_file)


def _send(source: str, options: _Options, *, as_json: bool) -> int:
    from calib_serve.integrations.collect.sending import send_label_file

    with stages("labels", quiet=as_json) as show:
        sent = send_label_file(
            source,
            options,
            token=_token(options),
            progress=lambda done, total: show("labels", done, total),
        )
    note(sent.named(options.refused))
    if as_json:
        print_json({"accepted": sent.accepted, "held": sent.held, "refused": dict(sent.refused)})
    else:
        sys.stdout.write(f"{sent}\n")
    return 1 if sent.wrong else 0


def _collect(
    source: str, options: _Options, followed: _Followed, collecting: CollectOptions, *, as_json: bool
) -> int:
    from calib_serve.integrations.collect.collector import Collector
    from calib_serve.integrations.collect.opening import kafka_settings, open_dead_letters, open_source

    if followed.once and source.startswith("kafka://"):
        raise InputError("--once is for files: a topic has no end")
    _token(options)  # before anything is opened
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    kafka = None if followed.kafka_config is None else kafka_settings(followed.kafka_config)
    dead_letter = str(followed.dead_letter)
    with contextlib.ExitStack() as running:
        dead = open_dead_letters(dead_letter, kafka=kafka)
        running.callback(dead.close)
        labels = open_source(source, collecting, kafka=kafka, skip=_below(dead_letter, source))
        running.callback(labels.close)
        collector = Collector(labels, options.url, dead, collecting, token=lambda: _token(options))
        _publish(collector, labels, followed)
        running.enter_context(_stopped_by_signals(collector))
        note([f"collecting labels from {source}"])
        totals = collector.run(once=followed.once)
    if as_json:
        taken = {name: totals.labels[name] for name in ("accepted", "held")}
        refused = {why: n for why, n in totals.labels.items() if why not in taken}
        print_json({**taken, "refused": refused, "dead": dict(totals.dead)})
    else:
        sys.stdout.write(f"{totals}\n")
    return 1 if totals.dead else 0


def _publish(collector: "Collector", labels: "Source", followed: _Followed) -> None:
    if followed.metrics_port is None:
        return
    from calib_serve.integrations.collect.exporter import serve_metrics

    serve_metrics(collector.totals, labels, host=followed.metrics_host, port=followed.metrics_port)


def _below(dead_letter: str, source: str) -> str:
    """The place of dead letters among the source's own files, where they are skipped."""
    # A folder of dead letters below the folder of labels would feed itself.
    return "" if "kafka://" in (dead_letter[:8], source[:8]) else dead_letter


@contextlib.contextmanager
def _stopped_by_signals(collector: "Collector") -> Iterator[None]:
    """Let SIGINT and SIGTERM end the collector: at once, or soon where the watch has yet to answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        collector.stop()
        # Again and again: a signal between two requests interrupts neither. An answer is waited for as long.
        signal.setitimer(signal.ITIMER_REAL, 3.0, 3.0)

    handlers = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGALRM: lambda *_: collector.interrupt()}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
