"""Ids that requests to a worker name: bound in the ledger, once, and not lost while it is away."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from real_watch import RING

from calib_serve.ledger import Ledger
from calib_serve.ledger.prediction_ids import PredictionIds
from calib_serve.receipts import DAY
from calib_serve.receipts.recorder import Tag
from calib_serve.torchserve._observer import IdWriter


def receipt(predicted: int):
    return RING.sign(model="m", version="1", predicted=predicted, confidence=0.9)


def test_ids_are_bound_and_the_first_prediction_keeps_its(tmp_path: Path) -> None:
    failed: list[int] = []
    writer = IdWriter(str(tmp_path / "l.db"), model="m", failed=failed.append)
    first, second = receipt(1), receipt(2)
    writer.put([Tag(id="a"), Tag(), Tag(id="b")], [first, receipt(0), None])
    assert failed == [1], "a prediction without a receipt has no id"
    writer.put([Tag(id="a")], [second])
    assert failed == [1, 1]
    with closing(Ledger(tmp_path / "l.db")) as ledger:
        assert PredictionIds(ledger).find(["a", "b"]) == [{"m": (str(first),)}, {}]


def test_while_the_ledger_is_locked_they_wait_and_predictions_do_not(tmp_path: Path) -> None:
    failed: list[int] = []
    writer = IdWriter(str(tmp_path / "l.db"), model="m", failed=failed.append)
    with closing(Ledger(tmp_path / "l.db")) as ledger:
        other = sqlite3.connect(tmp_path / "l.db", isolation_level=None)
        other.execute("begin immediate")
        writer.put([Tag(id="a")], [receipt(1)])
        assert failed == [1], "one prediction waited, a little"
        for _ in range(100):
            writer.put([Tag(id="b")], [receipt(1)])
        assert failed == [1], "the others did not: the ledger was not asked again"
        other.execute("rollback")
        writer.flush()
        assert [len(one) for one in PredictionIds(ledger).find(["a", "b"])] == [1, 1]


def test_without_a_ledger_they_are_counted_as_lost(caplog) -> None:
    failed: list[int] = []
    writer = IdWriter(None, model="m", failed=failed.append)
    for _ in range(2):
        writer.put([Tag(id="a")], [receipt(1)])
    assert failed == [1, 1]
    assert len(caplog.messages) == 1


def test_who_binds_ids_keeps_receipts_no_longer_than_labels_are_taken(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "l.db", retention=7 * DAY)):
        IdWriter(str(tmp_path / "l.db"), model="m", failed=lambda _: None).put([Tag(id="a")], [receipt(1)])
    with closing(Ledger(tmp_path / "l.db")) as ledger:
        assert ledger.retention == 7 * DAY


def test_of_several_rows_each_has_an_id_of_its_own() -> None:
    assert [Tag(id="a").of_row(i, 2).id for i in range(2)] == ["a:0", "a:1"]
    assert Tag(id="a").of_row(0, 1).id == "a"
    assert Tag().of_row(1, 2).id == ""
