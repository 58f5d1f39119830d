"""Labels from a bucket that speaks S3."""

import json
import os
import subprocess
import sys
import time

import httpx
import pytest
from collecting import by_receipt, collecting, counted, until
from processes import started

pytestmark = [pytest.mark.server, pytest.mark.nightly]

if os.environ.get("CI") != "true":  # which must not skip
    pytest.importorskip("s3fs", reason="pip install s3fs")
    pytest.importorskip("moto", reason="pip install 'moto[server]'")


@pytest.fixture
def bucket(tmp_path, free_port, monkeypatch):
    """A server of S3, and what its clients read from the environment."""
    url = f"http://127.0.0.1:{free_port}"
    for name, value in (
        ("AWS_ENDPOINT_URL", url),
        ("AWS_ACCESS_KEY_ID", "tests"),
        ("AWS_SECRET_ACCESS_KEY", "tests"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", "moto.server", "-p", str(free_port)]
    with started(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        until(lambda: _answers(url))
        yield url


def _answers(url):
    try:
        return httpx.get(url, timeout=1).status_code < 500
    except httpx.TransportError:
        return False


PUT = """
import sys, s3fs
fs = s3fs.S3FileSystem()
if not fs.exists("labels"): fs.mkdir("labels")
fs.pipe_file(sys.argv[1], sys.stdin.buffer.read())
"""


def put(path, labels):
    text = "".join(json.dumps(one) + "\n" for one in labels)
    subprocess.run([sys.executable, "-c", PUT, path], input=text.encode(), check=True, timeout=60)


def test_objects_are_read_once_and_again_where_they_change(bucket, server, tmp_path):
    before, labels, log = counted(server), by_receipt(server.folder, 300), tmp_path / "log"
    put("labels/in/a.jsonl", labels[:100])
    put("labels/in/day=2/b.csv.tmp", labels[:1])
    options = ("--dead-letter", tmp_path / "dead", "--state", tmp_path / "s.db", "--option", "settle=1")
    run = ("s3://labels/in", server, *options, "--option", "every=0.5")
    with log.open("w") as file, collecting(*run, log=file):
        until(lambda: counted(server) == before + 100, what=log.read_text())
        put("labels/in/a.jsonl", labels[:200])
        put("labels/in/day=2/b.jsonl", [*labels[200:], {"id": 7}])
        until(lambda: counted(server) == before + 300)
        time.sleep(3)
    (letter,) = (tmp_path / "dead").glob("*.jsonl")
    assert json.loads(letter.read_text())["dead"]["reason"] == "malformed"
    with log.open("w") as file, collecting(*run, "--once", log=file) as again:
        assert again.wait(60) == 0
    assert "0 counted" in log.read_text()
    assert "duplicate" not in log.read_text()
