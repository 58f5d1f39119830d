"""Two processes at the same file at once: one after the other, and never a mixture."""

from __future__ import annotations

from pathlib import Path

import pytest
from injection import CONTEXT
from ledgers import accept, make_label, open_one
from sizes import sized
from small_models import archive, temperature

from calib_serve import Artifact, Keyring
from calib_serve.fuse.torchserve.archive import read_archive

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


def count(kind: str, place: object, start: int) -> None:
    ledger = open_one(kind, place, timeout=60)
    for at in range(start, start + 200, 10):
        accept(ledger, [make_label(i) for i in range(at, at + 10)])
    ledger.close()


def test_writers_of_one_ledger_with_overlapping_labels_lose_and_double_nothing(store) -> None:
    together(*((count, *store, 100 * k) for k in range(3)))
    ledger = open_one(*store)
    assert ledger.sums()["m", "1"].feedback.n == 400
    ledger.close()


def publish(kind: str, place: object, told: str) -> None:
    """Publishes what is fresh, again and again, as the workers of a server that is restarted do."""
    ledger, sent = open_one(kind, place, timeout=60), 0.0
    for _ in range(TURNS):
        with ledger.emission("torchserve") as (fresh, _):
            sent += sum(sums.feedback.n for sums in fresh.values())
    Path(told).write_text(repr(sent))
    ledger.close()


def test_two_publishers_of_one_ledger_publish_each_label_once(store, tmp_path: Path) -> None:
    together(
        (count, *store, 0),
        (publish, *store, str(tmp_path / "one")),
        (publish, *store, str(tmp_path / "two")),
    )
    ledger = open_one(*store)
    with ledger.emission("torchserve") as (fresh, _):
        rest = sum(sums.feedback.n for sums in fresh.values())
    sent = [float((tmp_path / name).read_text()) for name in ("one", "two")]
    assert sum(sent) + rest == 200
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
