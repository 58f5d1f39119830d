"""Keys change under load: over two hosts no receipt is refused, and a broken keyring file changes nothing."""

from __future__ import annotations

import base64
import json

import httpx
import pytest
from collecting import until
from command_line import calib_serve

from calib_serve.receipts import Keyring

pytestmark = pytest.mark.server


def keys(*arguments: object) -> str:
    done = calib_serve("keys", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def key_of(receipt: str) -> str:
    raw = base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4))
    return raw[3 : 3 + raw[2]].decode()


def test_a_keyring_that_breaks_under_a_running_watch_changes_nothing_and_is_counted(make_server) -> None:
    server = make_server(checks_often=True)
    path = server.folder / "keys.json"
    ring = Keyring.load(path)
    one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}

    def failures() -> float:
        text = httpx.get(f"{server.url}/metrics", timeout=60).text
        (line,) = [
            x for x in text.splitlines() if x.startswith('calib_monitor_errors_total{stage="keyring"}')
        ]
        return float(line.rpartition(" ")[2])

    def receipt() -> str:
        answer = httpx.post(f"{server.url}/v1/predictions", json={"items": [one]}, timeout=60)
        return answer.raise_for_status().json()["items"][0]["receipt"]

    assert failures() == 0
    whole = path.read_bytes()
    path.write_bytes(whole[:50])
    until(lambda: failures() > 0, what="a broken keyring was not counted")  # also where nobody uses it
    assert key_of(receipt()) == ring.active
    path.write_bytes(whole)
    rotated = Keyring.edit(path, lambda ring: ring.rotated())
    until(lambda: key_of(receipt()) == rotated.active, what="the mended keyring was not read")
    labels = {"items": [{"receipt": receipt(), "label": 1}]}
    assert httpx.post(f"{server.url}/v1/labels", json=labels, timeout=60).json()["accepted"] == 1
    assert json.loads(whole)["keys"][ring.active] not in httpx.get(f"{server.url}/metrics", timeout=60).text
