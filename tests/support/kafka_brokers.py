"""A real Kafka protocol without a Kafka: the brokers that librdkafka brings to test clients."""

import json
import os
import time
from contextlib import contextmanager

import pytest

if os.environ.get("CI") == "true":  # which must not skip
    import confluent_kafka
else:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="pip install confluent-kafka")

QUICK = {"session.timeout.ms": "3000", "heartbeat.interval.ms": "300"}
"""A group that notices soon who died."""


class Brokers:
    """Brokers of this process, which other processes may use."""

    def __init__(self):
        self._producer = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": 3})
        found = self._producer.list_topics(timeout=30).brokers.values()
        self.servers = ",".join(f"{one.host}:{one.port}" for one in found)

    def put(self, topic, values, *, key=str):
        """Messages: bytes as they are, anything else as JSON."""
        for i, value in enumerate(values):
            content = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
            self._producer.produce(topic, content, key=key(i))
            self._producer.poll(0)
        assert self._producer.flush(60) == 0

    def address(self, topic, group="calib"):
        return f"kafka://{self.servers}/{topic}" + (f"?group={group}" if group else "")

    def committed(self, topic, group="calib", *, partitions=4):
        """The sum of the group's offsets."""
        with reading(self.servers, group) as consumer:
            places = [confluent_kafka.TopicPartition(topic, p) for p in range(partitions)]
            return sum(max(one.offset, 0) for one in consumer.committed(places, timeout=30))

    def read(self, topic, count, *, seconds=60):
        """The first ``count`` messages of a topic, as JSON."""
        found, until = [], time.monotonic() + seconds
        with reading(self.servers, f"reader of {topic} {time.monotonic()}") as consumer:
            consumer.assign(
                [confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in range(4)]
            )
            while len(found) < count:
                assert time.monotonic() < until, f"{len(found)} of {count} messages in {topic}"
                for message in consumer.consume(100, 0.5):
                    if not message.error():
                        found.append(json.loads(message.value()))
        return found


@contextmanager
def reading(servers, group):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 3})
    try:
        yield consumer
    finally:
        consumer.close()
