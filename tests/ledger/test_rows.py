"""A label's row: what its receipt says, as it is written and as it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ledgers import accept, ask, entries, make_label, revoked
from sqlalchemy import event

from calib_serve.core.errors import LedgerError
from calib_serve.ledger import Entry, Ledger
from calib_serve.ledger.entries import LabelRecord, Shadowed
from calib_serve.ledger.rows import StoredLabel, mark_rows
from calib_serve.receipts import DAY, Label, Receipt, Shadow
from calib_serve.receipts.sums import Key, Sums

pytestmark = pytest.mark.store

NOW = 1_700_000_000.5
V = ("m", "1")
SLICES = (Key(*V, "north"), Key(*V, "2", "class"), Key(*V, "lab", "source"))
NONCES = [bytes([i]) * 10 for i in range(4)]


def entry(i: int, *, label: int, shadow: Shadow | None, slices: tuple[Key, ...] = SLICES) -> Entry:
    receipt = Receipt("k", *V, NOW, NONCES[i], 2, 0.75, "north", 0.25, group=7, shadow=shadow)
    return Entry(Label(receipt, label), NOW + 90, slices, "lab")


GIVEN = [
    entry(0, label=2, shadow=Shadow(2, 0.5, b"\x0a\x1b\x2c\x3d")),
    entry(1, label=1, shadow=Shadow(1, 0.625, b"\x0a\x1b\x2c\x3d")),
    entry(2, label=1, shadow=None, slices=()),
]


def test_a_row_holds_what_the_receipt_and_the_label_say(ledger: Ledger, url: str) -> None:
    assert ledger.accept(GIVEN[:2]) == ["counted", "counted"]
    ledger.accept(GIVEN[2:], detect=False)
    (version,) = ask(url, "select id from version where model = 'm' and version = '1'")[0]
    rows = [tuple(row) for row in ask(url, "select * from label order by receipt")]
    slices = '[["class","2"],["source","lab"]]'

    def row(
        i: int, label: int, slices: tuple[str | None, str], shadow: tuple[object, ...], fed: bool
    ) -> object:
        at = (NOW, NONCES[i], version, NOW + 90)
        return (*at, 0.75, 2, label, 0.25, 7, False, fed, False, "lab", *slices, "", *shadow)

    assert rows == [
        row(0, 2, ("north", slices), (0.5, True, True, "0a1b2c3d"), False),
        row(1, 1, ("north", slices), (0.625, True, False, "0a1b2c3d"), False),
        row(2, 1, (None, "[]"), (None, None, None, None), True),
    ]
    seen = ask(url, "select receipt, correct, segment from labels order by receipt")
    assert seen == [(NONCES[i].hex(), i == 0, "north" if i < 2 else "") for i in range(3)]


def test_a_row_is_read_as_it_was_written(ledger: Ledger) -> None:
    ledger.accept(GIVEN)
    with ledger.transaction():
        taken = ledger.followers.take(V, until=np.inf, most=9)
    shadows = [Shadowed(0.5, True, True, "0a1b2c3d"), Shadowed(0.625, True, False, "0a1b2c3d"), None]
    assert taken == [
        LabelRecord(*V, NOW, NONCES[i], NOW + 90, 0.75, i == 0, 2, 0.25, 7, SLICES if i < 2 else (), shadow)
        for i, shadow in enumerate(shadows)
    ]


def test_a_label_counts_in_its_slices_over_all_time_and_in_its_span_before_and_after_it_is_rolled_up(
    ledger: Ledger,
) -> None:
    ledger.accept(GIVEN)
    expected = Sums.labelled([0.75] * 2, [1, 0], weight=[4, 4], delay=[90, 90])
    for _ in range(2):
        assert ledger.slices(None) == dict.fromkeys(SLICES, expected)
        dated = list(ledger.dated(NOW - DAY, NOW + DAY))
        assert {one.key: one.sums for one in dated} == dict.fromkeys(SLICES, expected)
        assert {(one.start, one.width) for one in dated} == {(1_699_999_800.0, 300.0)}
        assert ledger.roll_up() in (3, 0)
    assert ledger.roll_up() == 0


def test_a_ledger_counts_in_as_many_bins_as_it_was_told(url: str) -> None:
    ledger = Ledger(url, bins=4)
    labels = [make_label(i, confidence=c, when=NOW) for i, c in enumerate((0.2, 0.3, 0.6, 1.0))]
    accept(ledger, labels)
    for _ in range(2):
        assert ledger.sums()[V].labels.tolist() == [1, 1, 1, 1]
        ledger.roll_up()
    ledger.close()


def test_as_many_rows_as_there_are_go_in_steps(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calib_serve.ledger.ledger.AT_ONCE", 4)
    ledger.accept(entries([make_label(i, when=NOW) for i in range(10)], source="lab"))
    at_once = []

    def counted(store: object, connection: object, marked: list[StoredLabel], *flags: str) -> None:
        at_once.append(len(marked))
        mark_rows(store, connection, marked, *flags)

    monkeypatch.setattr("calib_serve.ledger.ledger.mark_rows", counted)
    assert ledger.roll_up() == 10
    assert revoked(ledger, "lab") == {V: 10}
    assert at_once == [4, 4, 2] * 2
    assert not ledger.sums()[V].vector.any()


def test_a_roll_up_ends_while_labels_keep_coming(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    rolled, numbers = ledger._rolled, iter(range(100))

    def and_another_comes() -> int:
        done = rolled()
        accept(ledger, [make_label(next(numbers))])
        return done

    accept(ledger, [make_label(next(numbers))])
    monkeypatch.setattr(ledger, "_rolled", and_another_comes)
    assert ledger.roll_up() == 1


def test_rows_are_written_in_the_order_of_their_keys_so_that_no_two_batches_wait_for_each_other(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path / "l.db")
    told: list[tuple[str, list[tuple[object, ...]]]] = []
    event.listen(ledger.database._engine, "before_cursor_execute", lambda *of: told.append((of[2], of[3])))
    labels = [make_label(i, when=NOW - i * DAY, confidence=0.1 * i, version=str(i)) for i in (3, 1, 4, 0, 2)]
    accept(ledger, labels)
    ledger.roll_up()
    written = {}
    for statement, rows in told:
        if statement.lower().startswith("insert into ") and len(rows) > 4:
            written[statement.split()[2]] = [
                row[:2] if "label" in statement[:20] else row[:6] for row in rows
            ]
    assert written.keys() == {"label", "tally", "delay", "span"}
    for rows in written.values():
        assert rows == sorted(rows)
    ledger.close()


def test_a_damaged_row_is_said_and_not_left_out(ledger: Ledger, url: str) -> None:
    accept(ledger, [make_label(1)])
    ask(url, "update label set slices = '[]]'")
    with pytest.raises(LedgerError, match=r"a label in .* is damaged"):
        ledger.sums()
