"""``calib-serve label``: send the labels of a file, or those of a topic as they come."""

import contextlib
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from calib_serve.app._command import Flat, Json, OfOutput, command, named_columns, panel
from calib_serve.app._progress import stages
from calib_serve.app._show import note, print_json, said
from calib_serve.core.options.base import check, check_default, fields_of
from calib_serve.core.options.label import CollectOptions, LabelOptions, SentLabels

if TYPE_CHECKING:
    from calib_serve.integrations.collect import Sent

app = command(
    "label",
    "calib-serve label labels.csv --url http://127.0.0.1:9300/v1/labels\n"
    "calib-serve label 'kafka://host:9092/labels?group=calib' --dead-letter kafka://host:9092/dead",
    details="SOURCE is a CSV, Parquet or JSON lines file with the columns receipt or id, label[, model, by, "
    "segment]: what was counted before is refused as a duplicate, so a run that broke off is repeated. "
    "Or it is a topic, kafka://HOST:PORT/TOPIC?group=GROUP, whose labels are sent as they come, each counted "
    "once through restarts of anything, until Ctrl-C or SIGTERM. Exit code 1 where a label was refused, or "
    "is a dead letter, and a person must look at it.",
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
class _OfTopic:
    """Options of a topic."""

    dead_letter: str | None = None
    """Where what cannot be counted goes: kafka://HOST:PORT/TOPIC."""
    wait: str = CollectOptions.wait
    """For how long a label waits for its prediction to be known: 90s, 10m or 6h."""
    kafka_config: Path | None = None
    """A file of NAME=VALUE lines for Kafka's client, such as for TLS."""


@app.default
def _label(
    source: str,
    *,
    options: Annotated[_Options, Flat] = _Options(),
    of_topic: Annotated[_OfTopic, panel("Of a topic")] = _OfTopic(),
    output: Annotated[Json, OfOutput] = Json(),
) -> int:
    """Send labels."""
    from calib_serve.core.names import parse_duration

    columns = named_columns(options.column, ("id", "receipt", "label"))
    renamed: dict[str, Any] = {f"{name}_column": column for name, column in columns.items()}
    options = replace(options, column=[], **renamed)
    if source.startswith("kafka://"):
        check_default(options, ["refused"], "is for a file of labels; those of a topic are dead letters")
        check(of_topic.dead_letter is not None, "dead_letter", "must say where what cannot be counted goes")
        parse_duration(of_topic.wait, what="--wait")
        return _collect(source, options, of_topic, as_json=output.json)
    names = [one.name for one in fields(of_topic)]
    check_default(of_topic, names, f"is for a topic, kafka://..., and {source} is none")
    return _send(source, options, as_json=output.json)


def _token(options: _Options) -> str:
    from calib_serve.receipts import read_token

    # Read anew for each batch: a token is exchanged while the collector runs.
    if options.token_file is None:
        return os.environ.get("CALIB_SERVE_TOKEN", "")
    return read_token(options.token_file)


def _send(source: str, options: _Options, *, as_json: bool) -> int:
    from calib_serve.integrations.collect import send_label_file

    with stages("labels", quiet=as_json) as show:
        sent = send_label_file(
            source,
            options,
            token=_token(options),
            progress=lambda done, total: show("labels", done, total),
        )
    note(sent.named(options.refused))
    return _told(sent, as_json=as_json)


def _collect(source: str, options: _Options, of_topic: _OfTopic, *, as_json: bool) -> int:
    from calib_serve.integrations.collect.kafka import Collector, kafka_settings

    _token(options)  # before anything is opened
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    kafka = None if of_topic.kafka_config is None else kafka_settings(of_topic.kafka_config)
    collecting = CollectOptions(**fields_of(SentLabels, options), wait=of_topic.wait)
    dead_letter = str(of_topic.dead_letter)
    collector = Collector(source, dead_letter, collecting, token=lambda: _token(options), kafka=kafka)
    with contextlib.closing(collector):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: collector.stop())
        note([f"collecting labels from {source}"])
        return _told(collector.run(), as_json=as_json)


def _told(sent: "Sent", *, as_json: bool) -> int:
    if as_json:
        print_json({"accepted": sent.accepted, "held": sent.held, "refused": dict(sent.refused)})
    else:
        said(str(sent))
    return 1 if sent.wrong else 0
