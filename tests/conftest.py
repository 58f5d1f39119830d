"""Fixtures that many tests share, and the marks that say what a test starts."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from httpx._transports import default as _default
from hypothesis import settings
from sizes import NIGHTLY, sized

# A client of httpx reads all certificates of the system, for 36 ms; tests ask servers thousands of times.
_default.create_ssl_context = functools.cache(_default.create_ssl_context)
# Imported first by a unit test, it would open a socket there, to see whether there is IPv6.
with suppress(ImportError):
    import urllib3  # noqa: F401

# Imported for doctests, it would change this process.
collect_ignore = ["support/torchvision_ops"]
collect_ignore_glob = ["*conftest.py"]  # several of one name, and no doctests
pytest_plugins = ["real_servers", "ledgers", "installed"]

# A worker for each core leaves no core to a second thread: such threads wait for one another, at work. What
# reads these is imported later, and servers and other programs that tests start read them, too.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# A TorchServe of tests lives for minutes: its Java shall not spend them on compiling.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Half a suite's machines are busy with the other half: no example is late.
settings.register_profile("sized", max_examples=sized(50, 2000), deadline=None)
settings.load_profile("sized")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: half of the time, tests wait for the servers that they started."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for garbage once all is imported, and from then on only in what tests make.

    Else each worker looks through two million objects a dozen times while it imports, and again at its end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Look for doctests in the package alone: in each file of tests, it would take seconds to find none."""
    return [found for found in (yield) if type(found) is pytest.Module]


LONGEST = (
    "faults/test_what_happens_when.py", "docs/test_pages.py",
    "faults/test_postgresql_faults.py", "monitor/test_feed.py", "fuse/test_triton_server.py",
    "integrations/test_kafka.py", "ledger/test_ledger.py",
    "attacks/test_bad_watches.py", "faults/test_worker_killed.py", "gateway/test_counting.py",
    "torchserve/test_foreign_enveloped.py", "torchserve/test_user_configuration.py", "test_packages.py",
    "gateway/test_hostile.py", "faults/test_failover.py", "faults/test_sigkill.py",
    "torchserve/test_injection.py", "workflows/test_fit_from_archive.py",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="files, and tests within each, in random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as ``unit`` what has no mark, leave out what is nightly, and put the longest files first.

    So none of these is left alone at the end; the others are mixed by their names. In the order of folders
    all workers would start servers at the same time, and compute at another. Shuffled, only what ends or
    changes its file's server, marked ``last``, stays behind the rest of the file.
    """
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in ("store", "server", "nightly")):
            item.add_marker("unit")
    if not NIGHTLY:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]

    here = Path(__file__).parent
    longest = {here / name: n for n, name in enumerate(LONGEST)}
    seed = config.getoption("--shuffle")

    # By names, so that a file alone has the order that it has among all.
    def place(item: pytest.Item) -> tuple[float, ...]:
        names = item.nodeid.split("::")[0], item.nodeid
        file, whole = (random.Random(f"{seed} {name}").random() for name in names)
        if seed is None:
            return longest.get(item.path, len(longest)), file
        return file, item.get_closest_marker("last") is not None, whole

    items.sort(key=place)


class NotAUnitTestError(OSError):  # so that who opened a socket closes it
    """A test without a mark started a program or used the network."""


PROGRAMS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system")
SOCKETS = ("socket.connect", "socket.bind")
_guarded: list[str] = []
"""The unit test that runs now, if one does."""
_broken: list[str] = []
"""What it did that a unit test does not."""


def _guard(event: str, args: tuple[object, ...]) -> None:
    if not _guarded or threading.current_thread() is not threading.main_thread():
        return
    network = event in SOCKETS and getattr(args[0], "family", None) in (socket.AF_INET, socket.AF_INET6)
    if event in PROGRAMS or network:
        _broken.append(f"{_guarded[0]} has no mark (server, store), and used {event} {args[:2]}")
        raise NotAUnitTestError(_broken[-1])


sys.addaudithook(_guard)


@contextmanager
def _held(item: pytest.Item) -> Iterator[None]:
    """Hold a unit test to what its mark promises, also where the guard's error was caught."""
    if item.get_closest_marker("unit"):
        _guarded.append(item.nodeid)
    try:
        yield
    finally:
        _guarded.clear()
        broken = _broken.copy()
        _broken.clear()
        if broken:
            raise NotAUnitTestError(broken[0])


# Not the end of a test: there, fixtures that others asked for end as well.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _held(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _held(item):
        return (yield)


@pytest.fixture(autouse=True)
def _one_thread_of_torch() -> Iterator[None]:
    """A handler that a test loads takes its share of the host's cores, for all tests that follow."""
    yield
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _sigint_is_not_ignored() -> Iterator[None]:
    """What tests start can be ended by SIGINT, also where ``&`` or nohup started them with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real logits, models and streams; skips where it is not at hand, never in CI."""
    folder = os.environ.get("CALIB_SERVE_DATA")
    if folder:
        return Path(folder)
    if os.environ.get("CI") == "true":
        pytest.fail("CALIB_SERVE_DATA is not set, and CI must not skip")
    pytest.skip("CALIB_SERVE_DATA is not set: it names the folder of real logits, models and streams")
