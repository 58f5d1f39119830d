"""Real servers for the tests that need one: PostgreSQL, and ``calib-serve watch``."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack

import pytest
from engines import postgres
from processes import end, ended_on_failure
from processes import free_port as _free_port

from calib_serve.receipts import Keyring


def needed(program, package):
    """Where ``program`` is; skips where it is not installed, never in CI."""
    path = shutil.which(program)
    if path is None and os.environ.get("CI") == "true":
        pytest.fail(f"{program} is missing, and CI must not skip: apt-get install {package}")
    if path is None:
        pytest.skip(f"{program} is not installed: apt-get install {package}")
    return path


@pytest.fixture(scope="session")
def postgres_url():
    """The address of a real PostgreSQL that ends with the tests, or of one that is there for many runs."""
    if given := os.environ.get("CALIB_SERVE_TEST_POSTGRES"):
        yield given
        return
    with postgres(durable=True) as url:
        yield url.replace("postgres://", "postgresql://")


@pytest.fixture
def postgres_database(postgres_url):
    """The address of a database that this test has for itself."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    yield postgres_url.rpartition("/")[0] + "/" + name
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"drop database {name} with (force)")


_MAIN = "from calib_serve.app import main; main()"
_EVERY_SECOND = """
from calib_serve.monitor.checks import Checks
Checks.every = 1.0
"""


class Server:
    """A real ``calib-serve watch`` process; ``checks_often``: each second, where a test waits for one."""

    def __init__(self, folder, *options, models=("digits:1.0=3",), port=None, checks_often=False):
        self.folder, self.port = folder, port or _free_port()
        self.command = [
            sys.executable,
            "-c",
            _EVERY_SECOND + _MAIN if checks_often else _MAIN,
            "watch",
            *models,
            *("--keyring", str(folder / "keys.json")),
            *(() if "--ledger" in options else ("--ledger", str(folder / "ledger.db"))),
            *("--port", str(self.port), *options),
        ]
        if not (folder / "keys.json").exists():
            Keyring.new().save(folder / "keys.json")
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        with ended_on_failure(self.process):
            self._wait()
        return self

    def _wait(self):
        import httpx

        until = time.monotonic() + 180
        while time.monotonic() < until:
            assert self.process.poll() is None, self.process.stderr.read()
            try:
                httpx.get(f"{self.url}/healthz", timeout=2)
            except httpx.TransportError:
                time.sleep(0.1)
            else:
                return
        raise AssertionError("watch did not start within 180 s")

    def label(self, n):
        """Predict ``n`` times, and label each right."""
        import httpx

        items = [{"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}] * n
        answer = httpx.post(f"{self.url}/v1/predictions", json={"items": items}, timeout=60).json()
        labels = [{"receipt": one["receipt"], "label": 1} for one in answer["items"]]
        done = httpx.post(f"{self.url}/v1/labels", json={"items": labels}, timeout=60).json()
        assert done["accepted"] == n

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        code = self.process.wait(timeout=90)
        self.process.stderr.close()
        return code

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        end(self.process)
        self.process.stderr.close()


@pytest.fixture
def make_server(tmp_path):
    """Makes servers that are stopped when the test ends."""
    with ExitStack() as stack:

        def make(*options, folder=tmp_path, **more):
            return stack.enter_context(Server(folder, *options, **more))

        yield make


class SharedWatch(Server):
    """One for all tests of a session: each takes a model of its own, of version 1 with 3 classes."""

    def __init__(self, folder):
        names = [f"model-{i}" for i in range(64)]
        super().__init__(folder, models=[f"{name}:1=3" for name in names])
        self._names = iter(names)

    def model(self):
        """The name of a model that no other test uses."""
        return next(self._names)

    def total(self, model, name="calib_predictions_total", *labels):
        """The sum of one of its series that have these labels."""
        import httpx

        lines = httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        wanted = (f'model="{model}"', *labels)
        mine = (x for x in lines if x.startswith(name + "{") and all(label in x for label in wanted))
        return sum(float(line.split()[-1]) for line in mine)


@pytest.fixture(scope="session")
def shared_watch(tmp_path_factory):
    """A ``calib-serve watch`` that runs as long as the session."""
    with SharedWatch(tmp_path_factory.mktemp("watch")) as server:
        yield server


@pytest.fixture
def free_port():
    return _free_port()
