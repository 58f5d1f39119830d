"""Bytes of a ledger's file overwritten anywhere: said, or nothing differs; and no label counts twice."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ledgers import accept, entries, make_label
from sizes import sized

from calib_serve.errors import LedgerError
from calib_serve.receipts import DAY
from calib_serve.watch.ledger import Key, Once, SqliteLedger
from calib_serve.watch.ledger.sums import Sums

pytestmark = pytest.mark.store

WHEN = 1_700_000_000.0
EPOCHS = 12
CASES = sized(25, 2_000)


def epoch(i):
    """Random like real ones, so that rows lie in no order of their making."""
    return np.random.default_rng(i).bytes(8)


def label_of(of, bit, **more):
    one = make_label(0, when=WHEN - 60 * of, **more)
    return replace(one, receipt=replace(one.receipt, nonce=epoch(of) + bit.to_bytes(2, "big")))


def opened(path):
    return SqliteLedger(path, writer="w", clock=lambda: WHEN)


COUNTED = [label_of(of, bit, label=bit % 2) for of in range(EPOCHS) for bit in range(0, 60 * of + 1)]
NEW = [*(label_of(of, 60_000) for of in range(EPOCHS)), label_of(77, 1)]


def batch_of(n):
    return Once.of(b"batch %d" % n, b"content", time=WHEN)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a closed ledger with something in every table, and what it says."""
    path = tmp_path_factory.mktemp("whole") / "l.db"
    with closing(opened(path)) as ledger:
        for n, i in enumerate(range(0, len(COUNTED), 400)):
            some = COUNTED[i : i + 400]
            segments = [f"segment {j % 7}" for j in range(len(some))]
            assert all(
                fate == "counted" for fate in ledger.accept(entries(some, segments), detect=n % 2 == 0)
            )
            ledger.add({Key("m", "1"): Sums.served([0.9])}, time=WHEN, once=batch_of(n))
        with ledger.emission("torchserve"):
            pass
        accept(ledger, [label_of(20, bit) for bit in range(5)])
        ledger.store("key", b"value " * 100)
        ledger.store("detector/1/m/1", bytes(range(256)) * 20)
    content = path.read_bytes()
    return content, said(path)


def said(path):
    """Every number of the ledger at ``path``."""
    with closing(opened(path)) as ledger:
        return {
            **{(kind, own): ledger.slices(kind, own=own) for kind in ("segment", "class") for own in (0, 1)},
            "dated": ledger.dated(0.0, WHEN + DAY),
            "waiting": ledger.waiting(),
            "key": ledger.load("key"),
            "detector": ledger.load("detector/1/m/1"),
            "published": published(ledger),
        }


def published(ledger):
    with ledger.emission("torchserve") as (fresh, counted):
        return dict(fresh), dict(counted)


def what_comes_of(path):
    """Whether it is refused, said or the same; a label that counts twice or a number that lies fails."""
    try:
        with closing(opened(path)) as ledger:
            wrong = [*ledger.verify(), *ledger.set_aside()]
            fates = ledger.accept(entries(COUNTED), detect=False)
            new = ledger.accept(entries(NEW), detect=False)
            batch = ledger.add({}, time=WHEN, once=batch_of(0))
    except LedgerError as error:
        return "refused" if str(path) in str(error) and "quarantine" in str(error) else f"not said: {error}"
    assert "counted" not in fates, "counted twice"
    assert not batch, "a batch of predictions counted twice"
    if wrong:
        return "said"
    assert set(fates) == {"duplicate"}
    assert set(new) == {"counted"}
    return "the same"


def test_every_overwrite_is_said_or_changes_nothing_and_no_label_counts_twice(whole, tmp_path: Path) -> None:
    content, truth = whole
    counts = Counter()
    for seed in range(CASES):
        rng, changed = np.random.default_rng(seed), bytearray(content)
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(content) - 8))
            changed[at : at + 8] = rng.bytes(8)
        path = tmp_path / str(seed) / "l.db"
        path.parent.mkdir()
        path.write_bytes(changed)
        came = what_comes_of(path)
        if came == "the same":
            path.write_bytes(changed)
            assert said(path) == truth, f"case {seed}"
        counts[came] += 1
        shutil.rmtree(path.parent)
    assert set(counts) == {"refused", "said", "the same"}
    assert counts["refused"] + counts["said"] > CASES // 4, counts
