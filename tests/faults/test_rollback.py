"""A store that goes back to a snapshot: what was published is published once, and no counter jumps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ledgers import NOW, accept, make_label, open_one

from calib_serve.serve.emit import Emitter
from calib_serve.serve.publish import Publisher
from calib_serve.watch.ledger import Key, SqliteLedger, Sums, WriterLease
from calib_serve.watch.publication import Publication
from calib_serve.watch.series import PUBLISHED

pytestmark = pytest.mark.store

KEY = Key("m", "1")


def count(ledger, numbers) -> None:
    assert all(accept(ledger, [make_label(i) for i in numbers]))


def labels(published) -> float:
    return float(sum(sums.labels.sum() for sums in published.sums.values()))


def test_a_ledger_file_that_was_put_back_while_nobody_ran_is_another_generation(tmp_path: Path) -> None:
    path = tmp_path / "l.db"

    def run(numbers, *, back: bool = False) -> tuple[float, int, int]:
        ledger = SqliteLedger(path)
        publication = Publication(ledger, WriterLease(ledger))
        count(ledger, numbers)
        found = publication.read()
        publication.close(), ledger.close()
        return labels(found), found.generation, publication.rollbacks

    assert run(range(10)) == (10, 0, 0)
    shutil.copy(path, tmp_path / "copy")
    assert run(range(10, 20)) == (20, 0, 0)
    shutil.copy(tmp_path / "copy", path)
    n, first, found = run(range(20, 25))
    assert (n, found) == (15, 1)
    assert first >= int(NOW)
    assert run(range(25, 30)) == (20, first, 0)
    # Back to a file of before that generation: its number does not come again.
    shutil.copy(tmp_path / "copy", path)
    assert run([])[1] > first


def test_sums_that_are_taken_out_on_purpose_are_another_generation_and_no_rollback(store) -> None:
    ledger = open_one(*store)
    publication = Publication(ledger)
    count(ledger, range(5))
    assert publication.read().labels == {}
    with ledger.transaction():
        ledger.add({KEY: Sums.zeros() - Sums.labelled([0.9] * 3, [1] * 3)}, time=NOW)
        began = ledger.new_generation("three labels were taken out")
    found = publication.read()
    assert (found.generation, labels(found), publication.rollbacks) == (began, 2, 0)
    assert ledger.generation() == began
    assert ledger.new_generation("again") > began
    ledger.close()


class Server:
    """What a TorchServe holds, which a worker publishes to."""

    def __init__(self) -> None:
        self.text = ""

    def publisher(self, ledger) -> Publisher:
        def write(text: str) -> None:
            self.text += text

        return Publisher(ledger, Emitter(write=write, host="h", interval=3600), name="a")

    @property
    def labels(self) -> float:
        found = [line for line in self.text.splitlines() if "calib_feedback_total" in line]
        return sum(float(line.split(":")[1].split("|")[0]) for line in found)


def test_torchserve_goes_on_at_once_after_labels_were_taken_out(store) -> None:
    ledger, server = open_one(*store), Server()
    publisher = server.publisher(ledger)
    count(ledger, range(20))
    publisher.publish()
    with ledger.transaction():
        ledger.add({KEY: Sums.zeros() - Sums.labelled([0.9] * 15, [1] * 15)}, time=NOW)
        ledger.new_generation("a source was revoked")
    publisher.publish()
    count(ledger, range(20, 23))
    publisher.publish()
    server.publisher(ledger).publish()  # the next worker
    assert server.labels == 23
    ledger.close()


def test_a_last_digit_that_differs_is_no_fall_and_none_is_published(store) -> None:
    ledger = open_one(*store)
    publication = Publication(ledger)
    count(ledger, range(5))
    before = publication.read().sums[KEY]
    ledger.add({KEY: Sums.zeros() - Sums(15, before.vector * 1e-15)}, time=NOW)
    after = publication.read()
    assert after.generation == 0
    for one in PUBLISHED:
        assert (after.sums[KEY][one.name] >= before[one.name]).all()
    ledger.close()
