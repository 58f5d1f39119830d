"""``calib-serve label`` of a file, and what scripts see of it: real processes, each label once."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from collecting import by_receipt, counted, predict, until, value
from real_servers import Server

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.integrations.collect import send_label_file

pytestmark = pytest.mark.server


@pytest.fixture
def named(tmp_path: Path) -> Iterator[Server]:
    """A watch of three classes with names."""
    facts = {"method": "temperature", "classes": 3, "class_names": ("cat", "dog", "1")}
    Artifact((LogitMap.temperature(1.5),), **facts).save(tmp_path / "a")
    with Server(tmp_path, models=[f"digits:1.0={tmp_path / 'a'}"]) as server:
        yield server


def label(path: Path, server: Server, *options: object) -> subprocess.CompletedProcess[str]:
    where = ("--url", f"{server.url}/v1/labels")
    words = [sys.executable, "-m", "calib_serve", "label", str(path), *where, *map(str, options)]
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=300)


def test_a_table_as_a_team_has_it_is_counted_and_what_is_refused_can_be_mended_and_sent(
    named: Server, tmp_path: Path
) -> None:
    predict(named, 5)
    table = pd.DataFrame(
        {
            "order_id": [f"order-{i}" for i in range(5)] + ["order-99"],
            "outcome": ["dog", "dog", None, "1", "bird", "dog"],
        }
    )
    table.to_csv(tmp_path / "orders.csv", index=False)
    columns = ("--column", "id=order_id", "--column", "label=outcome", "--by", "name")
    done = label(tmp_path / "orders.csv", named, *columns, "--refused", tmp_path / "refused.jsonl")
    assert done.returncode == 1, done.stderr
    assert counted(named) == 3
    for place in ("row 3: bad_label", "row 5: bad_label", "row 6: unknown_id"):
        assert place in done.stderr
    refused = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert [one["id"] for one in refused] == ["order-2", "order-4", "order-99"]
    assert oct((tmp_path / "refused.jsonl").stat().st_mode)[-3:] == "600"

    mended = [one | {"label": "cat"} for one in refused[:2]]
    (tmp_path / "refused.jsonl").write_text("".join(json.dumps(one) + "\n" for one in mended))
    done = label(tmp_path / "refused.jsonl", named, "--refused", tmp_path / "refused.jsonl")
    assert (done.returncode, counted(named)) == (0, 5), done.stderr
    assert (tmp_path / "refused.jsonl").read_text() == ""


def test_a_watch_that_dies_in_the_middle_of_a_file_loses_no_label_and_doubles_none(
    server: Server, tmp_path: Path
) -> None:
    before = counted(server)
    labels = predict(server, 10_000, tmp_path.name)
    with (tmp_path / "l.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "label"])
        writer.writeheader()
        writer.writerows(labels)
    sending = "from calib_serve.integrations.collect import sending\nsending.BATCH = 50\n"
    sending += f"sending.send_label_file({str(tmp_path / 'l.csv')!r}, url='{server.url}/v1/labels')"
    words = [sys.executable, "-c", sending]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sender:
        until(lambda: counted(server) >= before + 1000)
        server.stop(signal.SIGKILL)
        sender.kill()
    server.start()
    middle = counted(server) - before
    assert sender.returncode != 0
    assert 1000 <= middle < 10_000, "it was not in the middle"
    done = label(tmp_path / "l.csv", server, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0
    assert found == {"accepted": 10_000 - middle, "held": 0, "refused": {"duplicate": middle}}
    assert counted(server) == before + 10_000


def test_a_batch_that_is_too_large_is_sent_in_parts(server: Server, tmp_path: Path) -> None:
    labels: list[dict[str, Any]] = by_receipt(server.folder, 3)
    labels[1] = {"receipt": "x" * 900_000, "label": 1}
    many = [{"receipt": "y" * 9_000, "label": 1} for _ in range(900)]  # eight megabytes in one batch
    brackets = [{"receipt": "[" * 9_000, "label": 1} for _ in range(100)]
    rows = [*labels, *many, *brackets]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    sent = send_label_file(tmp_path / "a.jsonl", url=f"{server.url}/v1/labels")
    assert (sent.accepted, sent.refused, sent.wrong) == (2, {"malformed": 1001}, 1001)


def test_a_file_that_is_not_there_or_no_table_is_said_before_anything_is_sent(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "l.csv").write_text("order_id,outcome\na,1\n")
    for path in (tmp_path / "none.csv", tmp_path / "none.jsonl", tmp_path / "l.csv"):
        done = label(path, server)
        assert done.returncode != 0
        assert path.name in done.stderr
        assert "Traceback" not in done.stderr


def test_where_no_row_is_to_blame_none_is_refused(server: Server, tmp_path: Path) -> None:
    labels = predict(server, 3, tmp_path.name)
    (tmp_path / "l.jsonl").write_text("".join(json.dumps(one) + "\n" for one in labels))
    proxied = f"http://0.0.0.0:{server.port}/v1/labels"  # by a name that the watch does not have
    words = [sys.executable, "-m", "calib_serve", "label", str(tmp_path / "l.jsonl"), "--url", proxied]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "host" in done.stderr
    assert "malformed" not in done.stderr
    assert label(tmp_path / "l.jsonl", server).returncode == 0


def test_labels_that_replace_others_are_sent(named: Server, tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    rows = predict(named, 4)

    def write(name: str) -> Path:
        file.write_text("".join(json.dumps(one | {"label": name}) + "\n" for one in rows))
        return file

    assert "4 counted" in label(write("dog"), named).stdout
    assert "4 duplicate" in label(write("cat"), named).stdout
    assert "4 counted" in label(write("cat"), named, "--replaces").stdout
    assert "4 duplicate" in label(file, named, "--replaces").stdout
    assert value(named.url, "calib_feedback_corrected_total") == 4
    assert value(named.url, "calib_window_sums", window="24h", sum="feedback_correct") == 0
    assert counted(named) == 4
