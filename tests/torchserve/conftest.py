"""The servers that these tests share, and a worker in their own process."""

from pathlib import Path

import pytest
from torchserve import register, torchserves

from calib_serve import Keyring
from calib_serve.receipts.environment import KEYRING
from calib_serve.torchserve import _observer, declared
from calib_serve.torchserve._channel import Emitter
from calib_serve.torchserve._worker import Ending

__all__ = ["register", "torchserves"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What a worker in this process sends to its server; signals are left alone, and receipts are on."""
    found: list[str] = []
    monkeypatch.setattr(_observer, "Emitter", lambda interval: Emitter(write=found.append, interval=3600))
    monkeypatch.setattr(Ending, "listen", lambda self: None)
    monkeypatch.setattr(declared, "_around", [])
    Keyring.new().save(tmp_path / "keyring.json")
    monkeypatch.setenv(KEYRING, str(tmp_path / "keyring.json"))
    return found
