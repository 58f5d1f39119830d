"""A real Prometheus over real ``calib-serve watch`` replicas."""

import importlib.util
from pathlib import Path

import pytest


def _load(path):
    spec = importlib.util.spec_from_file_location("watch_servers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def watch_servers():
    """The module whose ``Server`` starts a real ``calib-serve watch``."""
    return _load(Path(__file__).parents[1] / "watch" / "conftest.py")
