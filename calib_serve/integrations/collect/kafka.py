"""Labels from a topic of Kafka: each is sent until it is settled, so that none is lost and each counts once.

A label that is refused for something that may pass, such as an id that is not known yet, is held back and
tried again. An offset is committed when all labels before it are settled: counted, refused for good, or dead
letters in a topic of their own. Whatever ends a process, or moves a partition, before leads to labels that
are sent again, which the watch counts once.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from calib_serve.core.addresses import holds_password, redacted
from calib_serve.core.errors import InputError, MissingDependency, ServerError, Unanswered
from calib_serve.core.files import read_private
from calib_serve.core.names import parse_duration
from calib_serve.core.options.base import changed
from calib_serve.core.options.label import CollectOptions
from calib_serve.integrations.collect.reading import DeadLetter, read_label_message
from calib_serve.integrations.collect.sending import BATCH, SETTLED, Sent, of_batch, post_in_parts
from calib_serve.receipts import in_batches, post_batch, row_size

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
except ImportError as error:
    raise MissingDependency("confluent-kafka", "kafka") from error

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from calib_serve.core.options.keywords import CollectKeywords

log = logging.getLogger(__name__)

FOR_GOOD = SETTLED | {"expired", "forgotten"}
"""Why a label is refused where nothing is left to do: a topic may hold years of them."""

LATER = frozenset({"unknown_id", "unknown_key", "unknown_version", "dated_ahead"})
"""Why a label is refused that may be counted later: its prediction, a key, a version or the time comes."""

_FIRST, _LONGEST, _IDLE = 1.0, 60.0, 1.0  # seconds until a next try, and to wait for more
_SHAPE = "kafka://HOST:PORT[,HOST:PORT]/TOPIC"


class Partition:
    """The offsets of a partition up to which all labels are settled, and committed.

    ``next``: every offset before it is settled. ``given_up``: it belongs to somebody else by now; what is
    still at hand of it is dropped.

    Args:
        start: First offset.

    >>> one = Partition(0)
    >>> one.begin(0, labels=1); one.begin(1, labels=2); one.settle(1); one.settle(1)
    >>> one.next
    0
    >>> one.settle(0)
    >>> one.next
    2
    """

    def __init__(self, start: int) -> None:
        self.next, self.committed, self.given_up = start, start, False
        self._left: dict[int, int] = {}  # in the order of offsets

    def begin(self, offset: int, *, labels: int) -> None:
        """Note that a message has come; offsets rise.

        Args:
            offset: Its offset, above that of the message before.
            labels: Number of labels to settle.
        """
        self._left[offset] = labels
        self._advance()

    def settle(self, offset: int) -> None:
        """Settle one more label of the message at ``offset``."""
        if not self.given_up:
            self._left[offset] -= 1
            self._advance()

    def _advance(self) -> None:
        while self._left:
            offset = next(iter(self._left))
            if self._left[offset]:
                return
            del self._left[offset]
            self.next = offset + 1


class _Item(NamedTuple):
    row: dict[str, Any]
    where: str
    partition: Partition
    offset: int
    since: float | None = None  # when it was first refused
    pause: float = _FIRST


class _Stopped(Exception):
    pass


class Collector:
    """Sends labels of a topic to a watch, and those that cannot be counted to a topic of dead letters.

    It is a member of the consumer group, which begins with the oldest message where it is new. ``sent``: the
    outcomes so far.

    Args:
        address: Address of the topic, ``kafka://HOST:PORT[,HOST:PORT]/TOPIC?group=GROUP``.
        dead_letter: Address of the topic of dead letters, without a group.
        options: A ``CollectOptions``; keywords replace its fields.
        token: Gives the bearer token, asked before each batch.
        kafka: More settings of librdkafka, such as for TLS.
        **keywords: Fields of ``CollectOptions``: ``by``, ``id_column``, ``label_column``,
            ``receipt_column``, ``replaces``, ``url``, ``wait``.

    Raises:
        InputError: For an address, options or settings that cannot be right.
    """

    def __init__(
        self,
        address: str,
        dead_letter: str,
        options: CollectOptions | None = None,
        *,
        token: Callable[[], str] = str,
        kafka: Mapping[str, str] | None = None,
        **keywords: Unpack[CollectKeywords],
    ) -> None:
        self._options = options = changed(options or CollectOptions(), keywords, Collector)
        wait = options.wait
        self._wait = parse_duration(wait, what="wait") if isinstance(wait, str) else float(wait)
        self.sent, self._token, self._stop = Sent(), token, threading.Event()
        self._held: list[tuple[float, int, _Item]] = []
        self._numbers, self._told = itertools.count(), (time.monotonic(), "")
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._waiting: list[Any] = []
        self._paused = False
        dead = _topic(dead_letter, group=False)
        self._dead = dead.name
        asked = {"acks": "all", **(kafka or {}), "bootstrap.servers": dead.servers}
        self._producer = _client(Producer, asked)
        topic = _topic(address, group=True)
        own: dict[str, Any] = {
            "bootstrap.servers": topic.servers,
            "group.id": topic.group,
            # Offsets are committed here, once labels are settled.
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        self._consumer = _client(Consumer, {"auto.offset.reset": "earliest", **(kafka or {}), **own})
        self._consumer.subscribe([topic.name], on_revoke=self._revoked, on_lost=self._lost)

    def run(self) -> Sent:
        """Collect until ``stop``; ServerError where what answers is no watch, or Kafka ends for good."""
        try:
            while not self._stop.is_set():
                self._round()
        except _Stopped:
            pass
        self._tell(at_once=True)
        return self.sent

    def stop(self) -> None:
        """Stop soon: labels sent but not answered are sent again by the next start."""
        self._stop.set()

    def close(self) -> None:
        """Commit the settled offsets, and leave the group."""
        self._commit(self._partitions)
        self._consumer.close()

    # --- labels ---

    def _round(self) -> None:
        items = self._due()
        if len(self._held) < 100_000:  # labels held back, beyond which nothing more is taken
            items += self._taken(0.0 if items else self._idle())
        elif not items:
            self._alive()
            self._stop.wait(self._idle())
        for batch in in_batches(items, lambda one: row_size(one.row), most=BATCH):
            self._settle(batch)
        self._commit(self._partitions)
        self._tell()

    def _idle(self) -> float:
        return min(_IDLE, max(self._held[0][0] - time.monotonic(), 0.0)) if self._held else _IDLE

    def _due(self) -> list[_Item]:
        """Take held labels whose time has come."""
        found: list[_Item] = []
        while self._held and self._held[0][0] <= time.monotonic() and len(found) < BATCH:
            found.append(heapq.heappop(self._held)[2])
        self.sent.waiting = len(self._held)
        return found

    def _settle(self, items: Sequence[_Item]) -> None:
        """Send labels, and settle or hold back each; those of partitions that are given up are dropped."""
        items = [one for one in items if not one.partition.given_up]
        if not items:
            return
        buried = []
        outcomes = post_in_parts(self._post, [one.row for one in items])
        for item, outcome in zip(items, outcomes, strict=True):
            if self.sent.note(outcome, FOR_GOOD):
                item.partition.settle(item.offset)
            elif not (outcome["reason"] in LATER and self._hold(item)):
                told = str(outcome.get("message", ""))
                letter = DeadLetter(str(outcome["reason"]), told, item.where, item=item.row)
                buried.append((letter, item.partition, item.offset))
        self._bury(buried)

    def _hold(self, item: _Item) -> bool:
        """Hold a label back, unless its time is over."""
        now = time.monotonic()
        since = now if item.since is None else item.since
        if now - since >= self._wait:
            return False
        due = min(now + item.pause, since + self._wait)
        again = item._replace(since=since, pause=min(2 * item.pause, _LONGEST))
        heapq.heappush(self._held, (due, next(self._numbers), again))
        self.sent.waiting = len(self._held)
        return True

    def _post(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Post rows until the watch answers; return the outcome of each."""
        body, pause = of_batch(rows, self._options), _FIRST
        # Tried for ever: labels are to be delivered, and there is nothing else to do with them. An answer is
        # not waited for longer than whoever stops this waits.
        how: dict[str, Any] = {"tries": 10**9, "seconds": 10.0, "sleep": self._pause, "failed": _failed}
        while True:
            try:
                return post_batch(self._options.url, body, token=self._token(), **how).items
            except Unanswered as error:  # a token that is not known, or no more
                _failed(str(error))
                self._pause(pause)
                pause = min(2 * pause, _LONGEST)

    def _bury(self, letters: Sequence[tuple[DeadLetter, Partition, int]]) -> None:
        """Store dead letters, however long that takes: they settle their messages."""
        pause = _FIRST
        while letters and (why := self._produced([letter for letter, *_ in letters])):
            _failed(f"dead letters cannot be sent to the topic {self._dead}: {why}")
            self._pause(pause)
            pause = min(2 * pause, _LONGEST)
        # After they are kept: a dead letter that is lost would be a label that is lost.
        for letter, partition, offset in letters:
            self.sent.bury(letter)
            partition.settle(offset)

    def _produced(self, letters: Sequence[DeadLetter]) -> str:
        """Send dead letters, and wait until the brokers have them; why they do not, or nothing."""
        arrived: list[str] = []
        wrong: list[str] = []

        def told(error: Any, _: Any) -> None:
            (arrived if error is None else wrong).append(str(error))

        try:
            for one in letters:
                self._producer.produce(self._dead, one.json(), on_delivery=told)
                self._producer.poll(0)
        except (KafkaException, BufferError) as error:
            wrong.append(str(error))
        self._producer.flush(10.0)
        if len(arrived) == len(letters):
            return ""
        self._producer.purge()
        self._producer.poll(0)
        return wrong[0] if wrong else "no answer"

    def _pause(self, seconds: float) -> None:
        """Wait, and keep this process alive to the group."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._alive()
            if self._stop.wait(min(left, _IDLE)):
                raise _Stopped

    def _tell(self, *, at_once: bool = False) -> None:
        at, before = self._told
        if (at_once or time.monotonic() - at > 60.0) and (told := str(self.sent)) != before:
            log.info("%s", told)
            self._told = (time.monotonic(), told)

    # --- messages and partitions ---

    def _taken(self, seconds: float) -> list[_Item]:
        """Take the next messages: their labels, after their dead letters are kept."""
        came, self._waiting = self._waiting, []
        if not came:
            if self._paused:
                self._set_paused(False)
            came = self._consumer.consume(500, timeout=seconds)
        items, buried = list[_Item](), []
        for message in came:
            if not _is_sound(message):
                continue
            topic, number, offset = message.topic(), message.partition(), message.offset()
            partition = self._partitions.setdefault((topic, number), Partition(offset))
            row = read_label_message(message.value(), f"{topic}/{number}@{offset}", self._options)
            partition.begin(offset, labels=len(row.labels) + len(row.dead))
            items += [_Item(one, row.where, partition, offset) for one in row.labels]
            buried += [(one, partition, offset) for one in row.dead]
        self._bury(buried)
        return items

    def _alive(self) -> None:
        """Send the group's heartbeat; partitions may come and go."""
        self._set_paused(True)
        # Paused, polling keeps the membership and brings no message, but for one that is on its way.
        message = self._consumer.poll(0)
        if message is not None:
            self._waiting.append(message)

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        try:
            held = self._consumer.assignment()
            (self._consumer.pause if paused else self._consumer.resume)(held)
        except KafkaException as error:  # a partition that goes at this moment
            log.debug("%s", error)

    def _commit(self, places: Iterable[tuple[str, int]]) -> None:
        """Commit the offset before which all labels are settled, of each partition where it moved."""
        moved = {
            place: one.next
            for place in places
            if (one := self._partitions.get(place)) is not None and one.next > one.committed
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
            log.warning("Kafka did not take the offsets: %s", error)
            return
        for place, offset in moved.items():
            self._partitions[place].committed = offset

    def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        self._commit([(one.topic, one.partition) for one in partitions])
        self._lost(_, partitions)

    def _lost(self, _: Any, partitions: Sequence[Any]) -> None:
        gone = {(one.topic, one.partition) for one in partitions}
        for place in gone:
            if (partition := self._partitions.pop(place, None)) is not None:
                partition.given_up = True
        self._waiting = [one for one in self._waiting if (one.topic(), one.partition()) not in gone]


def _failed(why: str) -> None:
    log.warning("%s; it is tried again", why)


def _is_sound(message: Any) -> bool:
    problem = message.error()
    if problem is None:
        return True
    if problem.fatal():
        raise ServerError(f"Kafka does not let this consumer go on: {problem}")
    if problem.code() != KafkaError._PARTITION_EOF:
        log.warning("Kafka: %s", problem)
    return False


def _client(kind: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    try:
        return kind(config, logger=log)
    except (KafkaException, TypeError, ValueError) as error:
        raise InputError(f"the configuration of Kafka cannot be: {error}") from error


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


class _Topic(NamedTuple):
    servers: str
    name: str
    group: str


def _topic(address: str, *, group: bool) -> _Topic:
    """Split a topic's address into its parts; InputError for one that cannot be.

    >>> _topic("kafka://one:9092,two:9092/labels?group=calib", group=True)
    _Topic(servers='one:9092,two:9092', name='labels', group='calib')
    """
    if holds_password(address):
        raise InputError(
            "the address holds a password, which others could read: that belongs into --kafka-config"
        )
    parts = urlsplit(address)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    name, wanted = parts.path.strip("/"), {"group"} if group else set[str]()
    sound = parts.scheme == "kafka" and parts.netloc and name and "/" not in name and "@" not in parts.netloc
    if not sound or set(given) != wanted or not all(given.values()):
        shape = f"{_SHAPE}?group=GROUP, with a consumer group," if group else _SHAPE
        raise InputError(f"a topic is {shape}, got {redacted(address)}")
    return _Topic(parts.netloc, name, given.get("group", ""))
