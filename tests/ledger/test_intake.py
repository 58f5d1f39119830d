"""Every item of a batch is judged alone, and every refusal is counted with its reason."""

import numpy as np
import pytest

from calib_serve.core.errors import REASONS, LedgerError, Refused
from calib_serve.ledger import Ledger
from calib_serve.ledger import intake as module
from calib_serve.ledger.intake import Intake
from calib_serve.monitor import Detector
from calib_serve.monitor.feed import DriftFeed
from calib_serve.receipts import Keyring, Slices
from calib_serve.receipts.classes import Classes
from calib_serve.receipts.sums import Key

pytestmark = pytest.mark.store

NOW = 1_700_000_000.0
RING = Keyring("k1", {"k1": bytes(32), "k2": bytes([1]) * 32})
MODELS = {("digits", "1.0"): Classes(3, ("zero", "one", "two"))}


def token(ring=RING, **changes):
    facts = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9, "time": NOW - 5}
    return ring.sign(**facts | changes)


def make_intake(path, **options):
    options = {"models": MODELS, "clock": lambda: NOW} | options
    return Intake(RING, Ledger(path, clock=lambda: NOW), **options)


@pytest.fixture
def intake(tmp_path):
    intake = make_intake(tmp_path / "l.db")
    yield intake
    intake.ledger.close()


def test_a_label_is_weighed_by_the_chance_that_it_was_asked_for_and_sliced_as_its_receipt_says(intake):
    items = [
        {"receipt": token(inclusion=0.25, segment="north", group=33), "label": 1},
        {"receipt": token(predicted=2, segment="north"), "label": 1, "segment": "south"},
        {"receipt": token(), "label": 1, "segment": "south"},
    ]
    assert all(one.accepted for one in intake.take(items).outcomes)
    assert intake.ledger.sums()["digits", "1.0"]["calib_feedback_weight_total"].sum() == 6
    labels = {
        (key.kind, key.name): sums.labels.sum()
        for kind in ("segment", "class", "group")
        for key, sums in intake.ledger.slices(kind).items()
    }
    assert labels == {
        ("segment", "north"): 2,  # what the receipt says is signed
        ("segment", "south"): 1,
        ("class", "1"): 2,
        ("class", "2"): 1,
        ("group", "1"): 1,
    }
    weighed = intake.ledger.slices()[Key("digits", "1.0", "north")]
    assert weighed["calib_feedback_weight_total"].sum() == 5


def test_every_refusal_has_its_reason_and_spoils_nothing(intake):
    stranger = Keyring("zz", {"zz": bytes([9]) * 32})
    forger = Keyring("k1", {"k1": bytes([9]) * 32})
    good, revoked = token(), token()
    intake.take([{"receipt": revoked, "label": 1}], source="lab")
    intake.ledger.revoke("lab")
    items = {
        "malformed": [
            {"receipt": good, "label": 1, "replaces": "yes"},
            None,
            7,
            "x",
            {},
            {"receipt": good},
            {"receipt": 5, "label": 1},
            {"receipt": "!", "label": 1},
            {"id": "order-17"},
            {"id": 17, "label": 1},
        ],
        "unknown_key": [{"receipt": token(stranger), "label": 1}],
        "bad_signature": [{"receipt": token(forger), "label": 1}],
        "expired": [{"receipt": token(time=NOW - 31 * 86400), "label": 1}],
        "dated_ahead": [{"receipt": token(time=NOW + 999), "label": 1}],
        "unknown_id": [{"id": "order-17", "label": 1}],
        "unknown_version": [{"receipt": token(version="2.0"), "label": 1}],
        "bad_label": [
            {"receipt": token(), "label": bad} for bad in (3, -1, True, 1.5, "three", None, [1], 10**40)
        ],
        "not_wanted": [{"receipt": token(wanted=False), "label": 1}],
        "forgotten": [{"receipt": token(time=NOW - 29 * 86400), "label": 1}],
        "duplicate": [{"receipt": good, "label": 1}, {"receipt": good, "label": 0}],
        "revoked": [{"receipt": revoked, "label": 0, "replaces": True}],
    }
    intake.ledger.forget(NOW - 28 * 86400)
    assert set(items) == set(REASONS)
    first = {"receipt": good, "label": 1}
    outcomes = intake.take([first, *(item for group in items.values() for item in group)]).outcomes
    assert outcomes[0].accepted
    assert [o.reason for o in outcomes[1:]] == [reason for reason, group in items.items() for _ in group]
    assert intake.refused == {reason: len(group) for reason, group in items.items()}
    assert intake.ledger.sums()["digits", "1.0"].feedback.n == 1


def test_a_label_that_replaces_another_is_counted_as_a_correction(intake):
    item = {"receipt": token(), "label": 1}
    intake.take([item])
    taken = intake.take([{**item, "label": 0, "replaces": True}])
    assert [(one.accepted, one.corrected) for one in taken.outcomes] == [(True, True)]
    assert [one.label for one in taken.counted] == [0]
    assert intake.accepted == intake.corrected == {("digits", "1.0"): 1}


def test_labels_of_an_unknown_version_wait_while_there_is_room_unless_they_replace_others(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "MOST_HELD", 2)
    intake = make_intake(tmp_path / "l.db", hold=True)
    one, two, three = ({"receipt": token(version="2.0"), "label": 1} for _ in range(3))
    known = {"receipt": token(), "label": 1}
    for items, held, reason in (
        ([{**one, "replaces": True}], 0, "unknown_version"),
        ([one], 1, None),
        ([two, three], 1, "unknown_version"),
        ([known, two], 2, None),
        ([three], 2, "unknown_version"),
    ):
        assert intake.take(items).outcomes[-1].reason == reason
        assert intake.ledger.held.counts() == ({("digits", "2.0"): held} if held else {})
    assert intake.accepted == {("digits", "1.0"): 1}
    intake.ledger.close()


def test_a_receipt_of_a_clock_that_is_ahead_is_noted(intake):
    for ahead, noted in ((0.0, 0.0), (1.0, 0.0), (1.5, 1.5), (999.0, 999.0)):
        intake.take([{"receipt": token(time=NOW + ahead), "label": 1}])
        assert intake.ahead[0] == pytest.approx(noted, abs=0.01)


def test_labels_count_in_the_slices_that_are_given(tmp_path):
    intake = make_intake(tmp_path / "l.db", slices=Slices({("digits", "1.0"): 3}, segments=["north"]))
    items = [{"receipt": token(segment=name), "label": 1} for name in ("north", "south")]
    assert all(one.accepted for one in intake.take(items).outcomes)
    assert {key.name for key in intake.ledger.slices("segment")} == {"north", "other"}
    intake.ledger.close()


def test_all_processes_of_a_ledger_feed_one_detector_which_survives_restarts(tmp_path):
    rng = np.random.default_rng(0)
    c = rng.uniform(0.5, 1, 400)
    right = rng.random(400) < c - 0.2
    times = NOW - 400 + np.arange(400)
    items = [
        {"receipt": token(confidence=float(p), time=float(when)), "label": 1 if ok else 0}
        for p, ok, when in zip(c, right, times, strict=True)
    ]
    alone = Detector(arl=1000)
    alarms = alone.update(c, right, time=times, predicted=np.ones(400, int))
    assert alarms

    for at in range(0, 400, 50):  # another process each time
        intake = make_intake(tmp_path / "l.db")
        intake.take(items[at : at + 50])
        intake.take(items[at : at + 50])  # replayed: refused, and not shown to the detector again
        feed = DriftFeed(intake.ledger, detector=lambda: Detector(arl=1000), maturity=0.0, clock=lambda: NOW)
        feed.tick()
        state = intake.ledger.followers.states("detector", ("digits", "1.0"))[0].value
        counts = {of: one.alarms for of, one in intake.ledger.followers.progress().items()}
        latest = feed.incidents.latest()[-1]
        intake.ledger.close()
    assert counts == {("digits", "1.0"): len(alarms)}
    assert (latest.direction, latest.onset) == ("overconfident", alarms[0].since_time)
    assert Detector.restore(state).labels == 400
    assert Detector.restore(state).evidence == pytest.approx(alone.evidence, rel=1e-12)


def test_a_ledger_that_fails_counts_nothing_and_the_batch_can_be_sent_again(intake):
    item = {"receipt": token(), "label": 1}
    accept, intake.ledger.accept = intake.ledger.accept, _broken
    with pytest.raises(LedgerError):
        intake.take([item])
    intake.ledger.accept = accept
    taken = intake.take([item, item])
    assert [one.accepted for one in taken.outcomes] == [True, False]
    assert [one.label for one in taken.counted] == [1]


def _broken(labels, **_):
    raise LedgerError("disk on fire")


def refused(classes, *given):
    with pytest.raises(Refused) as error:
        classes.find(*given)
    return error.value.reason


@pytest.mark.parametrize("no", [0, 2])
def test_a_label_of_several_is_no_or_yes_of_the_label_that_was_decided(no):
    classes = Classes.of_labels(2, ("cat", "dog"))
    assert (classes.count, classes.pairs, len(classes.names)) == (4, True, 4)
    for predicted in (no, no + 1):
        for label in (0, False, "0", "false", "FALSE"):
            assert classes.find(label, predicted) == no
        for label in (1, True, "1", "true", "True"):
            assert classes.find(label, predicted) == no + 1
        for i in (0, 1):
            assert classes.find(classes.names[no + i], predicted) == no + i
            assert classes.find(classes.names[no + i], predicted, "name") == no + i
            assert refused(classes, classes.names[no + i], predicted, "id") == "bad_label"
            assert classes.find(str(i), predicted, "id") == no + i
        for label in (2, -1, "yes", None, 0.5, [1], classes.names[2 - no]):
            assert refused(classes, label, predicted) == "bad_label"
        assert refused(classes, 1, predicted, "name") == "bad_label"
        assert refused(classes, "true", predicted, "name") == "bad_label"
    assert refused(classes, 1, 4) == "bad_label"  # of no label


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"receipt": token(), "label": 1, "by": "class"}, "malformed"),
        ({"receipt": token(), "label": 1, "segment": 5}, "malformed"),
        ({"receipt": token(), "label": 1, "segment": "x" * 10_000}, "malformed"),
        ({"receipt": token(), "label": 1, "by": None, "segment": ""}, None),
        ({"receipt": token(), "label": 1, "by": "id"}, None),
        ({"receipt": token(), "label": 1, "id": "order 7"}, None),  # the receipt counts alone
        ({"receipt": "", "label": 1, "id": "order 7"}, "unknown_id"),
        ({"receipt": None, "label": 1, "id": ""}, "malformed"),
        ({"label": 1, "id": "order 7"}, "unknown_id"),
        ({"label": 1}, "malformed"),
    ],
)
def test_an_item_is_counted_or_refused_for_what_is_wrong(intake, item, reason):
    (outcome,) = intake.take([item]).outcomes
    assert (outcome.accepted, outcome.reason) == (reason is None, reason)
    assert outcome.as_dict() == (
        {"accepted": True}
        if reason is None
        else {"accepted": False, "reason": reason, "message": outcome.message}
    )


def test_labels_of_an_incident_are_counted_on_over_ticks(intake):
    feed = DriftFeed(intake.ledger, detector=lambda: Detector(arl=1e6), maturity=0.0, clock=lambda: NOW)
    alone, excess, alarms = Detector(arl=1e6), [], []
    for tick, n in enumerate((3, 12, 5, 4)):
        times = [NOW - 900 + 100 * tick + i for i in range(n)]
        items = [{"receipt": token(time=when), "label": 0} for when in times]
        assert all(one.accepted for one in intake.take(items).outcomes)
        feed.tick()
        alarms += alone.update([0.9] * n, [0] * n, time=times, predicted=[1] * n)
        excess += [0.9] * n
    assert alarms[0].label > 3
    (kept,) = feed.incidents.latest()
    assert kept.alarms == len(alarms)
    assert kept.labels_since == len(excess) - alarms[-1].label
    assert kept.labels == len(excess) - alarms[0].since_label + 1
    assert kept.excess == pytest.approx(0.9 * kept.labels)
    assert kept.onset == alarms[0].since_time
    assert (
        Detector.restore(intake.ledger.followers.states("detector", ("digits", "1.0"))[0].value).state()
        == alone.state()
    )
