"""Too little memory, too few files: an error that is said, and nothing counted by half."""

from __future__ import annotations

import ctypes
import resource
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from injection import Fault, bytes_to_try, under
from real_watch import RING, make_watch
from sizes import sized

from calib_serve.data.logits_file import read_logits
from calib_serve.watch.ledger import SqliteLedger

pytestmark = pytest.mark.server

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
