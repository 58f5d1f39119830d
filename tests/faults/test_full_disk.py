"""No room left: said by an error of ours, nothing half-written stays, nothing is counted; then it goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from injection import Ended, Fault, bytes_to_try, under
from ledgers import accept, make_label
from sizes import sized
from small_models import WIDTH, linear_onnx

from calib_serve.errors import LedgerError
from calib_serve.model import load_model
from calib_serve.model.cache import CachedClassifier
from calib_serve.watch.ledger import SqliteLedger
from calib_serve.watch.samples import SampleLog, read_samples

pytestmark = pytest.mark.server


def hidden(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob("*") if p.name.startswith(".") or "partial" in p.name]


# --- a real file system without room ----------------------------------------------------------


def keep_samples(folder: Path) -> tuple[int, int, list[str]]:
    """Samples until the disk is full, then again once there is room: (errors, kept, what is left)."""
    log, errors = SampleLog(folder, rate=1.0), 0
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(60_000))
    for i in range(20):
        log.predicted("m", "1", [i.to_bytes(10, "big")], np.zeros((1, 300)), times=[float(i)])
        try:
            log.flush()
        except OSError:
            errors += 1
    assert log._predictions == {}
    ballast.unlink()
    log.predicted("m", "1", [bytes(11) + b"x"], np.zeros((1, 300)), times=[0.0])
    log.flush()
    found = read_samples(folder, model="m", version="1")
    return errors, found.predictions * (not found.damaged), hidden(folder)


def test_a_sample_log_lets_go_of_what_it_cannot_write_and_leaves_no_crumbs(tmp_path: Path) -> None:
    errors, kept, crumbs = under(Fault(disk=(tmp_path, 80 << 10)), keep_samples, tmp_path).result
    assert 0 < errors < 20
    assert kept == 20 - errors + 1
    assert crumbs == []


def cache_features(folder: Path, rows: int) -> tuple[int, ...]:
    linear_onnx(folder / "net.onnx", width=WIDTH)
    model = CachedClassifier(load_model(folder / "net.onnx", batch_size=64), folder)
    return tuple(model.logits(np.zeros((rows, WIDTH), np.float32)).shape)


def test_memory_mapped_logits_on_a_full_disk_are_an_error_and_no_crash(tmp_path: Path) -> None:
    ended = under(Fault(disk=(tmp_path, 256 << 10)), cache_features, tmp_path, 50_000)
    assert ended.ours, ended
    assert "No space left" in ended.said
    assert under(Fault(), cache_features, tmp_path, 50_000).result == (50_000, 3)


def count_until_full(folder: Path) -> tuple[int, int, str]:
    """(acknowledged, counted once there is room again, what was said)."""
    ballast = folder / "ballast"
    ledger, acknowledged, said = SqliteLedger(folder / "l.db"), 0, ""
    ballast.write_bytes(bytes(200_000))
    for at in range(0, 100_000, 100):
        try:
            acknowledged += sum(accept(ledger, [make_label(i) for i in range(at, at + 100)]))
        except LedgerError as error:
            said = str(error)
            break
    ballast.unlink()
    again = accept(ledger, [make_label(i) for i in range(at, at + 100)])
    assert all(again), "nothing of the batch that failed was counted"
    counted = int(ledger.sums()["m", "1"].feedback.n)
    ledger.close()
    return acknowledged, counted, said


def test_a_ledger_on_a_full_disk_counts_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    ended = under(Fault(disk=(tmp_path, 1_000_000)), count_until_full, tmp_path)
    assert ended.well, ended
    acknowledged, counted, said = ended.result
    assert "full" in said
    assert "free some space" in said
    assert counted == acknowledged + 100 > 200


def open_and_count(path: str, batches: int) -> int:
    """How many batches were acknowledged before there was no more room; an error in opening is raised."""
    ledger = SqliteLedger(path)
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
    ledger = SqliteLedger(path)
    sums = ledger.sums().get(("m", "1"))
    counted = 0 if sums is None else sums.feedback.n
    assert counted == 10 * (ended.result or 0)
    ledger.close()


# --- stores that say they are full ------------------------------------------------------------


def serve_until_full(folder: Path) -> list[int]:
    """Statuses of batches to a watch app whose disk runs full, and of one more with room again."""
    from real_watch import make_watch, talk_to

    watch = make_watch(folder)
    (folder / "ballast").write_bytes(bytes(300_000))
    with talk_to(watch) as client:
        statuses = []
        one = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
        for i in range(200):
            answer = client.post("/v1/predictions", json=[one] * 50, headers={"idempotency-key": str(i)})
            statuses.append(answer.status_code)
            if answer.status_code != 200:
                assert answer.headers["retry-after"] == "5"
                break
        (folder / "ballast").unlink()
        again = client.post("/v1/predictions", json=[one] * 50, headers={"idempotency-key": str(i)})
        text = client.get("/metrics").text
    total = sum(float(x.split()[-1]) for x in text.splitlines() if x.startswith("calib_predictions_total{"))
    assert 'calib_monitor_errors_total{stage="ledger"} 1.0' in text
    return [*statuses, again.status_code, int(total)]


def test_a_watch_server_on_a_full_disk_answers_503_and_then_goes_on(tmp_path: Path) -> None:
    ended = under(Fault(disk=(tmp_path, 1_000_000)), serve_until_full, tmp_path)
    assert ended.well, ended
    *fine, full, again, total = ended.result
    assert set(fine) == {200}
    assert (full, again, total) == (503, 200, 50 * (len(fine) + 1))
