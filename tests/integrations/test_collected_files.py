"""Labels from files: each is counted once, whatever becomes of files, stores and processes meanwhile."""

import csv
import datetime
import json
import os
import signal
import subprocess
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from collecting import at_work, by_receipt, command, counted, predict, until
from sizes import sized

from calib_serve.core.errors import InputError
from calib_serve.integrations.collect.opening import open_source

pytestmark = pytest.mark.server


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
    (tmp_path / "s.db").unlink()
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
    assert (totals.labels["accepted"], dict(totals.dead)) == (2, {"malformed": 1})
    (letter,) = dead_letters(tmp_path)
    assert letter["dead"]["where"].endswith("a.csv row 3")
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
    totals = run(wait=1.0)
    assert totals.labels == {"accepted": 1}
    assert sum(totals.dead.values()) == 1
    (letter,) = dead_letters(tmp_path)
    assert letter["id"] == "order-1"


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


def test_a_file_that_changes_while_it_is_read_is_read_again_whole(opened, server, folder):
    labels = by_receipt(server.folder, 5000)
    write(folder / "a.jsonl", labels[:3000])
    before = counted(server)
    with opened(every=1e-6) as collector:
        collector._round()
        assert collector.totals.labels["accepted"] == 1000
        write(folder / "a.jsonl", labels)
        collector.run(once=True)
    assert counted(server) == before + 5000
    assert collector.totals.dead == {}


def test_a_batch_that_is_too_large_is_sent_in_parts(server, folder, run, tmp_path):
    labels = by_receipt(server.folder, 3)
    labels[1] = {"receipt": "x" * 900_000, "label": 1}
    many = [{"receipt": "y" * 9_000, "label": 1} for _ in range(900)]  # eight megabytes in one batch
    brackets = [{"receipt": "[" * 9_000, "label": 1} for _ in range(100)]
    write(folder / "a.jsonl", [*labels, *many, *brackets])
    totals = run()
    assert (totals.labels["accepted"], totals.dead["malformed"]) == (2, 1001)


def test_a_watch_that_is_down_is_waited_for(opened, server, folder):
    before = counted(server)
    write(folder / "a.jsonl", by_receipt(server.folder, 50))
    server.stop(9)
    with opened() as collector, at_work(collector, once=True):
        until(lambda: collector.totals.failures["watch"] > 0)
        server.start()
    assert counted(server) == before + 50
    assert "50 counted" in str(collector.totals)


def test_dead_letters_that_cannot_be_kept_stop_the_file_and_lose_nothing(opened, folder, tmp_path):
    (folder / "a.jsonl").write_text("{\n")
    (tmp_path / "dead").write_text("a file where the folder should be")
    with opened() as collector, at_work(collector, once=True):
        until(lambda: collector.totals.failures["dead_letter"] > 0)
        assert collector.totals.dead == {}
        (tmp_path / "dead").unlink()
    assert collector.totals.dead == {"malformed": 1}
    assert len(dead_letters(tmp_path)) == 1


def test_it_may_be_killed_at_any_moment(server, folder, options, tmp_path):
    before = counted(server)
    for i in range(5):
        write(folder / f"part-{i}.jsonl", predict(server, 2000, f"{tmp_path.name} {i}"))
    (folder / "poison.jsonl").write_text("{\n" * 7)
    run = command(folder, server, *options, "--once")
    for delay in sized(ci=(1.4, 2.0), nightly=(1.2, 1.4, 1.6, 1.8, 2.0, 2.3)):
        process = subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run(run, check=False, capture_output=True, timeout=120).returncode in (
        0,
        1,
    )  # by poison
    assert counted(server) == before + 10_000
    assert len({one["dead"]["where"] for one in dead_letters(tmp_path)}) == 7


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("kafka://host:9092/topic", "consumer group"),
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
