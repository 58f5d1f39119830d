"""Too little memory, too few files: an error that is said, and nothing counted by half."""

from __future__ import annotations

import ctypes
import resource
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from injection import Fault, bytes_to_try, limit_files, under
from ledgers import accept, make_label
from real_watch import RING, make_watch, talk_to
from sizes import sized
from small_models import archive, temperature

from calib_serve import Artifact, Keyring
from calib_serve.data.logits_file import read_logits
from calib_serve.fuse.torchserve.archive import read_archive
from calib_serve.watch.ledger import SqliteLedger

MIB = 1 << 20


# --- memory -----------------------------------------------------------------------------------


def read_large(folder: Path) -> tuple[int, ...]:
    return tuple(read_logits(folder / "large.npz").logits.shape)


def test_logits_that_do_not_fit_into_memory_are_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "large.npz", logits=rng.random((800_000, 20)), labels=np.zeros(800_000, int))
    ended = under(Fault(memory=10 * MIB), read_large, tmp_path)
    assert ended.ours, ended
    assert "large.npz" in ended.said
    assert under(Fault(memory=900 * MIB), read_large, tmp_path).result == (800_000, 20)


def label_all(folder: Path, count: int) -> int:
    watch = make_watch(folder)
    outcomes = watch.labels(
        [
            {
                "receipt": RING.sign(
                    model="m", version="1", predicted=1, confidence=0.5, nonce=i.to_bytes(10, "big")
                ),
                "label": 1,
            }
            for i in range(count)
        ]
    )
    watch.ledger.close()
    return sum(one.accepted for one in outcomes)


def test_a_batch_that_memory_does_not_suffice_for_is_counted_whole_or_not_at_all(tmp_path: Path) -> None:
    count, failed = 3_000, 0
    for spare in bytes_to_try(6 * MIB, sized(4, 30)):
        # A process may also die of it: C that cannot grow its stack has no other way. And CPython 3.11 may
        # spin for good where it unwinds a MemoryError without memory: then it is killed.
        ended = under(Fault(memory=spare), label_all, tmp_path, count, seconds=30, may_hang=True)
        failed += not ended.well
        assert ended.well or ended.signal or ended.ours or "MemoryError" in ended.error, ended
        with closing(SqliteLedger(tmp_path / "l.db")) as ledger:
            sums = ledger.sums()
        counted = int(sums["m", "1"].feedback.n) if sums else 0
        assert counted in (0, count)
        assert counted == count or not ended.well
    assert failed > 0, "the test must be able to fail"
    assert under(Fault(), label_all, tmp_path, count).result == count - counted


def verify_when_openssl_gets_no_memory(_: Path) -> tuple[str, bool]:
    """What it ends in, and whether it works again with memory. Python has some of its own in reserve."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    token = RING.sign(model="m", version="1", predicted=1, confidence=0.5)
    RING.verify(token)
    reserve = [[] for _ in range(20_000)]
    del reserve
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, (used, unlimited))
    for power in range(22, 3, -1):
        while libc.malloc(1 << power):
            pass
    try:
        RING.verify(token)
        said = ""
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
    return said, RING.verify(token).predicted == 1


def test_a_receipt_that_cannot_be_verified_for_want_of_memory_is_an_error_of_ours() -> None:
    ended = under(Fault(), verify_when_openssl_gets_no_memory, Path())
    assert ended.well, ended
    said, again = ended.result
    assert said.startswith("KeyringError: nothing can be signed or verified")
    assert said.endswith("is memory short?")
    assert again


# --- files ------------------------------------------------------------------------------------


def save_artifact(folder: Path) -> None:
    temperature(2.5).save(folder / "artifact")


def load_artifact(folder: Path) -> None:
    Artifact.load(folder / "artifact")


def save_keys(folder: Path) -> None:
    Keyring.new().save(folder / "keys.json")


def load_archive(folder: Path) -> None:
    read_archive(folder / "digits.mar")


def pack_archive(folder: Path) -> None:
    archive(folder, name="other")


def open_ledger(folder: Path) -> None:
    ledger = SqliteLedger(folder / "l.db")
    try:
        accept(ledger, [make_label(1)])
    finally:
        ledger.close()


@pytest.mark.parametrize(
    "work", [save_artifact, load_artifact, save_keys, load_archive, pack_archive, open_ledger]
)
def test_with_too_few_files_it_is_said_and_what_is_there_stays(work, tmp_path: Path) -> None:
    archive(tmp_path)
    temperature(1.5).save(tmp_path / "artifact")
    there = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    said = 0
    for files in range(24):
        ended = under(Fault(files=files), work, tmp_path)
        assert ended.well or ended.ours, ended
        said += ended.ours
        if ended.ours and work is not open_ledger:
            assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == there
        if ended.well:
            break
    assert said > 0
    assert ended.well, "a few files are enough"


def serve_with_few_files(folder: Path) -> list[int]:
    """Statuses of requests while files run out, and after."""
    import resource

    watch = make_watch(folder)
    one = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
    with talk_to(watch) as client:
        statuses = [client.post("/v1/predictions", json=[one]).status_code]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit_files(0)
        statuses += [client.post("/v1/predictions", json=[one]).status_code for _ in range(3)]
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        statuses.append(client.post("/v1/predictions", json=[one]).status_code)
    total = int(watch.ledger.sums()["m", "1"].predictions.sum())
    watch.ledger.close()
    return [*statuses, total]


def test_a_watch_app_without_files_to_open_counts_what_it_acknowledges(tmp_path: Path) -> None:
    ended = under(Fault(), serve_with_few_files, tmp_path)
    assert ended.well, ended
    first, *between, last, total = ended.result
    assert first == last == 200
    assert set(between) <= {200, 503}
    assert total == [first, *between, last].count(200)
