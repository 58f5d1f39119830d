"""One watch for all labels, and collectors of this process."""

from contextlib import contextmanager

import pytest
from buckets import bucket  # noqa: F401  a fixture
from real_servers import Server

from calib_serve.integrations.collect.collector import Collector
from calib_serve.integrations.collect.opening import open_dead_letters, open_source


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("watch")) as server:
        yield server


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def options(tmp_path):
    """Of the command: dead letters and state in ``tmp_path``, files as they are."""
    return ("--dead-letter", tmp_path / "dead", "--state", tmp_path / "s.db", "--settle", "0")


@pytest.fixture
def opened(server, folder, tmp_path):
    """A collector of the files in ``folder``."""

    @contextmanager
    def opened(source=None, *, dead=None, settle=0.0, every=0.1, **options):
        settings = {"state": tmp_path / "s.db", "settle": settle, "every": every}
        files = open_source(str(source or folder), **settings)
        letters = open_dead_letters(str(dead or tmp_path / "dead"))
        try:
            yield Collector(files, f"{server.url}/v1/labels", letters, **options)
        finally:
            files.close()

    return opened


@pytest.fixture
def run(opened):
    """Collect once."""

    def run(**options):
        with opened(**options) as collector:
            return collector.run(once=True)

    return run
