"""The real process: started, killed at the worst moment, restarted, and stopped."""

import signal

import httpx
import pytest

from calib_serve.ledger import Ledger

pytestmark = pytest.mark.server


def predictions(count, confidence=0.9):
    one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": confidence}
    return {"items": [one] * count}


def get_receipts(server, count):
    answer = httpx.post(f"{server.url}/v1/predictions", json=predictions(count), timeout=60).json()
    return [one["receipt"] for one in answer["items"]]


def counted(server):
    ledger = Ledger(server.folder / "ledger.db")
    n = ledger.sums()["digits", "1.0"].feedback.n
    ledger.close()
    return n


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_also_where_the_shell_had_it_ignore_sigint(make_server, how):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for what is started with &: it is inherited
    try:
        server = make_server()
    finally:
        signal.signal(signal.SIGINT, before)
    labels = [{"receipt": r, "label": 1} for r in get_receipts(server, 3)]
    httpx.post(f"{server.url}/v1/labels", json=labels, timeout=30)
    assert server.stop(how) == 0
    assert counted(server) == 3
