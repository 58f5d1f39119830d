"""``verify`` of a ledger whose labels were taken out of the sums, while their receipts stay remembered."""

import pytest
from ledgers import accept, entries, make_label, open_one, remembered

from calib_serve.watch.ledger import noted
from calib_serve.watch.ledger.backup import _retire
from calib_serve.watch.ledger.taken_out import read_taken_out


@pytest.fixture
def counted(ledger):
    """A ledger that counted labels 0 to 4 of version 1 and 5 to 7 of version 2, and the rows of the first."""
    first, second = [make_label(i) for i in range(5)], [make_label(i, version="2") for i in range(5, 8)]
    assert all(accept(ledger, first + second))
    return ledger, [noted(one, writer="") for one in entries(first)]


def test_labels_that_were_taken_back_and_versions_that_were_taken_out_are_not_missing(counted):
    ledger, rows = counted
    assert ledger.take_back(rows[:3], mark="revoked/a", before=b"", after=b"3")
    assert not ledger.take_back(rows[:3], mark="revoked/a", before=b"", after=b"3")
    assert (read_taken_out(ledger), ledger.verify()) == (3, [])
    assert _retire(ledger, ("m", "2")) == 3
    assert (read_taken_out(ledger), ledger.verify()) == (6, [])
    assert ledger.take_back(rows[3:], mark="revoked/a", before=b"3", after=b"5")
    assert (read_taken_out(ledger), ledger.verify()) == (8, [])
    assert remembered(ledger) == 8
    assert accept(ledger, [make_label(i) for i in range(5)]) == [False] * 5


@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_sums_that_are_lost_show_where_labels_were_taken_out_before(store):
    ledger = open_one(*store)
    rows = [noted(one, writer="") for one in entries([make_label(i) for i in range(5)])]
    assert all(accept(ledger, [make_label(i) for i in range(5)]))
    assert ledger.take_back(rows[:2], mark="revoked/a", before=b"", after=b"2")
    assert ledger.verify() == []
    for kind in ("total", "span"):
        for key in ledger._redis.scan_iter(f"{ledger.root}:{kind}:*"):
            ledger._redis.delete(key)
    assert ledger.verify() == [
        "totals: 5 receipts are remembered, and only 0 labels are in the sums, and 2 were taken out"
    ]
    ledger.close()
