"""Fixtures that many tests share."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sizes import sized

# Imported for doctests, it would change this process.
collect_ignore = ["support/torchvision_ops"]
pytest_plugins = ["real_servers", "ledgers", "installed"]

# A worker for each core leaves no core to a second thread: such threads wait for one another, at work. What
# reads these is imported later, and servers and other programs that tests start read them, too.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# TorchServe is started some hundred times, each time for seconds: its Java shall not spend them on compiling.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Half a suite's machines are busy with the other half: no example is late.
settings.register_profile("sized", max_examples=sized(50, 2000), deadline=None)
settings.load_profile("sized")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: much of the time, tests wait for the servers that they started."""
    return (os.cpu_count() or 1) + 1


LONGEST = (
    "docs/test_pages.py", "serve/test_protocols.py", "serve/test_foreign_served.py",
    "workflows/test_fit_from_archive.py", "test_demo.py", "test_packages.py", "faults/test_worker_killed.py",
    "deploy/test_rules.py", "collect/test_kafka.py", "servers/test_fastapi.py", "serve/test_scaling.py",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="files, and tests within each, in random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files come first, so that none is left alone at the end; the others mixed by their names.

    In the order of folders all workers would start servers at the same time, and compute at another.
    Shuffled, only what ends or changes its file's server, marked ``last``, stays behind the rest of the file.
    """
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
