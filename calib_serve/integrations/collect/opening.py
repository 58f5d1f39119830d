"""Addresses of label sources: a topic of Kafka, a folder, or a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from calib_serve.core.addresses import holds_password, redacted
from calib_serve.core.errors import InputError
from calib_serve.core.files import read_private
from calib_serve.core.options.base import changed, check_default
from calib_serve.core.options.label import CollectOptions
from calib_serve.integrations.collect.reading import LabelFields
from calib_serve.integrations.collect.source import DeadLetters, FolderDeadLetters, Source

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import CollectKeywords

_KAFKA = "kafka://"
_SHAPE = "kafka://HOST:PORT[,HOST:PORT]/TOPIC?group=GROUP"


class _Topic(NamedTuple):
    servers: str
    name: str
    group: str


def open_source(
    address: str,
    options: CollectOptions | None = None,
    *,
    kafka: Mapping[str, str] | None = None,
    skip: str = "",
    **keywords: Unpack[CollectKeywords],
) -> Source:
    """Open a source of labels.

    Args:
        address: ``kafka://host:9092/topic?group=calib``, a folder, or ``s3://bucket/labels``.
        options: A ``CollectOptions``; keywords replace its fields.
        kafka: More settings of librdkafka.
        skip: An address below the folder, which is left out.
        **keywords: Fields of ``CollectOptions``: ``batch``, ``by``, ``every``, ``id_column``,
            ``label_column``, ``receipt_column``, ``replaces``, ``settle``, ``state``, ``wait``.

    Raises:
        InputError: For an address or options that cannot be right.
    """
    options = changed(options or CollectOptions(), keywords, open_source)
    columns = LabelFields.of(options)
    _check(address)
    if address.startswith(_KAFKA):
        from calib_serve.integrations.collect.kafka import KafkaSource  # noqa: PLC0415  an optional extra

        topic = _topic(address)
        if not topic.group:
            raise InputError(f"name the consumer group: {_SHAPE}, got {redacted(address)}")
        check_default(
            options, ("state", "settle", "every"), "is for files; Kafka knows what was read of a topic"
        )
        return KafkaSource(topic.servers, topic.name, group=topic.group, config=kafka, columns=columns)
    from calib_serve.integrations.collect.files import FileSource, SettledFiles  # noqa: PLC0415  an optional extra

    kept = SettledFiles(options.state)
    try:
        return FileSource(
            address, kept, settle=options.settle, every=options.every, skip=skip, columns=columns
        )
    except InputError:
        kept.close()
        raise


def open_dead_letters(address: str, *, kafka: Mapping[str, str] | None = None) -> DeadLetters:
    """Open the place of dead letters.

    Args:
        address: ``kafka://host:9092/topic``, a folder or a bucket.
        kafka: Settings of the Kafka client; None: its defaults.
    """
    _check(address)
    if address.startswith(_KAFKA):
        from calib_serve.integrations.collect.kafka import KafkaDeadLetters  # noqa: PLC0415  an optional extra

        topic = _topic(address)
        return KafkaDeadLetters(topic.servers, topic.name, config=kafka)
    return FolderDeadLetters(address)


def kafka_settings(path: str | Path) -> dict[str, str]:
    """Read settings of librdkafka, ``name=value`` a line, from a file that only its owner may read.

    InputError where it cannot be read, or others may read it.
    """
    try:
        lines = read_private(Path(path)).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the settings {path}: {error}") from None
    found = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if line.strip() and not line.lstrip().startswith("#"):
            if not (equals and name.strip()):
                raise InputError(f"line {number} of {path} is not NAME=VALUE")
            found[name.strip()] = value.strip()
    return found


def _check(address: str) -> None:
    if not address:
        raise InputError(f"an address is {_SHAPE}, a folder, or a bucket such as s3://bucket/labels")
    if holds_password(address):
        raise InputError(
            "the address holds a password, which others could read: leave it out; of Kafka it belongs into "
            "the file of --kafka-config, of a bucket into the environment, as its client has it"
        )


def _topic(address: str) -> _Topic:
    """Split a topic's address into its parts.

    >>> _topic("kafka://one:9092,two:9092/labels?group=calib")
    _Topic(servers='one:9092,two:9092', name='labels', group='calib')
    """
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = parts.path.strip("/")
    if not parts.netloc or not name or "/" in name or "@" in parts.netloc or set(options) - {"group"}:
        raise InputError(f"a topic is {_SHAPE}, got {redacted(address)}")
    return _Topic(parts.netloc, name, options.get("group", ""))
