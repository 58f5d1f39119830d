"""Labels from a bucket that speaks S3."""

import json
import os
import time

import pytest
from buckets import put
from collecting import by_receipt, collecting, counted, until

pytestmark = [pytest.mark.server, pytest.mark.nightly]

if os.environ.get("CI") != "true":  # which must not skip
    pytest.importorskip("s3fs", reason="pip install s3fs")
    pytest.importorskip("moto", reason="pip install 'moto[server]'")


def lines(labels):
    return "".join(json.dumps(one) + "\n" for one in labels)


def test_objects_are_read_once_and_again_where_they_change(bucket, server, tmp_path):
    before, labels, log = counted(server), by_receipt(server.folder, 300), tmp_path / "log"
    put("labels/in/a.jsonl", lines(labels[:100]))
    put("labels/in/day=2/b.csv.tmp", lines(labels[:1]))
    options = ("--dead-letter", tmp_path / "dead", "--state", tmp_path / "s.db", "--settle", "1")
    run = ("s3://labels/in", server, *options)
    with log.open("w") as file, collecting(*run, log=file):
        until(lambda: counted(server) == before + 100, what=log.read_text())
        put("labels/in/a.jsonl", lines(labels[:200]))
        put("labels/in/day=2/b.jsonl", lines([*labels[200:], {"id": 7}]))
        until(lambda: counted(server) == before + 300)
        time.sleep(11)  # two looks more
    (letter,) = (tmp_path / "dead").glob("*.jsonl")
    assert json.loads(letter.read_text())["dead"]["reason"] == "bad_label"
    with log.open("w") as file, collecting(*run, "--once", log=file) as again:
        assert again.wait(60) == 0
    assert "0 counted" in log.read_text()
    assert "duplicate" not in log.read_text()
