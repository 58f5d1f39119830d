"""A bucket that speaks S3, for this process and those that it starts."""

import subprocess
import sys

import httpx
import pytest
from collecting import until
from processes import started


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


def put(path, text):
    """Write an object; the first makes the bucket ``labels``."""
    subprocess.run([sys.executable, "-c", PUT, path], input=text.encode(), check=True, timeout=60)
