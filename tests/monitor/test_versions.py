"""Versions that a watch learns while it runs, and what was held for them meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledgers import NOW, by_clock
from real_watch import RING, talk_to

from calib_serve import Artifact
from calib_serve.artifact import LogitMap
from calib_serve.core.errors import InputError
from calib_serve.ledger import Ledger, intake
from calib_serve.monitor.versions import FollowedVersions, Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import DAY
from calib_serve.receipts.batch import ServedPrediction, ServedReceipt, ServedSums
from calib_serve.receipts.classes import Classes
from calib_serve.web import Token

pytestmark = pytest.mark.store

NEW = {"model": "m", "version": "2"}
V = ("m", "2")


@pytest.fixture
def watch(url: str) -> Iterator[Watch]:
    with Watch(RING, Ledger(url), models={("m", "1"): Watched(Classes(3))}) as watch:
        yield watch


def served(watch: Watch) -> tuple[float, float]:
    """Predictions and labels of the new version."""
    sums = watch.ledger.sums().get(V)
    return (0, 0) if sums is None else (sums.predictions.sum(), sums.labels.sum())


def test_what_came_of_a_version_before_it_was_told_is_held_and_counted_once_when_it_is(watch: Watch) -> None:
    batch = [{**NEW, "predicted": 1, "confidence": 0.9}] * 3
    batch.append({"model": "m", "version": "1", "predicted": 1, "confidence": 0.9})
    with talk_to(watch) as client:
        keyed = [
            client.post("/v1/predictions", json=batch, headers={"idempotency-key": "a"}) for _ in range(2)
        ]
        assert keyed[0].json() == keyed[1].json()
        receipts = [one["receipt"] for one in keyed[0].json()["items"]]
        labels = [{"receipt": one, "label": label} for one, label in zip(receipts, (1, 0, 7, 1), strict=True)]
        for _ in range(2):
            answer = client.post("/v1/labels", json=labels).json()
            assert answer["items"][:3] == [{"accepted": True, "held": True}] * 3
        assert served(watch) == (0, 0)
        assert watch.ledger.sums()["m", "1"].labels.sum() == 1
        assert watch.ledger.held.counts() == {V: 6}
        assert watch.intake.refused["unknown_version"] == 0, "what is held was not refused"
        watch.checks.run("versions")
        assert "6 predictions and labels of m 2 wait" in str(watch.checks.reasons()["versions"])
        assert client.get("/healthz").json()["checks"]["versions"] == "InputError: see the program's log"
        told = client.post("/v1/versions", json={**NEW, "classes": 3})
        assert (told.status_code, told.json()) == (200, {**NEW, "classes": 3})
        assert served(watch) == (3, 2)  # the third label names no class
        assert watch.intake.refused["bad_label"] == 1
        assert watch.ledger.held.counts() == {}
        again = client.post("/v1/labels", json=labels).json()["items"]
        assert [one.get("reason") for one in again] == ["duplicate", "duplicate", "bad_label", "duplicate"]


def test_all_that_share_the_ledger_learn_it_and_a_later_start_knows_it(watch: Watch, url: str) -> None:
    other = Watch(RING, Ledger(url), models={("m", "1"): Watched(Classes(3))})
    assert V not in other.models
    watch.register_version(V, {"classes": 2, "class_names": ["cat", "dog"]})
    other.refresh_versions()
    assert other.models[V].classes.names == ("cat", "dog")
    later = Watch(RING, Ledger(url), models={("m", "1"): Watched(Classes(3))})
    assert later.models[V].classes.count == 2
    other.close(), later.close()


def test_two_that_learn_it_at_once_count_what_was_held_once(watch: Watch, url: str) -> None:
    watch.predictions([ServedPrediction(*V, 1, 0.9)] * 50)
    signed = [RING.sign(model="m", version="2", predicted=0, confidence=0.6) for _ in range(50)]
    watch.predictions([ServedReceipt(one) for one in signed])
    other = Watch(RING, Ledger(url), models={V: Watched(Classes(3))})
    watch.register_version(V, {"classes": 3})
    other.refresh_versions()
    assert served(watch) == (100, 0)
    other.close()


def test_only_who_may_close_incidents_tells_versions_and_only_sound_ones(watch: Watch) -> None:
    tokens = [Token.read(f"{name} {name} {name * 16}") for name in ("predict", "admin")]
    with talk_to(watch, tokens=tokens) as client:

        def tell(name: str, **more: object) -> int:
            headers = {"authorization": f"Bearer {name * 16}"}
            return client.post("/v1/versions", json={**NEW, **more}, headers=headers).status_code

        assert tell("predict", classes=3) == 403
        for wrong in ({}, {"classes": 0}, {"classes": "3"}, {"classes": 3, "artifact": "/etc"}):
            assert tell("admin", **wrong) == 400
        for wrong in ({"class_names": ["a"]}, {"contract": {"clauses": 7}}):
            assert tell("admin", classes=3, **wrong) == 400
        assert V not in watch.models
        assert tell("admin", classes=3) == 200


def test_what_a_watch_was_started_with_is_not_told_otherwise(watch: Watch) -> None:
    with talk_to(watch) as client:
        for more, status in (
            ({"classes": 3}, 200),
            ({"classes": 5}, 400),
            ({"classes": 3, "multilabel": True}, 400),
            ({"classes": 3, "class_names": ["a", "b", "c"]}, 400),
            ({"classes": 3, "contract": {"clauses": [{"act": 0.9, "accuracy": 0.9}]}}, 400),
        ):
            assert (
                client.post("/v1/versions", json={"model": "m", "version": "1", **more}).status_code == status
            )
    assert watch.ledger.versions() == {("m", "1"): '{"classes": 3}'}


def test_beyond_a_bound_they_are_refused_as_before(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_HELD", 2)
    both = [ServedPrediction(*V, 1, 0.9), ServedPrediction("m", "1", 1, 0.9)]
    for _ in range(2):
        watch.predictions(both)
    refused, counted = watch.predictions(both)
    assert refused.reason == "unknown_version"
    assert isinstance(counted, str)
    label = {"receipt": RING.sign(model="m", version="2", predicted=1, confidence=0.9), "label": 1}
    assert watch.labels([label])[0].reason == "unknown_version"
    assert watch.ledger.held.counts() == {V: 2}
    sums = [ServedSums.of(one) for one in both]
    refused, counted = watch.served(sums, time=NOW, once=b"sums")
    assert refused.reason == "unknown_version"
    assert counted is None
    assert watch.ledger.held.counts() == {V: 2}


def test_what_was_told_and_cannot_be_used_is_logged_once(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    watch.ledger.register_version(V, json.dumps({"artifact": "/moved/away"}))
    for _ in range(3):
        watch.refresh_versions()
    assert len(caplog.messages) == 1
    watch.register_version(V, {"classes": 3})
    assert V in watch.models


def test_after_a_day_they_are_lost_and_that_is_counted(url: str) -> None:
    now = [NOW]
    with Watch(
        RING, by_clock(Ledger(url), lambda: now[0]), models={("m", "1"): Watched(Classes(3))}
    ) as watch:
        watch.predictions([ServedPrediction(*V, 1, 0.9)])
        now[0] += 0.9 * DAY
        watch.predictions([ServedPrediction(*V, 1, 0.9)])
        now[0] += 0.2 * DAY
        watch.held.give_up()
        assert watch.counts.errors["held"] == 1
        watch.held.give_up()
        assert watch.counts.errors["held"] == 1
        watch.register_version(V, {"classes": 3})
        assert served(watch) == (1, 0)


# --- a list -----------------------------------------------------------------------------------------------


def test_a_list_is_followed_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    path.write_text(json.dumps([{"name": "m", "version": "1", "classes": 3}]))
    with Watch(RING, Ledger(tmp_path / "l.db"), models={}, follow=FollowedVersions(path)) as watch:
        assert set(watch.models) == {("m", "1")}
        (receipt,) = watch.predictions([ServedPrediction(*V, 1, 0.9)])
        assert watch.labels([{"receipt": receipt, "label": "dog"}])[0].held
        path.write_text("- {name: m, version: '1', classes: 3")
        watch.refresh_versions()
        watch.checks.run("versions")
        assert str(path) in watch.checks.reasons()["versions"]
        assert set(watch.models) == {("m", "1")}
        path.write_text("- {name: m, version: '2', classes: 2, class_names: [cat, dog]}")
        watch.refresh_versions()
        watch.checks.run("versions")
        assert watch.checks.reasons()["versions"] is None
        assert set(watch.models) == {V}
        assert served(watch) == (1, 1)


def test_a_list_may_name_artifacts(tmp_path: Path) -> None:
    folder = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3).save(tmp_path / "a")
    path = tmp_path / "versions.json"
    path.write_text(json.dumps([{"name": "m", "version": "1", "artifact": str(folder)}]))
    assert FollowedVersions(path).current()["m", "1"].classes.count == 3
    with pytest.raises(InputError, match="cannot be read"):
        FollowedVersions(folder)


def test_a_version_that_is_given_and_followed_otherwise_is_said(url: str, tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    with Watch.open({("m", "1"): 3}, keyring=RING, ledger=url, follow=write(path, 3)) as watch:
        watch.checks.run("versions")
        assert watch.checks.reasons()["versions"] is None
    with Watch.open({("m", "1"): 3}, keyring=RING, ledger=url, follow=write(path, 4)) as watch:
        watch.checks.run("versions")
        assert "m 1 is followed with other classes" in str(watch.checks.reasons()["versions"])
        assert watch.models["m", "1"].classes.count == 3


def write(path: Path, classes: int) -> Path:
    path.write_text(json.dumps([{"name": "m", "version": "1", "classes": classes}]))
    return path


@pytest.mark.parametrize(
    "content",
    [
        *("7", "[7]", "[{name: m}]", "[{name: m, version: 1}]", "[", "\0"),
        "[{name: m, version: '1', classes: 2, class_name: [a, b]}]",
        "[{name: m, version: '1', classes: 2, 1: 2}]",
        *("[{name: m, version: 1.10, classes: 3}]", "[{name: 7, version: '1', classes: 3}]"),
    ],
)
def test_what_is_no_list_of_versions_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "versions.yaml"
    path.write_text(content)
    with pytest.raises(InputError):
        FollowedVersions(path)
    with pytest.raises(InputError, match="cannot be read"):
        FollowedVersions(tmp_path / "missing")


def test_a_watch_of_nothing_yet_says_so_and_names_its_ledger(url: str, tmp_path: Path) -> None:
    path = tmp_path / "versions.json"
    path.write_text("[]")
    with Watch.open({}, keyring=RING, ledger=url, follow=path) as watch, talk_to(watch) as client:
        assert "No model version yet" in client.get("/").text
        told = client.get("/healthz").json()["ledger"]
        kind = "PostgreSQL" if url.startswith("postgresql") else "SQLite"
        assert (told["database"], told["behind_seconds"]) == (kind, None)
        where = "this host's disk" if kind == "SQLite" else "the disk of PostgreSQL's host"
        assert told["durability"] == where
        assert told["bytes"] > 10_000
        client.post("/v1/versions", json={**NEW, "classes": 3}).raise_for_status()
        assert f"Ledger {watch.ledger.database.name}: {kind}, " in client.get("/").text
