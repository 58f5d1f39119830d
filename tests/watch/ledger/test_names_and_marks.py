"""Small promises of a ledger: who holds a name, which password is meant, what was published of whom."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from ledgers import accept, entries, make_label

from calib_serve.errors import InputError, LedgerError, ShapeError
from calib_serve.watch.ledger import SqliteLedger, open_ledger
from calib_serve.watch.ledger.address import REDIS_PASSWORD, redis_password
from calib_serve.watch.ledger.leases import Holder
from calib_serve.watch.ledger.sums import Sums, changes

pytestmark = pytest.mark.store
V = ("m", "1")


def test_a_holder_says_process_host_and_second() -> None:
    holder = Holder("id", "host", 7, 1.5)
    assert str(holder) == "process 7 on host since 1970-01-01T00:00:01+00:00"
    assert Holder.unpacked(holder.packed()) == holder


def test_a_file_with_a_password_goes_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("of-the-file\n")
    file.chmod(0o600)
    environment = {REDIS_PASSWORD: "of-the-environment"}
    assert redis_password(file, environment=environment) == "of-the-file"
    assert redis_password(environment=environment) == "of-the-environment"
    assert redis_password(environment={}) is None


def test_a_label_is_wrong_once_and_at_once_unless_something_else_is_said() -> None:
    bare, said = changes("labels", [0.7], bins=5), changes("labels", [0.7], [0.0], [1.0], [0.0], bins=5)
    for one, other in zip(bare, said, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("parts", ["", "?parts=2"])
def test_of_a_version_that_never_published_nothing_was_published(tmp_path: Path, parts: str) -> None:
    with contextlib.closing(open_ledger(f"{tmp_path}/ledger.db{parts}")) as ledger:
        ledger.accept(entries([make_label(i) for i in range(5)]))
        with ledger.emission("c") as first:
            assert first.fresh[V].labels.sum() == 5
        assert set(ledger.published("c", [V, ("m", "none")])) <= {V, ("m", "none")}
        assert ledger.published("c", [V])[V].labels.sum() == 5
        # Whoever knows better what went out says so.
        with ledger.emission("c", before={}) as again:
            assert again.fresh[V].labels.sum() == 5


def test_a_ledger_that_has_counted_is_no_partition(tmp_path: Path) -> None:
    where = tmp_path / "ledger.db"
    with contextlib.closing(open_ledger(f"{where}?parts=2")) as ledger:
        ledger.accept(entries([make_label(1)]))
    first, *others = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    first.unlink()
    for one in others:
        if one.name.startswith(first.name):  # its -wal and -shm
            one.unlink()
    with contextlib.closing(SqliteLedger(first)) as other:
        accept(other, [make_label(2)])
    with pytest.raises(LedgerError, match="without partitions"):
        open_ledger(f"{where}?parts=2")


@pytest.mark.parametrize("parts", ["", "?parts=2"])
def test_what_is_said_when_it_is_opened_is_what_it_has(tmp_path: Path, parts: str) -> None:
    opened = open_ledger(f"{tmp_path}/ledger.db{parts}", bins=7, writer="w", retention=5000.0)
    with contextlib.closing(opened) as ledger:
        assert (ledger.bins, ledger.writer, ledger.retention) == (7, "w", 5000.0)


def test_sums_have_a_place_for_each_sum_and_bin() -> None:
    with pytest.raises(ShapeError, match="15 bins"):
        Sums(15, np.zeros(3))


def test_partitions_are_1_to_256(tmp_path: Path) -> None:
    for wrong in ("0", "257", "x"):
        with pytest.raises(InputError, match="parts"):
            open_ledger(f"{tmp_path}/ledger.db?parts={wrong}")
