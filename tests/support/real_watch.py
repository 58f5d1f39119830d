"""The watch app over a real ledger, spoken to as a server: in this process, byte for byte HTTP."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledgers import by_clock

from calib_serve.ledger import Ledger
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import Keyring
from calib_serve.receipts.classes import Classes
from calib_serve.web.app import create_app

with warnings.catch_warnings():
    # Newer starlettes ask for httpx2 at import; the client works with either.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

RING = Keyring("k", {"k": bytes(32)})


def make_watch(folder: Path, **options: Any) -> Watch:
    """A watch of one model ``m``, version ``1``, of three classes, over ``folder/l.db``."""
    models = {("m", "1"): Watched(Classes(3, ("zero", "one", "two")))}
    own = {"timeout": options.pop("timeout")} if "timeout" in options else {}
    clock = options.pop("clock", None)
    ledger = Ledger(folder / "l.db", **own)
    return Watch(RING, ledger if clock is None else by_clock(ledger, clock), models=models, **options)


@contextmanager
def talk_to(watch: Watch, **options: Any) -> Iterator[TestClient]:
    """A client of its app; an exception that the app lets out is the test's failure."""
    with TestClient(create_app(watch, hosts=["testserver"], **options)) as client:
        yield client
