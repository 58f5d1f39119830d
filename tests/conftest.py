"""Fixtures that many tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sizes import sized

pytest_plugins = ["real_servers", "ledgers", "installed"]

# Half a suite's machines are busy with the other half: no example is late.
settings.register_profile("sized", max_examples=sized(100, 2000), deadline=None)
settings.load_profile("sized")


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
