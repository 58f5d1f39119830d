"""Two processes at the same file at once: one after the other, and never a mixture."""

from __future__ import annotations

from pathlib import Path

import pytest
from injection import CONTEXT
from ledgers import NOW, accept, make_label
from ledgers import sweep as sweep_at
from sizes import sized
from small_models import archive, temperature

from calib_serve import Artifact, Keyring
from calib_serve.ledger import Ledger
from calib_serve.receipts import DAY
from calib_serve.torchserve.archive._archive import read_archive

pytestmark = pytest.mark.server

TURNS = sized(15, 150)


def together(*works: tuple) -> None:
    """Each (function, arguments) in a process of its own, all at once; every one must end well."""
    processes = [CONTEXT.Process(target=work, args=args) for work, *args in works]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


def count(url: str, start: int) -> None:
    ledger = Ledger(url, timeout=60)
    for at in range(start, start + 200, 10):
        accept(ledger, [make_label(i) for i in range(at, at + 10)])
        ledger.roll_up()
    ledger.close()


def sweep(url: str) -> None:
    ledger = Ledger(url, timeout=60)
    for i in range(TURNS):
        sweep_at(ledger, NOW + 3 * DAY * (i + 1) / TURNS)
    ledger.close()


def test_writers_of_one_ledger_with_overlapping_labels_lose_and_double_nothing(url: str) -> None:
    Ledger(url).close()
    together(*((count, url, 100 * k) for k in range(3)), (sweep, url), (sweep, url))
    ledger = Ledger(url)
    assert ledger.sums()["m", "1"].feedback.n == 400
    assert sum(one.sums.feedback.n for one in ledger.dated(0, 1e11, kind="segment")) == 400
    ledger.close()


def save_and_stop(folder: str) -> None:
    for i in range(TURNS):
        temperature(1.0 + i).save(folder)


def load_always(folder: str, path: str) -> None:
    for _ in range(4 * TURNS):
        Artifact.load(folder)
        read_archive(Path(path))


def pack_always(folder: str) -> None:
    for i in range(TURNS):
        archive(Path(folder), t=1.0 + i)


def test_whoever_reads_while_another_writes_finds_one_that_is_whole(tmp_path: Path) -> None:
    temperature().save(tmp_path / "a")
    path = archive(tmp_path)
    together(
        (save_and_stop, str(tmp_path / "a")),
        (pack_always, str(tmp_path)),
        (pack_always, str(tmp_path)),
        (load_always, str(tmp_path / "a"), str(path)),
    )
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


def add(path: str) -> None:
    for _ in range(TURNS):
        Keyring.edit(path, lambda ring: ring.extended())


def test_keys_added_at_once_are_all_there_and_the_first_one_signs(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    first = Keyring.new()
    first.save(path)
    token = first.sign(model="m", version="1", predicted=1, confidence=0.5)
    together((add, str(path)), (add, str(path)))
    ring = Keyring.load(path)
    assert ring.verify(token).model == "m"
    assert len(ring.keys) == 2 * TURNS + 1
    assert ring.active == first.active
    assert [p.name for p in tmp_path.iterdir()] == ["keys.json"]
