"""The real process: started, killed at the worst moment, restarted, and stopped."""

import csv
import json
import signal

import httpx
import pytest
from command_line import calib_serve

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


def test_label_sends_a_file_and_repeats_safely(make_server, tmp_path):
    server = make_server("--token-file", str(write_tokens(tmp_path)))
    auth = {"authorization": "Bearer 0123456789abcdef"}
    answer = httpx.post(f"{server.url}/v1/predictions", json=predictions(250), headers=auth, timeout=60)
    receipts = [one["receipt"] for one in answer.json()["items"]]
    path = tmp_path / "labels.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["receipt", "label"])
        rows.writerows((r, 1) for r in receipts)
    arguments = [
        "label", str(path), "--url", f"{server.url}/v1/labels", "--token-file", str(tmp_path / "tokens"),
        "--json",
    ]  # fmt: skip
    first, again = (calib_serve(*arguments) for _ in range(2))
    assert first.exit_code == again.exit_code == 0, first.output
    assert json.loads(first.stdout) == {"accepted": 250, "held": 0, "refused": {}}
    assert json.loads(again.stdout) == {"accepted": 0, "held": 0, "refused": {"duplicate": 250}}
    assert counted(server) == 250


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


def write_tokens(folder):
    path = folder / "tokens"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    return path
