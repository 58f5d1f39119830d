"""A real Redis for the tests that need one."""

import shutil
import socket
import subprocess
import time

import pytest


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory):
    """The address of a real Redis that keeps nothing and ends with the tests."""
    program = shutil.which("redis-server")
    assert program, "redis-server is needed: apt-get install redis-server"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        _wait(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(timeout=10)


def _wait(port):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("Redis did not start within 10 s")
