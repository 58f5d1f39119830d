"""No room left: said by an error of ours, nothing half-written stays, nothing is counted; then it goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from injection import Ended, Fault, bytes_to_try, under
from ledgers import accept, make_label
from promises import promised
from sizes import sized

from calib_serve.core.errors import LedgerError
from calib_serve.ledger import Ledger

pytestmark = pytest.mark.server


# --- a real file system without room ----------------------------------------------------------


def open_and_count(path: str, batches: int) -> int:
    """How many batches were acknowledged before there was no more room; an error in opening is raised."""
    ledger = Ledger(path)
    for at in range(batches):
        try:
            accept(ledger, [make_label(i) for i in range(10 * at, 10 * at + 10)])
        except LedgerError:
            return at
    return batches


@pytest.mark.parametrize("limit", bytes_to_try(120_000, sized(5, 40)))
def test_a_ledger_without_room_at_any_size_keeps_what_it_acknowledged(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "l.db"
    ended: Ended = under(Fault(no_room_after=limit), open_and_count, str(path), 6)
    assert ended.well or ended.ours, ended
    ledger = Ledger(path)
    sums = ledger.sums().get(("m", "1"))
    counted = 0 if sums is None else sums.feedback.n
    assert counted == 10 * (ended.result or 0)
    ledger.close()


# --- a watch that says it is full -------------------------------------------------------------


def serve_until_full(folder: Path) -> tuple[int, int, str]:
    """Predictions and labels that were acknowledged, that are there with room again; what metrics said."""
    from real_watch import make_watch, talk_to

    watch, acknowledged = make_watch(folder), 0
    (folder / "ballast").write_bytes(bytes(300_000))
    one = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
    with talk_to(watch) as client:

        def send(key: str) -> int:
            answer = client.post("/v1/predictions", json=[one] * 50, headers={"idempotency-key": key})
            if answer.status_code != 200:
                return 0
            labels = [{"receipt": item["receipt"], "label": 1} for item in answer.json()["items"]]
            answer = client.post("/v1/labels", json=labels)
            assert answer.status_code == 200 or answer.headers["retry-after"] == "5"
            return 50 + 50 * (answer.status_code == 200)

        at = 0
        while (taken := send(str(at))) == 100:
            acknowledged, at = acknowledged + taken, at + 1
        text = client.get("/metrics").text
        (folder / "ballast").unlink()
        acknowledged += send(str(at))
    sums = watch.ledger.sums()["m", "1"]
    watch.close()
    return acknowledged, int(sums.predictions.sum() + sums.labels.sum()), text


def test_a_watch_server_on_a_full_disk_answers_503_and_then_goes_on(tmp_path: Path) -> None:
    promise = promised("the disk is full")
    ended = under(Fault(disk=(tmp_path, 1_000_000)), serve_until_full, tmp_path)
    assert ended.well, ended
    acknowledged, found, text = ended.result
    assert acknowledged % 100 == 0 < acknowledged, "with room again all is taken"
    assert acknowledged - found == promise.lost
    assert promise.is_said_by(text)
