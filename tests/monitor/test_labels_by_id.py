"""Labels that name their prediction by the user's own id, from the request that counted it on."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ledgers import NOW, ask, sweep
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from real_servers import Server
from real_watch import RING, make_watch, talk_to

from calib_serve import Reporter
from calib_serve.core.errors import Refused
from calib_serve.ledger import Ledger
from calib_serve.ledger.prediction_ids import Binding, PredictionIds, receipt_of
from calib_serve.receipts import DAY, Keyring

pytestmark = pytest.mark.store


def prediction(id_="", **more):
    return {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9, "id": id_} | more


@pytest.fixture
def watch(tmp_path):
    with make_watch(tmp_path) as watch:
        yield watch


@pytest.fixture
def client(watch):
    with talk_to(watch) as client:
        yield client


def predict(client, *items, **headers):
    return client.post("/v1/predictions", json={"items": items}, headers=headers).json()["items"]


def label(client, *items):
    content = json.dumps({"items": items})
    headers = {"Content-Type": "application/json"}
    return client.post("/v1/labels", content=content, headers=headers).json()["items"]


def scrape(client):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }


def test_a_label_may_name_the_id_that_its_prediction_came_with(client, watch):
    answers = predict(client, prediction("order-17"), prediction("order-18"), prediction())
    assert all(set(one) == {"receipt"} for one in answers)
    sent = [{"id": "order-17", "label": 1}, {"id": "order-18", "label": "two", "by": "name", "model": "m"}]
    assert label(client, *sent) == [{"accepted": True}] * 2
    again = label(client, *sent, {"receipt": answers[0]["receipt"], "label": 1})
    assert [one["reason"] for one in again] == ["duplicate"] * 3
    assert watch.ledger.sums()["m", "1"].labels.sum() == 2
    found = scrape(client)
    assert found["calib_prediction_ids_total", "bound"] == watch.ids.count() == 2


def test_a_label_of_an_unknown_id_is_refused_for_that(client):
    predict(client, prediction("order-17"))
    wrong = [{"id": one, "label": 1} for one in ("order-18", "", 17, None, "x" * 256, ["a"], "\ud800")]
    wrong += [{"id": "order-17", "label": 1, "model": "other"}, {"id": "order-17", "label": 1, "model": 7}]
    reasons = [one["reason"] for one in label(client, *wrong)]
    assert reasons == ["unknown_id", *["malformed"] * 6, "unknown_id", "malformed"]
    assert scrape(client)["calib_feedback_refused_total", "unknown_id"] == 2
    assert label(client, {"receipt": "", "id": "order-17", "model": "", "label": 1}) == [{"accepted": True}]


def test_the_first_prediction_of_an_id_keeps_it_and_the_second_is_counted_and_told(client, watch):
    (first,), (second,) = predict(client, prediction("a")), predict(client, prediction("a", predicted=2))
    assert "id_bound" not in first
    assert second["id_bound"] is False
    assert label(client, {"id": "a", "label": 1}) == [{"accepted": True}]
    assert watch.ledger.sums()["m", "1"]["calib_feedback_correct_total"].sum() == 1  # the first said 1
    assert label(client, {"receipt": second["receipt"], "label": 2}) == [{"accepted": True}]
    found = scrape(client)
    assert found["calib_prediction_ids_total", "conflict"] == 1
    assert sum(n for name, n in found.items() if name[0] == "calib_predictions_total") == 2


def test_a_batch_that_is_sent_again_has_the_same_ids_also_after_keys_changed(client, watch):
    batch, key = [prediction("a"), prediction("b")], {"Idempotency-Key": "k1"}
    once = predict(client, *batch, **key)
    assert predict(client, *batch, **key) == once
    watch.keyring = watch.intake.keyring = Keyring("k2", {"k2": bytes([1]) * 32, "k": bytes(32)})
    again = predict(client, *batch, **key)
    assert again != once
    assert all("id_bound" not in one for one in again)
    assert scrape(client)["calib_prediction_ids_total", "conflict"] == 0
    assert label(client, {"id": "a", "label": 1}) == [{"accepted": True}]
    assert label(client, {"receipt": again[0]["receipt"], "label": 1})[0]["reason"] == "duplicate"


def test_a_prediction_that_was_signed_elsewhere_is_bound_to_its_own_receipt(client, watch):
    facts = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
    one, two, unwanted = RING.sign(**facts), RING.sign(**facts), RING.sign(**facts, wanted=False)
    key = {"Idempotency-Key": "k1"}
    for _ in range(2):
        answers = predict(client, {"receipt": one, "id": "a"}, {"receipt": two}, **key)
        assert answers == [{"accepted": True}] * 2
    taken = predict(client, {"receipt": two, "id": "a"}, {"receipt": unwanted, "id": "b"})
    assert taken == [{"accepted": True, "id_bound": False}, {"accepted": True}]
    outcomes = label(client, {"id": "a", "label": 1}, {"receipt": one, "label": 1}, {"id": "b", "label": 1})
    assert [one.get("reason") for one in outcomes] == [None, "duplicate", "not_wanted"]
    assert watch.ledger.sums()["m", "1"].labels.sum() == 1


@pytest.mark.server
def test_a_reporter_sends_ids_and_labels_come_by_them(tmp_path):
    with Server(tmp_path) as server:
        options = {"keyring": tmp_path / "keys.json", "watch": server.url}
        with Reporter(3, model="digits", version="1.0", registry=CollectorRegistry(), **options) as reporter:
            probs = np.tile([0.1, 0.8, 0.1], (300, 1))
            receipts = reporter.served(probs, id=[f"order-{i}" for i in range(300)])
            assert reporter.flush() == 0
            assert reporter.label(id="order-17", label=1).accepted
            items = [{"id": f"order-{i}", "label": 1} for i in range(300)]
            outcomes = reporter.labels(
                [*items, {"receipt": receipts[0], "label": 1}, {"id": "?", "label": 1}]
            )
        assert sum(one.accepted for one in outcomes) == 299
        assert [outcomes[17].reason, *(one.reason for one in outcomes[300:])] == [
            *("duplicate", "duplicate", "unknown_id")
        ]


def test_ids_that_cannot_be_kept_stop_no_prediction_and_no_label_of_a_receipt(client, watch, tmp_path):
    (one,) = predict(client, prediction("a"))
    ask(str(tmp_path / "l.db"), "alter table prediction_id rename to gone")
    (two,) = predict(client, prediction("b"))
    assert two["id_bound"] is False
    assert label(client, {"receipt": one["receipt"], "label": 1}) == [{"accepted": True}]
    # Whether it is known cannot be said: nothing of the batch is counted, and all may be sent again.
    sent = client.post("/v1/labels", json=[{"id": "a", "label": 1}, {"receipt": two["receipt"], "label": 1}])
    assert sent.status_code == 503
    assert label(client, {"receipt": two["receipt"], "label": 1}) == [{"accepted": True}]
    found = scrape(client)
    assert found["calib_prediction_ids_total", "failed"] == 1
    assert found["calib_monitor_errors_total", "ids"] == 1


def test_an_id_stands_for_the_first_receipt_whoever_binds_it_and_its_text_is_not_kept(url):
    facts = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
    ledgers = [Ledger(url) for _ in range(4)]
    offered = [[Binding("m", f"patient Ana {i}", RING.sign(**facts)) for i in range(50)] for _ in ledgers]

    def bind(i):
        order = offered[i] if i % 2 else offered[i][::-1]
        return PredictionIds(ledgers[i]).bind(order, now=NOW)

    with ThreadPoolExecutor(4) as pool:
        bound = list(pool.map(bind, range(4)))
    assert sum(map(sum, bound)) == 50
    found = PredictionIds(ledgers[0]).find([f"patient Ana {i}" for i in range(50)] + ["nobody"])
    assert [len(one) for one in found] == [1] * 50 + [0]
    bound = {receipt for one in found for of in one.values() for receipt in of}
    assert bound <= {one.receipt for of in offered for one in of}
    assert not ask(url, "select * from prediction_id where id_hash like '%Ana%'")
    [one.close() for one in ledgers]


def test_an_id_may_name_predictions_of_two_models(ledger):
    ids, signed = PredictionIds(ledger), {}
    assert ids.count() == 0
    for model in ("m", "n"):
        signed[model] = RING.sign(model=model, version="1", predicted=1, confidence=0.9)
        assert ids.bind([Binding(model, "a", signed[model])], now=NOW) == [True]
    (found,) = ids.find(["a"])
    assert receipt_of(found, id="a", model="n") == signed["n"]
    for model, reason in ((None, "malformed"), ("o", "unknown_id"), (7, "malformed")):
        with pytest.raises(Refused) as refusal:
            receipt_of(found, id="a", model=model)
        assert refusal.value.reason == reason


def test_ids_leave_when_labels_of_their_predictions_are_not_accepted_any_more(ledger):
    ids = PredictionIds(ledger)
    ids.bind([Binding("m", "a", "old")], now=NOW - 31 * DAY), ids.bind([Binding("m", "b", "new")], now=NOW)
    sweep(ledger, NOW)
    assert ids.find(["a", "b"]) == [{}, {"m": ("new",)}]
