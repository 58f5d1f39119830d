"""Labels from Kafka: each is counted once, through kills, rebalances, a watch that is down, and poison."""

import os
import random
import signal
import subprocess
import time

import pytest
from collecting import at_work, by_receipt, collecting, command, counted, predict, until
from kafka_brokers import QUICK, Brokers
from sizes import sized

from calib_serve.core.errors import InputError
from calib_serve.integrations.collect.kafka import Collector

pytestmark = pytest.mark.server


@pytest.fixture(scope="session")
def brokers():
    return Brokers()


@pytest.fixture
def topic(request):
    return f"{request.node.name.split('[')[0][-60:]}-{time.monotonic_ns()}"


@pytest.fixture
def options(brokers, topic, tmp_path):
    """Of a group that soon notices who died."""
    path = tmp_path / "kafka.properties"
    path.write_text("# for tests\n" + "".join(f"{name}={value}\n" for name, value in QUICK.items()))
    path.chmod(0o600)
    return ("--dead-letter", brokers.address(f"{topic}.dead", ""), "--kafka-config", path)


def test_messages_are_committed_when_they_are_settled_and_poison_is_set_aside(
    brokers, server, topic, options, tmp_path
):
    before = counted(server)
    labels = by_receipt(server.folder, 100)
    poison = [b"{", None, b"\xff\xfe", [7, labels[99]], {"receipt": labels[0]["receipt"], "label": 99}]
    brokers.put(topic, [labels[:50], *labels[50:99], *poison, labels[0]])
    log = tmp_path / "log"
    with (
        log.open("w") as file,
        collecting(brokers.address(topic), server, *options, log=file) as process,
    ):
        until(lambda: brokers.committed(topic) == 56, what=log.read_text())
        dead = brokers.read(f"{topic}.dead", 5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 1  # there are dead letters
    assert sorted(one["dead"]["reason"] for one in dead) == ["bad_label"] + ["malformed"] * 4
    assert {one["dead"]["where"].partition("/")[0] for one in dead} == {topic}
    assert counted(server) == before + 100
    assert "100 counted; refused: 4 malformed, 1 duplicate, 1 bad_label" in log.read_text()


def test_ten_thousand_labels_are_counted_once_through_kills(brokers, server, topic, options, tmp_path):
    before = counted(server)
    labels = predict(server, 10_000, topic)
    brokers.put(topic, labels)
    run = command(brokers.address(topic), server, *options)
    log = tmp_path / "log"
    random.seed(1)
    with log.open("w") as file:
        for _ in range(sized(ci=2, nightly=6)):
            process = subprocess.Popen(run, stdout=file, stderr=file)
            time.sleep(random.uniform(1.5, 8))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        middle = brokers.committed(topic)
        assert middle <= counted(server) - before + 0.5  # nothing is committed that was not counted
        brokers.put(topic, by_receipt(server.folder, 100))
        server.stop(signal.SIGKILL)  # a watch that is down is waited for
        with collecting(brokers.address(topic), server, *options, log=file) as process:
            until(lambda: "is tried again" in log.read_text())
            server.start()
            until(lambda: brokers.committed(topic) == 10_100, seconds=180, what=log.read_text()[-2000:])
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
    assert counted(server) == before + 10_100


def test_two_consumers_share_a_topic_and_one_takes_over_from_the_other(
    brokers, server, topic, options, tmp_path
):
    before = counted(server)
    labels = by_receipt(server.folder, 3000)
    log = tmp_path / "log"
    brokers.put(topic, labels[:1000])
    address = brokers.address(topic)
    with log.open("w") as file, collecting(address, server, *options, log=file) as one:
        until(lambda: brokers.committed(topic) == 1000)
        with collecting(address, server, *options, log=file):
            for at in range(1000, 2000, 100):
                brokers.put(topic, labels[at : at + 100])
                time.sleep(0.5)
            until(lambda: brokers.committed(topic) == 2000)
            one.kill()
            one.wait()
            brokers.put(topic, labels[2000:])
            until(lambda: brokers.committed(topic) == 3000, what=log.read_text()[-2000:])
    assert counted(server) == before + 3000


def test_a_label_that_comes_before_its_prediction_holds_back_no_other_and_not_for_ever(
    brokers, server, topic, options
):
    before = counted(server)
    early = [{"id": f"{topic}-{i}", "label": 1} for i in range(10)]
    never = {"id": f"nobody's {topic}", "label": 1, "by": "id"}
    brokers.put(topic, [*early, never, *by_receipt(server.folder, 200)])
    with collecting(brokers.address(topic), server, *options, "--wait", "20s"):
        until(lambda: counted(server) == before + 200)
        assert brokers.committed(topic) < 200  # not behind what waits
        predict(server, 10, topic)
        (letter,) = brokers.read(f"{topic}.dead", 1)
        until(lambda: brokers.committed(topic) == 211)
    assert counted(server) == before + 210
    assert letter.pop("dead")["reason"] == "unknown_id"
    assert letter == never


def test_dead_letters_that_cannot_be_sent_are_not_taken_for_sent(brokers, server, topic, caplog):
    brokers.put(topic, [b"{"])
    quick = QUICK | {"message.timeout.ms": "500", "log_level": "2"}
    url = f"{server.url}/v1/labels"
    collector = Collector(brokers.address(topic), "kafka://127.0.0.1:1/dead", url=url, kafka=quick)
    with at_work(collector):
        until(lambda: "dead letters cannot be sent" in caplog.text)
        collector.stop()
    collector.close()
    assert brokers.committed(topic) == 0
    assert collector.sent.wrong == 0


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("kafka://host:9092/topic", "consumer group"),
        ("kafka://ana:secret@host/topic?group=a", "password"),
        ("s3://bucket/labels?group=a", "a topic is"),
        ("kafka://host:9092/a/b?group=a", "a topic is"),
    ],
)
def test_an_address_that_cannot_be_is_refused(source, told):
    with pytest.raises(InputError, match=told) as error:
        Collector(source, "kafka://host:9092/dead")
    assert "secret" not in str(error.value)
