"""Labels from files: each is counted once, whatever becomes of files, stores and processes meanwhile."""

import csv
import datetime
import json
import os
import signal
import socket
import subprocess
import threading
import time
from decimal import Decimal
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collecting import by_receipt, collecting, command, counted, predict, until, value
from real_servers import Server
from sizes import sized

from calib_serve.collect import Collector, open_dead_letters, open_source
from calib_serve.errors import InputError


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("watch")) as server:
        yield server


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def run(server, folder, tmp_path):
    """Collect once, in this process."""

    def run(source=None, **options):
        settings = {"settle": 0.0, "every": 0.1}
        source_ = open_source(str(source or folder), state=tmp_path / "collect.db", **settings)
        dead = open_dead_letters(str(tmp_path / "dead"))
        try:
            return Collector(source_, f"{server.url}/v1/labels", dead, **options).run(once=True)
        finally:
            source_.close()

    return run


def dead_letters(folder):
    files = sorted((Path(folder) / "dead").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def write(path, labels):
    """In the form that the name says."""
    columns = list(dict.fromkeys(key for one in labels for key in one))
    if ".csv" in path.name:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(labels)
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({name: [one.get(name) for one in labels] for name in columns}), path)
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in labels))


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_labels_of_every_form_are_counted_once_by_id_and_by_receipt(run, server, folder, suffix, tmp_path):
    before = counted(server)
    write(folder / f"by-id.{suffix}", predict(server, 500, f"{suffix} {tmp_path.name}"))
    write(folder / f"by-receipt.{suffix}", by_receipt(server.folder, 500))
    totals = run()
    assert dict(totals.labels) == {"accepted": 1000}
    assert run().labels == {}  # what was read is not read again
    (tmp_path / "collect.db").unlink()
    assert dict(run().labels) == {"duplicate": 1000}  # and if it is, nothing is counted twice
    assert counted(server) == before + 1000


def test_what_is_wrong_is_set_aside_with_its_reason_and_the_rest_is_counted(run, server, folder, tmp_path):
    good = by_receipt(server.folder, 3)
    lines = [
        json.dumps(good[0]),
        "{",
        "",
        json.dumps([good[1], 7, {"receipt": good[2]["receipt"], "label": 99}]),
        json.dumps({"receipt": "forged", "label": 1, "at": "noon"}),
        json.dumps({"id": {"a": 1}, "label": 1}),
        "[" * 10_000,
        json.dumps({"label": 1}),
        '{"id": "\\ud800", "label": 1}',
        "\x00\xff",
    ]
    (folder / "a.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    totals = run()
    assert totals.labels == {"accepted": 2}
    assert totals.dead == {"malformed": 8, "bad_label": 1}
    found = dead_letters(tmp_path)
    assert len(found) == 9
    assert {"receipt": good[2]["receipt"], "label": 99} in [
        {key: one[key] for key in one if key != "dead"} for one in found
    ]
    assert all(one["dead"]["reason"] and one["dead"]["message"] for one in found)
    assert {one["dead"]["where"].rsplit(" ", 1)[1] for one in found} == {*"2456789", "10"}
    assert oct((tmp_path / "dead").stat().st_mode)[-3:] == "700"
    assert run().dead == {}


def test_a_table_that_breaks_off_is_said_and_read_again_when_it_is_mended(run, server, folder, tmp_path):
    labels = by_receipt(server.folder, 3)
    write(folder / "a.csv", labels)
    whole = (folder / "a.csv").read_text()
    (folder / "a.csv").write_text(whole.rpartition(",")[0])
    totals = run()
    assert (totals.labels["accepted"], dict(totals.dead)) == (2, {"unreadable": 1})
    (letter,) = dead_letters(tmp_path)
    assert "row 3" in letter["dead"]["message"]
    (folder / "a.csv").write_text(whole)
    assert run().labels == {"accepted": 1, "duplicate": 2}


@pytest.mark.parametrize(
    "wrong", [datetime.datetime(2026, 1, 1), b"\xff", [1], {"a": 1}, float("nan"), Decimal("1.5"), None]
)
def test_values_that_json_has_no_form_for_are_set_aside(run, server, folder, tmp_path, wrong):
    (good,) = by_receipt(server.folder, 1)
    labels = pa.array([wrong]) if wrong is not None else pa.array([None], pa.int64())
    pq.write_table(pa.table({"id": ["order-1"], "label": labels}), folder / "a.parquet")
    write(folder / "b.jsonl", [good])
    totals = run(wait=1.0)  # the id of what can be a label is not known
    assert totals.labels == {"accepted": 1}
    assert sum(totals.dead.values()) == 1
    (letter,) = dead_letters(tmp_path)
    assert letter.get("id") == "order-1" or letter["dead"]["reason"] == "unreadable", letter


def test_files_that_are_not_whole_or_no_labels_are_left_alone(run, server, folder, tmp_path):
    labels = by_receipt(server.folder, 9)
    (folder / "_temporary").mkdir()
    (folder / "day=1" / "hour=2").mkdir(parents=True)
    for i, name in enumerate(
        ("a.csv.tmp", ".a.csv", "_a.csv", "_temporary/a.csv", "a.csv~", "_SUCCESS", "notes.txt")
    ):
        write(folder / name, labels[i : i + 1])
    write(folder / "day=1" / "hour=2" / "part-0.csv", labels[7:8])
    assert run().labels == {"accepted": 1}
    (folder / "a.csv.tmp").rename(folder / "a.csv")
    write(folder / "notes.jsonl", labels[8:9])
    totals = run()
    assert totals.dead == {}
    assert totals.labels == {"accepted": 2}


def test_a_file_is_read_when_it_does_not_change_any_more(server, folder, tmp_path):
    """A writer that takes its time, without a temporary name."""
    labels = by_receipt(server.folder, 60)
    before = counted(server)

    def write_slowly():
        with (folder / "slow.jsonl").open("w") as file:
            for one in labels:
                text = json.dumps(one)
                file.write(text[:20])
                file.flush()
                time.sleep(0.05)
                file.write(text[20:] + "\n")

    writer = threading.Thread(target=write_slowly)
    writer.start()
    source = open_source(str(folder), state=tmp_path / "s.db", settle=1.0, every=0.1)
    dead = open_dead_letters(str(tmp_path / "dead"))
    totals = Collector(source, f"{server.url}/v1/labels", dead).run(once=True)
    writer.join()
    source.close()
    assert (dict(totals.labels), totals.dead) == ({"accepted": 60}, {})
    assert counted(server) == before + 60


def test_a_file_that_changes_while_it_is_read_is_read_again_whole(server, folder, tmp_path):
    labels = by_receipt(server.folder, 5000)
    write(folder / "a.jsonl", labels[:3000])
    before = counted(server)
    source = open_source(str(folder), state=tmp_path / "s.db", settle=0.0, every=0.0)
    dead = open_dead_letters(str(tmp_path / "dead"))
    collector = Collector(source, f"{server.url}/v1/labels", dead)
    collector._round()
    assert collector.totals.labels["accepted"] == 1000
    write(folder / "a.jsonl", labels)
    collector.run(once=True)
    source.close()
    assert counted(server) == before + 5000
    assert collector.totals.dead == {}


def test_a_label_waits_for_its_prediction_and_is_set_aside_if_that_never_comes(server, folder, tmp_path):
    early = [{"id": f"early {tmp_path.name} {i}", "label": 1} for i in range(20)]
    write(folder / "a.jsonl", early)
    source = open_source(str(folder), state=tmp_path / "s.db", settle=0.0, every=0.1)
    collector = Collector(
        source, f"{server.url}/v1/labels", open_dead_letters(str(tmp_path / "dead")), wait=3.0
    )
    thread = threading.Thread(target=collector.run, kwargs={"once": True})
    thread.start()
    until(lambda: collector.totals.held == 20)
    thread.join()
    source.close()
    assert collector.totals.dead == {"unknown_id": 20}
    assert {one["dead"]["reason"] for one in dead_letters(tmp_path)} == {"unknown_id"}


def test_an_early_label_is_counted_once_its_prediction_is_there(server, folder, tmp_path):
    early = [{"id": f"{tmp_path.name}-{i}", "label": 1} for i in range(20)]
    write(folder / "a.jsonl", early)
    source = open_source(str(folder), state=tmp_path / "s.db", settle=0.0, every=0.1)
    collector = Collector(source, f"{server.url}/v1/labels", open_dead_letters(str(tmp_path / "dead")))
    thread = threading.Thread(target=collector.run, kwargs={"once": True})
    thread.start()
    until(lambda: collector.totals.held == 20)
    assert source._state.of(source._address(str(folder / "a.jsonl"))) is None  # nothing is settled yet
    predict(server, 20, tmp_path.name)
    thread.join()
    source.close()
    assert dict(collector.totals.labels) == {"accepted": 20}


def test_a_batch_that_is_too_large_is_sent_in_parts(server, folder, run, tmp_path):
    labels = by_receipt(server.folder, 3)
    labels[1] = {"receipt": "x" * 900_000, "label": 1}
    many = [{"receipt": "y" * 9_000, "label": 1} for _ in range(900)]  # eight megabytes in one batch
    brackets = [{"receipt": "[" * 9_000, "label": 1} for _ in range(100)]
    write(folder / "a.jsonl", [*labels, *many, *brackets])
    totals = run()
    assert (totals.labels["accepted"], totals.dead["malformed"]) == (2, 1001)


def test_a_watch_that_is_down_is_waited_for(tmp_path, folder):
    with Server(tmp_path) as server:
        write(folder / "a.jsonl", by_receipt(tmp_path, 50))
        server.stop(9)
        log = tmp_path / "log"
        with log.open("w") as file, collecting(
            folder, server, "--dead-letter", tmp_path / "dead", "--state", tmp_path / "s.db",
            "--settle", 0, "--once", log=file,
        ) as process:  # fmt: skip
            until(lambda: "it is tried again" in log.read_text())
            server.start()
            assert process.wait(60) == 0
        assert counted(server) == 50
        assert "50 counted" in log.read_text()


def test_dead_letters_that_cannot_be_kept_stop_the_file_and_lose_nothing(server, folder, tmp_path):
    (folder / "a.jsonl").write_text("{\n")
    (tmp_path / "dead").write_text("a file where the folder should be")
    source = open_source(str(folder), state=tmp_path / "s.db", settle=0.0, every=0.1)
    collector = Collector(source, f"{server.url}/v1/labels", open_dead_letters(str(tmp_path / "dead")))
    thread = threading.Thread(target=collector.run, kwargs={"once": True})
    thread.start()
    until(lambda: collector.totals.failures["dead_letter"] > 0)
    assert collector.totals.dead == {}
    (tmp_path / "dead").unlink()
    thread.join()
    source.close()
    assert collector.totals.dead == {"malformed": 1}
    assert len(dead_letters(tmp_path)) == 1


def test_a_token_that_is_wrong_is_said_until_it_is_right(tmp_path, folder):
    token, tokens = tmp_path / "token", tmp_path / "tokens"
    tokens.write_text("lab label,scrape " + "r" * 20 + "\n")
    token.write_text("w" * 20)
    for one in (token, tokens):
        one.chmod(0o600)
    log = tmp_path / "log"
    with Server(tmp_path, "--token-file", str(tokens)) as server, log.open("w") as file:
        write(folder / "a.jsonl", by_receipt(tmp_path, 5))
        options = ("--dead-letter", tmp_path / "dead", "--settle", 0, "--state", tmp_path / "s.db", "--once")
        with collecting(folder, server, *options, "--token-file", token, log=file) as process:
            until(lambda: "401" in log.read_text())
            token.write_text("r" * 20)
            assert process.wait(60) == 0
    assert "5 counted" in log.read_text()
    assert "r" * 20 not in log.read_text()
    assert "w" * 20 not in log.read_text()


def test_it_may_be_killed_at_any_moment(server, folder, tmp_path):
    before = counted(server)
    for i in range(5):
        write(folder / f"part-{i}.jsonl", predict(server, 2000, f"{tmp_path.name} {i}"))
    (folder / "poison.jsonl").write_text("{\n" * 7)
    options = (
        "--dead-letter",
        tmp_path / "dead",
        "--state",
        tmp_path / "s.db",
        "--settle",
        0,
        "--batch",
        100,
    )
    run = command(folder, server, *options, "--once")
    for delay in sized(ci=(1.4, 2.0), nightly=(1.2, 1.4, 1.6, 1.8, 2.0, 2.3)):
        process = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run(run, check=True, capture_output=True, timeout=120).returncode == 0
    assert counted(server) == before + 10_000
    assert len({one["dead"]["where"] for one in dead_letters(tmp_path)}) == 7


def test_it_stops_within_seconds_and_publishes_what_it_did(server, folder, tmp_path, free_port):
    write(folder / "a.jsonl", by_receipt(server.folder, 10))
    log = tmp_path / "log"
    options = ("--dead-letter", tmp_path / "dead", "--state", tmp_path / "s.db", "--settle", 0)
    with (
        log.open("w") as file,
        collecting(folder, server, *options, "--metrics-port", free_port, log=file) as process,
    ):
        until(lambda: "collecting" in log.read_text())
        url = f"http://127.0.0.1:{free_port}"
        until(lambda: value(url, "calib_collect_labels_total", outcome="accepted") == 10)
        assert value(url, "calib_collect_labels_total", outcome="unknown_id") == 0
        assert value(url, "calib_collect_dead_letters_total") == 0
        assert value(url, "calib_collect_lag") == 0
        assert value(url, "calib_collect_sent_timestamp_seconds") > time.time() - 120
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert time.monotonic() - began < 5
    assert "10 counted" in log.read_text()


def test_it_stops_within_seconds_while_the_watch_does_not_answer(folder, tmp_path):
    write(folder / "a.jsonl", [{"id": "a", "label": 1}])
    log = tmp_path / "log"
    with socket.socket() as deaf, log.open("w") as file:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()

        class Deaf:
            url = f"http://127.0.0.1:{deaf.getsockname()[1]}"

        options = ("--dead-letter", tmp_path / "dead", "--state", tmp_path / "s.db", "--settle", 0)
        with collecting(folder, Deaf, *options, log=file) as process:
            heard, _ = deaf.accept()
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
            heard.close()


def test_files_in_memory_and_a_bucket_that_comes_and_goes(server, tmp_path):
    """Any store of fsspec; a listing that fails is tried again."""
    memory = fsspec.filesystem("memory")
    labels = by_receipt(server.folder, 40)
    with memory.open("/labels/a.jsonl", "w") as file:
        file.write("".join(json.dumps(one) + "\n" for one in labels[:20]))
    source = open_source("memory://labels", state=tmp_path / "s.db", settle=0.0, every=0.1)
    listed, fails = source._listed, [True]

    def sometimes():
        if fails:
            fails.clear()
            raise ConnectionError("no bucket today")
        return listed()

    source._listed = sometimes
    dead = open_dead_letters("memory://dead")
    collector = Collector(source, f"{server.url}/v1/labels", dead)
    assert dict(collector.run(once=True).labels) == {"accepted": 20}
    assert source.failures == 1
    with memory.open("/labels/a.jsonl", "w") as file:
        file.write("".join(json.dumps(one) + "\n" for one in labels) + "{\n")
    assert collector.run(once=True).labels == {"accepted": 40, "duplicate": 20}
    source.close()
    (letter,) = memory.ls("/dead", detail=False)
    assert json.loads(memory.cat(letter))["dead"]["where"].endswith("a.jsonl line 41")
    memory.rm("/labels", recursive=True)
    memory.rm("/dead", recursive=True)


def test_dead_letters_may_be_sent_again_as_they_are(server, folder, run, tmp_path):
    write(folder / "a.jsonl", [{**one, "label": 99} for one in by_receipt(server.folder, 2)])
    assert run().dead == {"bad_label": 2}
    (file,) = (tmp_path / "dead").glob("*.jsonl")
    (folder / "mended.jsonl").write_text(file.read_text().replace('"label": 99', '"label": 1'))
    assert run().labels == {"accepted": 2}


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "an address is"),
        ("kafka://host:9092/topic", "consumer group"),
        ("kafka://host:9092/?group=a", "a topic is"),
        ("kafka://host/topic?group=a&more=b", "a topic is"),
        ("kafka://ana:secret@host/topic?group=a", "password"),
        ("s3://ana:secret@bucket/labels", "password"),
        ("nonsense://bucket/labels", "cannot be read"),
        ("/nowhere/at/all", "no folder"),
    ],
)
def test_an_address_that_cannot_be_is_refused(source, told, tmp_path):
    with pytest.raises(InputError, match=told) as error:
        open_source(source, state=tmp_path / "s.db")
    assert "secret" not in str(error.value)
