"""Labels from a topic of Kafka, and dead letters into one.

An offset is committed when all labels before it are settled. What a consumer that dies, or loses a partition,
had at hand comes again to whoever has the partition next.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from calib_serve.core.errors import InputError, MissingDependency, ServerError
from calib_serve.integrations.collect.reading import USUAL, LabelFields, read_label_message
from calib_serve.integrations.collect.source import DeadLetter, Piece, Stream

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
except ImportError as error:
    raise MissingDependency("confluent-kafka", "kafka") from error

log = logging.getLogger(__name__)


def _client(kind: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    try:
        return kind(config, logger=log)
    except (KafkaException, TypeError, ValueError) as error:
        raise InputError(f"the configuration of Kafka cannot be: {error}") from error


class KafkaSource:
    """A ``Source`` over the ``topic`` of these brokers, as a member of the consumer group ``group``.

    ``servers``: ``host:port`` with commas between. ``config``: more of librdkafka's, such as for TLS.
    ``columns``: how fields are called. A group that is new begins with the oldest message. InputError for a
    configuration that cannot be.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        group: str,
        config: Mapping[str, str] | None = None,
        columns: LabelFields = USUAL,
    ) -> None:
        own: dict[str, Any] = {
            "bootstrap.servers": servers,
            "group.id": group,
            # Offsets are committed here, once labels are settled.
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        self.failures, self._columns = 0, columns
        self._streams: dict[tuple[str, int], Stream] = {}
        self._committed: dict[Stream, int] = {}
        self._waiting: list[Any] = []
        self._paused, self._lag, self._looked = False, 0, 0.0
        self._consumer = _client(Consumer, {"auto.offset.reset": "earliest", **(config or {}), **own})
        self._consumer.subscribe([topic], on_revoke=self._revoked, on_lost=self._lost)

    def take(self, seconds: float) -> list[Piece]:
        """Take the next messages, and return their labels."""
        came, self._waiting = self._waiting, []
        if not came:
            if self._paused:
                self._pause(False)
            came = self._consumer.consume(500, timeout=seconds)
        return [self._piece(one) for one in came if self._sound(one)]

    def alive(self) -> None:
        """Send the group's heartbeat; partitions may come and go."""
        self._pause(True)
        # Paused, polling keeps the membership and brings no message, but for one that is on its way.
        message = self._consumer.poll(0)
        if message is not None:
            self._waiting.append(message)

    def _pause(self, pause: bool) -> None:
        self._paused = pause
        try:
            held = self._consumer.assignment()
            (self._consumer.pause if pause else self._consumer.resume)(held)
        except KafkaException as error:  # a partition that goes at this moment
            log.debug("%s", error)

    def _sound(self, message: Any) -> bool:
        problem = message.error()
        if problem is None:
            return True
        if problem.fatal():
            raise ServerError(f"Kafka does not let this consumer go on: {problem}")
        if problem.code() != KafkaError._PARTITION_EOF:
            self.failures += 1
            log.warning("Kafka: %s", problem)
        return False

    def _piece(self, message: Any) -> Piece:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        where = f"{topic}/{partition}@{offset}"
        stream = self._streams.get((topic, partition))
        if stream is None:
            stream = self._streams[topic, partition] = Stream(f"{topic}/{partition}", offset)
            self._committed[stream] = offset  # at which it begins
        row = read_label_message(message.value(), where, self._columns)
        return Piece(stream, offset, where, row.labels, row.dead)

    def commit(self) -> None:
        """Commit the offset before which all labels are settled, of each partition where it moved."""
        self._commit(self._streams)
        if time.monotonic() - self._looked > 1.0:
            self._looked, self._lag = time.monotonic(), self._behind()

    def _commit(self, places: Iterable[tuple[str, int]]) -> None:
        moved = {
            place: stream.next
            for place in places
            if (stream := self._streams.get(place)) and stream.next > self._committed[stream]
        }
        if not moved:
            return
        offsets = [TopicPartition(*place, offset) for place, offset in moved.items()]
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
            wrong = next((one.error for one in done if one.error), None)
            if wrong is not None:
                raise KafkaException(wrong)
        except KafkaException as error:  # as while partitions move: it is tried again, or comes again
            self.failures += 1
            log.warning("Kafka did not take the offsets: %s", error)
            return
        self._committed.update((self._streams[place], offset) for place, offset in moved.items())

    def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        self._commit([(one.topic, one.partition) for one in partitions])
        self._lost(_, partitions)

    def _lost(self, _: Any, partitions: Sequence[Any]) -> None:
        gone = {(one.topic, one.partition) for one in partitions}
        for place in gone:
            stream = self._streams.pop(place, None)
            if stream is not None:
                stream.given_up = True
                self._committed.pop(stream, None)
        self._waiting = [one for one in self._waiting if (one.topic(), one.partition()) not in gone]

    def lag(self) -> int:
        """The number of unsettled messages in this consumer's partitions, as of the last second."""
        return self._lag

    def _behind(self) -> int:
        found = 0
        try:
            for one in self._consumer.assignment():
                low, high = self._consumer.get_watermark_offsets(one, cached=True)
                stream = self._streams.get((one.topic, one.partition))
                (at,) = self._consumer.position([one])
                begun = at.offset if at.offset >= 0 else max(low, 0)
                found += max(high - (begun if stream is None else stream.next), 0)
        except KafkaException as error:  # partitions that move
            log.debug("%s", error)
        return found

    def drained(self) -> bool:
        """False: a topic has no end."""
        return False

    def close(self) -> None:
        """Commit the settled offsets, and leave the group."""
        self._commit(self._streams)
        self._consumer.close()


class KafkaDeadLetters:
    """Dead letters as messages of a ``topic``; the arguments are those of ``KafkaSource``."""

    def __init__(self, servers: str, topic: str, *, config: Mapping[str, str] | None = None) -> None:
        self._topic = topic
        self._producer = _client(Producer, {"acks": "all", **(config or {}), "bootstrap.servers": servers})

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Send dead letters, and wait until the brokers have them."""
        arrived: list[str] = []
        wrong: list[str] = []

        def told(error: Any, _: Any) -> None:
            (arrived if error is None else wrong).append(str(error))

        try:
            for one in letters:
                self._producer.produce(self._topic, one.json(), on_delivery=told)
                self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            wrong.append(str(error))
        self._producer.flush(10.0)
        if len(arrived) < len(letters):
            self._producer.purge()
            self._producer.poll(0)
            why = wrong[0] if wrong else "no answer"
            raise ServerError(f"dead letters cannot be sent to the topic {self._topic}: {why}")

    def close(self) -> None:
        """Do nothing: all letters are sent."""
