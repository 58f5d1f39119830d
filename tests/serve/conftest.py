"""Fixtures of the serving tests."""

from live_server import store

__all__ = ["store"]
