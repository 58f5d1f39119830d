"""Whose row is whose, and which reply shows it, by hand-made batches."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledgers import by_clock

from calib_serve import Keyring
from calib_serve.core.errors import ModelError
from calib_serve.ledger import Ledger
from calib_serve.monitor import Watch, Watched
from calib_serve.monitor.checks import counting_checks
from calib_serve.receipts.classes import Classes
from calib_serve.receipts.environment import LEDGER
from calib_serve.receipts.series import BY_NAME
from calib_serve.scores import Form
from calib_serve.torchserve._bound import REASONS, Bond, Passing, UnmatchedShare
from calib_serve.torchserve._channel import Emitter
from calib_serve.torchserve._observer import Observer
from calib_serve.torchserve._predictions import INVALID, Row
from calib_serve.torchserve.shown import Readings, chosen_rows, read_shown

K = 3


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z)
    return e / e.sum(1, keepdims=True)


def passing(outputs: Any = "logits", part: int | None = None) -> Passing:
    def calibrate(scores: np.ndarray) -> tuple[list[Any], np.ndarray]:
        p = scores if outputs == "probabilities" else softmax(scores)
        return [Row(one, one) for one in p], p

    return Passing(calibrate, classes=K, form=Form(), outputs=outputs, order=lambda: part)


def declare(made: Passing, scores: Any, rows: Any) -> Any:
    return made.declared(lambda found, **_: found, (scores,), {"rows": rows})


def shown(reply: Any) -> Readings:
    return read_shown([(reply(p), p) for p in chosen_rows(K)])


def named(p: np.ndarray) -> dict[str, Any]:
    return {"class": int(p.argmax()), "score": float(p.max())}


def label(p: np.ndarray) -> int:
    return int(p.argmax())


def rows_of(*tops: int, sure: float = 0.7) -> list[list[Row]]:
    found = []
    for top in tops:
        p = np.full(K, (1 - sure) / (K - 1))
        p[top] = sure
        found.append([Row(p, p)])
    return found


def test_declared_rows_go_to_their_requests_in_any_order_and_number() -> None:
    made, z = passing(), np.random.default_rng(0).normal(size=(5, K))
    declare(made, z[:3], [2, None, 0])
    declare(made, z[3:], np.array([2, 2]))
    own = made.owned(3, lambda rows: None)
    assert own is not None
    found = [[row.probs.tolist() for row in rows] for rows in own]
    p = softmax(z).tolist()
    assert found == [[p[2]], [], [p[0], p[3], p[4]]]


@pytest.mark.parametrize(
    ("rows", "part", "said"),
    [
        ([0], None, "1 of 2 rows"),
        ([0, 3], None, "request 3"),
        ([-1, 0], None, "request -1"),
        ([0, 1], 0, "micro"),
    ],
)
def test_declared_rows_that_cannot_be_are_refused_with_what_they_are(rows: Any, part: Any, said: str) -> None:
    made = passing(part=part)
    out = declare(made, np.zeros((2, K)), rows)
    assert made.failed is None
    assert out.shape == (2, K), "the scores are calibrated all the same"
    with pytest.raises(ModelError, match=said):
        made.owned(3, lambda rows: [1] * rows)


def test_a_batch_in_which_nothing_was_found_has_no_rows_and_no_trouble() -> None:
    made = passing()
    assert declare(made, np.zeros((0, K)), []).shape == (0, K)
    assert made.failed is None
    assert made.owned(2, lambda rows: None) == [[], []]
    assert Bond(shown(named)).reasons([[], []], [[], []], declared=True) == ["", ""]


@pytest.mark.parametrize("outputs", ["probabilities", "logits"])
def test_what_a_handler_changes_in_place_is_not_the_row_of_its_receipt(outputs: Any) -> None:
    made = passing(outputs)
    scores = softmax(np.random.default_rng(0).normal(size=(2, K)))
    passed = made(lambda: scores, (), {})
    passed[:] = [[0.1, 0.2, 0.7]] * 2
    own = made.owned(2, lambda rows: [1] * rows)
    assert own is not None
    assert all(not np.allclose(rows[0].probs, [0.1, 0.2, 0.7]) for rows in own)


def test_of_labels_alone_one_that_contradicts_puts_the_order_in_doubt_from_then_on() -> None:
    bond = Bond(shown(label))
    assert bond.reasons(rows_of(0, 1, 1), [0, 1, 1], declared=False) == ["", "", ""]
    assert bond.reasons(rows_of(0, 1, 1), [1, 0, 1], declared=False) == ["class", "class", "rows"]
    assert bond.reasons(rows_of(1, 1), [1, 1], declared=False) == ["rows", "rows"]
    assert bond.reasons(rows_of(2), [2], declared=False) == [""], "one alone has no order"
    assert bond.reasons(rows_of(1, 1), [1, 1], declared=True) == ["", ""]


def test_numbers_that_agree_hold_though_another_of_the_batch_contradicts() -> None:
    own = rows_of(0, 1)
    replies = [named(own[0][0].probs), {"class": 2, "score": 0.7}]
    assert Bond(shown(named)).reasons(own, replies, declared=False) == ["", "class"]


def test_what_shows_nothing_has_a_receipt_only_where_it_is_declared() -> None:
    bond = Bond(Readings())
    assert bond.reasons(rows_of(0, 1), [b"\x00", b"\x01"], declared=False) == ["nothing", "nothing"]
    assert bond.reasons(rows_of(0, 1), [b"\x00", b"\x01"], declared=True) == ["", ""]
    assert bond.reasons(rows_of(0, 1), [b"\x00"], declared=True) == ["rows", "rows"]


def test_a_request_of_several_rows_needs_as_many_parts_in_its_reply() -> None:
    bond = Bond(shown(lambda p: {"faces": [named(p)]}))
    (first,), (second,) = rows_of(0), rows_of(2, sure=0.9)
    rows = [*first, *second]
    parts = [named(row.probs) for row in rows]
    assert bond.reasons([rows], [{"faces": parts}], declared=False) == [""]
    assert bond.reasons([rows], [{"faces": parts[::-1]}], declared=True) == ["class"]
    assert bond.reasons([first], [{"faces": parts}], declared=False) == ["rows"], "two faces, one receipt"
    assert bond.reasons([rows], [{"faces": parts[:1]}], declared=True) == ["rows"]


def test_a_row_that_is_not_finite_speaks_for_nothing() -> None:
    assert Bond(shown(named)).reasons([[INVALID]], [{"class": None}], declared=False) == [""]


def test_the_check_of_replies_fails_above_its_share_and_is_well_again_below() -> None:
    share = UnmatchedShare()
    assert share.update([True] * 10)
    assert not share.update([True])
    assert not share.update([False] * 489)
    assert share.update([False])


def test_unmatched_predictions_are_counted_from_zero_on_and_the_trouble_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent: list[str] = []
    emitter = Emitter(write=sent.append, interval=3600, clock=lambda: 0.0)
    made = Observer(emitter, model="m", version="1", bins=15, keyring=None)
    assert BY_NAME["calib_unmatched_total"].labels == ("model", "version", "reason")
    assert all(
        f"calib_unmatched_total.Count:0.0|#model:m,version:1,reason:{one}" in sent[0] for one in REASONS
    )
    with caplog.at_level(logging.WARNING):
        made.unmatched([("class", 2)] * 11 + [("", 1)])
        made.unmatched([("class", 2)] * 11)
    made.flush()
    text = "".join(sent)
    assert "calib_unmatched_total.Count:44.0|#model:m,version:1,reason:class" in text
    assert len([one for one in caplog.records if "without a receipt" in one.message]) == 1


def test_a_watch_on_the_same_ledger_is_degraded_while_replies_do_not_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger.db"))
    Keyring.new().save(tmp_path / "keyring.json")
    ledger, ring = Ledger(str(tmp_path / "ledger.db")), Keyring.load(tmp_path / "keyring.json")
    with Watch(ring, ledger, models={("m", "1"): Watched(Classes(3))}) as watch:
        watch.checks.run()
        assert watch.checks.reasons()["replies"] is None
        made = Observer(
            Emitter(write=lambda text: None, interval=3600), model="m", version="1", bins=15, keyring=None
        )
        made.unmatched([("class", 1)] * 11)
        made.settle()
        watch.checks.run()
        assert watch.checks.status == "degraded"
        assert "1 servers answer without receipts" in str(watch.checks.reasons(public=True)["replies"])
        assert watch.checks.reasons()["options"] is None, "no option of the watch's"
        by_clock(ledger, lambda: time.time() + 301)
        later = counting_checks(ledger, watch.intake, program="later", ttl=86400.0)
        (replies,) = [check for check in later if check.name == "replies"]
        assert replies.run() is None
