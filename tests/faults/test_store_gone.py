"""A ledger that is locked, deleted or unreadable: said, nothing lost; then it goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ledgers import ask
from real_watch import make_watch, talk_to

from calib_serve.ledger import Ledger

pytestmark = pytest.mark.store

ONE = {"model": "m", "version": "1", "predicted": 1, "confidence": 0.9}


def errors(text: str, stage: str) -> float:
    (line,) = [x for x in text.splitlines() if x.startswith(f'calib_monitor_errors_total{{stage="{stage}"}}')]
    return float(line.split()[-1])


def test_a_locked_ledger_is_503_and_the_batch_may_be_sent_again(tmp_path: Path) -> None:
    watch = make_watch(tmp_path, timeout=0.2)
    other = Ledger(tmp_path / "l.db")
    with talk_to(watch) as client:
        receipt = client.post("/v1/predictions", json=[ONE]).json()["items"][0]["receipt"]
        with other.transaction():
            answer = client.post("/v1/labels", json=[{"receipt": receipt, "label": 1}])
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert client.get("/metrics").status_code == 200, "reading goes on"
        again = client.post("/v1/labels", json=[{"receipt": receipt, "label": 1}])
        assert again.json()["accepted"] == 1
        assert errors(client.get("/metrics").text, "ledger") == 1
    watch.ledger.close(), other.close()


@pytest.mark.parametrize("how", ["deleted", "moved away", "replaced"])
def test_a_ledger_that_is_taken_away_is_noticed_before_anything_is_acknowledged(
    tmp_path: Path, how: str
) -> None:
    watch = make_watch(tmp_path)
    with talk_to(watch) as client:
        items = client.post("/v1/predictions", json=[ONE] * 2).json()["items"]
        labels = [{"receipt": one["receipt"], "label": 1} for one in items]
        assert client.post("/v1/labels", json=labels[:1]).json()["accepted"] == 1
        if how == "deleted":
            (tmp_path / "l.db").unlink()
        else:
            (tmp_path / "l.db").rename(tmp_path / "away.db")
        if how == "replaced":
            shutil.copy(tmp_path / "away.db", tmp_path / "l.db")
        answer = client.post("/v1/labels", json=labels[1:])
        assert answer.status_code == 503, "what goes into a deleted file is lost with the process"
        if how == "moved away":
            (tmp_path / "away.db").rename(tmp_path / "l.db")
            assert client.post("/v1/labels", json=labels[1:]).json()["accepted"] == 1
    watch.ledger.close()


def test_a_scrape_that_cannot_read_the_ledger_leaves_a_gap_and_not_zeros(tmp_path: Path) -> None:
    watch = make_watch(tmp_path)
    with talk_to(watch) as client:
        ask(str(tmp_path / "l.db"), "alter table delay rename to gone")
        text = client.get("/metrics").text
        assert "calib_predictions_total{" not in text
        assert errors(text, "scrape") == 1
        ask(str(tmp_path / "l.db"), "alter table gone rename to delay")
        assert "calib_predictions_total{" in client.get("/metrics").text
    watch.ledger.close()


def test_what_fails_beside_a_counted_batch_does_not_take_back_its_acknowledgement(tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left")

    watch = make_watch(tmp_path)
    with talk_to(watch) as client:
        receipt = client.post("/v1/predictions", json=[ONE]).json()["items"][0]["receipt"]
        watch.samples = SimpleNamespace(labelled=broken)
        answer = client.post("/v1/labels", json=[{"receipt": receipt, "label": 1}])
        assert answer.json()["accepted"] == 1
        text = client.get("/metrics").text
        assert errors(text, "samples") == 1
    watch.ledger.close()
