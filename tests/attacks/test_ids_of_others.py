"""Guessed ids: who may label learns nothing of the ids of others' predictions, and labels none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from fastapi.testclient import TestClient
from ledgers import NOW
from real_watch import RING, make_watch, talk_to

from calib_serve.core.errors import InputError
from calib_serve.ledger import Ledger
from calib_serve.ledger.prediction_ids import Binding, PredictionIds
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts.classes import Classes
from calib_serve.web import Token

pytestmark = pytest.mark.store

SCOPES = {
    "shop": "predict,label",
    "rival": "predict,label",
    "lab": "label",
    "desk": "label,ids",
    "owner": "predict,label,ids,scrape,admin",
}
TOKENS = [Token.read(f"{name} {scopes} {name}-has-a-long-token") for name, scopes in SCOPES.items()]


@pytest.fixture
def watch(url: str) -> Iterator[Watch]:
    models = {("m", version): Watched(Classes(3, ("zero", "one", "two"))) for version in "12"}
    with Watch(RING, Ledger(url), models=models) as watch:
        yield watch


@pytest.fixture
def client(watch: Watch) -> Iterator[TestClient]:
    with talk_to(watch, tokens=TOKENS) as client:
        yield client


def post(client: TestClient, what: str, who: str, *items: Any) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {who}-has-a-long-token"}
    answer = client.post(f"/v1/{what}", json={"items": items}, headers=headers)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def predict(client: TestClient, who: str, *ids: str, **more: Any) -> list[dict[str, Any]]:
    one = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9} | more
    return post(client, "predictions", who, *({**one, "id": id} for id in ids))


def label(client: TestClient, who: str, *ids: str, **more: Any) -> list[str]:
    """What became of the label of each id."""
    told = post(client, "labels", who, *({"id": id, "label": 1, **more} for id in ids))
    return ["counted" if one["accepted"] else one["reason"] for one in told]


def labelled(watch: Watch) -> float:
    return sum(sums.labels.sum() for sums in watch.ledger.sums().values())


def test_others_ids_are_answered_as_ids_that_nobody_has(client: TestClient, watch: Watch) -> None:
    predict(client, "shop", "order-1", "order-2")
    for who in ("lab", "rival"):
        for more in ({}, {"model": "m"}, {"model": "n"}, {"segment": "x"}, {"label": 99}):
            told = [
                json.dumps(post(client, "labels", who, {"id": id, "label": 1, **more})).replace(id, "ID")
                for id in ("order-1", "order-9")
            ]
            assert told[0] == told[1], (who, more)
            assert "unknown_id" in told[0]
    assert labelled(watch) == 0
    assert label(client, "shop", "order-1") == ["counted"]
    assert label(client, "rival", "order-1") == ["unknown_id"], "that it was labelled is not told either"


def test_as_much_is_asked_of_the_ledger_for_an_id_of_others_as_for_none(
    client: TestClient, watch: Watch
) -> None:
    predict(client, "shop", "order-1")
    asked: list[str] = []
    engine = watch.ledger.database._engine
    sql.event.listen(engine, "after_cursor_execute", lambda *given: asked.append(given[2]))
    for id in ("order-1", "order-9"):
        label(client, "lab", id)
        asked.append("next")
    cut = asked.index("next")
    assert any("prediction_id" in one for one in asked[:cut])
    assert asked[:cut] == asked[cut + 1 : -1]


def test_nobody_takes_the_id_of_another_first(client: TestClient, watch: Watch) -> None:
    (early,) = predict(client, "rival", "order-1", predicted=2)
    (own,) = predict(client, "shop", "order-1")
    assert "id_bound" not in early
    assert "id_bound" not in own, "each has ids of its own, and is told nothing of others'"
    assert label(client, "shop", "order-1") == ["counted"]
    found = watch.ledger.sums()["m", "1"]
    assert found["calib_feedback_correct_total"].sum() == 1, "the label is that of its own prediction"
    assert label(client, "rival", "order-1", label=2) == ["counted"]
    (again,) = predict(client, "shop", "order-1")
    assert again["id_bound"] is False, "of one source the first prediction keeps an id"


def test_the_scope_ids_labels_what_others_sent_but_guesses_not_which_of_two(
    client: TestClient, watch: Watch
) -> None:
    predict(client, "shop", "order-1", "order-2"), predict(client, "rival", "order-2")
    predict(client, "shop", "order-2", version="2")
    assert label(client, "desk", "order-1", "order-2", "order-3") == ["counted", "malformed", "unknown_id"]
    assert labelled(watch) == 1
    assert label(client, "owner", "order-1") == ["duplicate"]


def test_a_prediction_that_two_tokens_sent_is_one(client: TestClient) -> None:
    """As what waits in a spool is sent by the token of the day."""
    receipt = str(RING.sign(model="m", version="1", predicted=1, confidence=0.9))
    for who in ("shop", "rival"):
        assert post(client, "predictions", who, {"receipt": receipt, "id": "order-1"}) == [{"accepted": True}]
    assert label(client, "desk", "order-1") == ["counted"]
    assert label(client, "rival", "order-1") == ["duplicate"]


def test_ids_without_label_is_a_mistake_that_is_said() -> None:
    with pytest.raises(InputError, match="label"):
        Token.read("desk ids desk-has-a-long-token")


def test_a_label_that_waits_for_its_version_is_still_of_whom_it_may_be(
    client: TestClient, watch: Watch
) -> None:
    predict(client, "shop", "order-1", version="3")
    assert label(client, "lab", "order-1") == ["unknown_id"]
    assert post(client, "labels", "desk", {"id": "order-1", "label": 1}) == [{"accepted": True, "held": True}]
    predict(client, "rival", "order-1", version="3")
    watch.register_version(("m", "3"), {"classes": 3})
    assert watch.ledger.sums()["m", "3"].labels.sum() == 1


def test_without_tokens_all_are_one(watch: Watch) -> None:
    with talk_to(watch, tokens=TOKENS) as guarded:
        predict(guarded, "shop", "order-1")
    with talk_to(watch) as open_to_all:
        assert predict(open_to_all, "nobody", "order-2")[0].keys() == {"receipt"}
        assert label(open_to_all, "nobody", "order-1", "order-2") == ["counted", "counted"]


def test_many_guesses_degrade_the_check_ids_which_an_alert_reads(tmp_path: Path) -> None:
    now = [NOW]
    with make_watch(tmp_path, clock=lambda: now[0]) as watch, talk_to(watch, tokens=TOKENS) as client:
        watch.checks.run()
        predict(client, "shop", *(f"order-{i}" for i in range(600)))
        label(client, "lab", *(f"order-{i}" for i in range(999)))
        watch.checks.run("ids")
        assert watch.checks.reasons()["ids"] is None
        label(client, "lab", "order-1")
        watch.checks.run("ids")
        assert "1000 labels" in str(watch.checks.reasons()["ids"])
        assert watch.checks.status == "degraded"
        now[0] += 3700
        for _ in range(2):
            watch.checks.run("ids")
        assert watch.checks.status == "ready"


def test_a_binding_says_whose_it_is_and_another_source_does_not_find_it(url: str) -> None:
    ledger = Ledger(url)
    ids, facts = PredictionIds(ledger), {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}
    mine, other = RING.sign(**facts), RING.sign(**facts)
    assert ids.bind([Binding("m", "a", str(mine))], source="shop", now=NOW) == [True]
    assert ids.bind([Binding("m", "a", str(other))], source="rival", now=NOW) == [True]
    assert ids.find(["a"], source="shop") == [{"m": (str(mine),)}]
    assert ids.find(["a"], source="lab") == [{}]
    assert [set(one["m"]) for one in ids.find(["a"])] == [{str(mine), str(other)}]
    ledger.close()
