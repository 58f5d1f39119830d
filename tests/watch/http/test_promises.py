"""Contracts and shadows on the page of ``watch`` and in its API: every state, in words, for every reader."""

from __future__ import annotations

import math
import re
import socket
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pytest
import uvicorn
from chromium import chromium
from prometheus_client.parser import text_string_to_metric_families
from real_watch import RING, make_watch, talk_to
from scipy.stats import beta
from test_page import CONTRAST

from calib_serve.artifact import Artifact, Clause, Contract, LogitMap
from calib_serve.receipts import Shadow
from calib_serve.watch.batch import ServedPrediction
from calib_serve.watch.contracts import Burn, ClauseState
from calib_serve.watch.http import create_app
from calib_serve.watch.http.promise_charts import budget_bar, promise_bar
from calib_serve.watch.http.promises import clause_cards
from calib_serve.watch.ledger import Version
from calib_serve.watch.series import CONTRACTS
from calib_serve.watch.series import SHADOWS as SHADOWS_DECLARED
from calib_serve.watch.service import Watch
from calib_serve.watch.shadow import ShadowState

NAN, INF, DAY = math.nan, math.inf, 86_400.0
AT = 1_790_000_000.0


def standing(
    clause: Clause,
    state: Literal["kept", "broken", "unknown"] = "unknown",
    *,
    ends: tuple[float, float, float] = (NAN, NAN, NAN),
    left: float = NAN,
    runs_out: float = NAN,
    labels: float = 0.0,
    burn: Mapping[str, Burn] = MappingProxyType({}),
    why: str = "",
) -> ClauseState:
    """``ends``: value, low, high."""
    said = None if state == "unknown" else AT
    value, low, high = ends
    return ClauseState(
        clause=clause,
        state=state,
        said_at=said,
        value=value,
        low=low,
        high=high,
        budget_left=left,
        runs_out=runs_out,
        labels=labels,
        burn=burn,
        why=why,
    )


ACT = Clause("act", 0.98, above=0.9)
KEPT = standing(
    ACT,
    "kept",
    ends=(0.991, 0.984, 0.9953),
    left=0.43,
    runs_out=INF,
    labels=12345.0,
    burn={"5m": Burn(NAN, NAN), "1h": Burn(0.45, 0.1), "3d": Burn(0.52, 0.31)},
)
BROKEN = standing(
    Clause("act", 0.99, above=0.95, segment="<de>"),
    "broken",
    ends=(0.961, 0.95, 0.972),
    left=-1.9,
    runs_out=0.0,
    labels=2040.0,
    burn={"1h": Burn(4.2, 2.1)},
)
SOON = standing(
    Clause("calibration", 0.03),
    ends=(0.027, 0.011, 0.036),
    left=0.1,
    runs_out=4 * DAY,
    labels=640.0,
    why="640 labels are too few to be sure",
)
SILENT = standing(
    Clause("coverage", 0.7, above=0.9, predicted=2),
    why="predictions are not counted here: <TorchServe> counts them",
)
STATES = [KEPT, BROKEN, SOON, SILENT]
SHADOWS = [
    ShadowState("0123abcd", 20_000.0, "better", 0.0021, 0.0004, 0.0038, 0.001, {"better": 4.1}, AT),
    ShadowState("ffff0000", 0.0, "unknown", NAN, NAN, NAN, NAN, {"better": 0.1, "worse": -INF}, AT),
]


class Standing(Watch):
    """A watch whose contract stands as it is given here: what makes it so is tested beside it."""

    def contract_states(self, version: Version) -> list[ClauseState]:
        return STATES

    def shadow_states(self, version: Version) -> list[ShadowState]:
        return SHADOWS


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    watch = make_watch(tmp_path_factory.mktemp("watch"))
    watch.__class__ = Standing
    yield watch
    watch.close()


# --- numbers and words --------------------------------------------------------------------------------------


def numbers(card: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (value, means) for name, value, means in card["numbers"]}


def test_each_state_is_a_word_and_what_is_not_known_is_said() -> None:
    kept, broken, soon, silent = clause_cards(STATES, ("zero", "one", "two"))
    assert (kept["word"], broken["word"]) == (
        "Kept since 2026-09-21 14:13 UTC",
        "Broken since 2026-09-21 14:13 UTC",
    )
    assert [one["style"] for one in (kept, broken, soon, silent)] == ["calibrated", "off", "", ""]
    assert (soon["word"], silent["word"]) == ("Not yet known", "Not yet known")
    assert kept["says"] == ACT.says()
    assert "of class two" in silent["says"]
    assert numbers(kept) == {
        "Labels": ("12,345", "counted since this clause is watched"),
        "Over 30d": ("99.1 %", "are right of what is acted on"),
        "At any time": ("98.4 to 99.5 %", "since it is watched, with 95 %"),
        "Budget left": ("43 %", "lasts at the present rate"),
    }
    assert kept["burn"] == [("1h", "0.45", "0.1"), ("3d", "0.52", "0.31")]
    assert numbers(broken)["Budget left"] == ("190 % overspent", "it is spent")
    assert numbers(soon)["Budget left"] == ("10 %", "runs out in 4 days")
    assert numbers(silent) == {
        "Predictions": ("0", "counted since this clause is watched"),
        "Over 30d": ("n/a", "not known"),
        "At any time": ("n/a", "since it is watched, with 95 %"),
        "Budget left": ("n/a", "not known"),
    }


@pytest.mark.parametrize(
    ("clause", "told"),
    [
        (Clause("act", 0.98), "99.9 %"),
        (Clause("act", 0.999), "99.95 %"),
        (Clause("coverage", 0.9999), "99.946 %"),
        (Clause("coverage", 0.7), "99.9 %"),
        (Clause("calibration", 0.03), "99.9 %"),
        (Clause("calibration", 0.0005), "99.946 %"),
    ],
)
def test_digits_are_enough_to_tell_what_is_promised_from_all(clause: Clause, told: str) -> None:
    one = standing(clause, ends=(0.999456, 0.99, 1.0))
    (card,) = clause_cards([one])
    assert numbers(card)["Over 30d"][0] == told
    assert f"promised: {100 * clause.promise:.10g} % or" in promise_bar(one)


@pytest.mark.parametrize(
    ("left", "runs_out", "told"),
    [
        (0.0, 0.0, "it is spent"),
        (-0.001, INF, "it is spent"),
        (0.001, 60.0, "runs out in 60 seconds"),
        (0.5, INF, "lasts at the present rate"),
        (0.5, NAN, "for how long is not known"),
        (NAN, INF, "not known"),
    ],
)
def test_when_the_budget_runs_out_is_said_in_every_case(left: float, runs_out: float, told: str) -> None:
    (card,) = clause_cards([standing(ACT, left=left, runs_out=runs_out)])
    assert numbers(card)["Budget left"][1] == told


# --- figures ------------------------------------------------------------------------------------------------


def x_of(figure: str, kind: str) -> list[tuple[float, float]]:
    """Left and right ends of what is drawn so."""
    found = []
    for node in ET.fromstring(figure).iter():
        if node.get("class") == kind:
            x = float(node.get("x") or node.get("x1") or node.get("cx") or "nan")
            found.append((x, x + float(node.get("width", "0"))))
    return found


@pytest.mark.parametrize("one", STATES)
def test_a_bar_has_the_promise_the_interval_and_the_value_in_their_order(one: ClauseState) -> None:
    figure = promise_bar(one)
    ((promise, _),) = x_of(figure, "promise")
    ((kept_from, kept_to),) = x_of(figure, "floor")
    side = kept_to if one.clause.kind == "calibration" else kept_from
    assert side == pytest.approx(promise)
    for drawn, value in zip(x_of(figure, "bar"), [(one.low, one.high)], strict=False):
        scale = (drawn[1] - drawn[0]) / (value[1] - value[0])
        # One scale for all of it: the distance to the promise is what it should be.
        assert promise - drawn[0] == pytest.approx((one.clause.promise - value[0]) * scale, abs=0.1)
        ((dot, _),) = x_of(figure, "dot fine")
        assert dot - drawn[0] == pytest.approx((one.value - value[0]) * scale, abs=0.1)
    assert len(x_of(figure, "bar")) == math.isfinite(one.low)
    assert all(
        0 <= x <= 360 for kind in ("bar", "promise", "floor", "dot fine") for x in sum(x_of(figure, kind), ())
    )


@pytest.mark.parametrize("promise", [1e-6, 0.5, 1 - 1e-6])
@pytest.mark.parametrize("ends", [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.5, 0.0, 1.0), (NAN, 0.2, 1.0)])
def test_a_bar_can_be_drawn_of_any_numbers(promise: float, ends: tuple[float, float, float]) -> None:
    figure = promise_bar(standing(Clause("act", promise), ends=ends))
    assert "nan" not in figure
    assert all(0 <= x <= 360.01 for kind in ("bar", "promise", "floor") for x in sum(x_of(figure, kind), ()))


def test_a_budget_is_as_long_as_what_is_left_and_says_so() -> None:
    ((full, end),) = x_of(budget_bar(1.0), "left")
    ((_, half),) = x_of(budget_bar(0.5), "left")
    assert (half - full) * 2 == pytest.approx(end - full)
    assert x_of(budget_bar(2.0), "left") == [(full, end)]
    assert x_of(budget_bar(-0.4), "spent") == [(full, end)]
    assert "overspent by 40%" in budget_bar(-0.4)
    assert budget_bar(NAN) == ""


# --- the API and the page -----------------------------------------------------------------------------------


def test_the_api_tells_the_same_and_null_for_what_is_not_known(watch: Watch) -> None:
    with talk_to(watch) as client:
        told = client.get("/v1/contract", params={"model": "m", "version": "1"}).json()
        shadows = client.get("/v1/shadows", params={"model": "m", "version": "1"}).json()
        gone = [
            client.get(f"/v1/{what}", params={"model": "m", "version": "2"})
            for what in ("contract", "shadows")
        ]
    kept, broken, soon, silent = told["clauses"]
    assert (told["model"], told["version"]) == ("m", "1")
    assert [one["state"] for one in told["clauses"]] == ["kept", "broken", "unknown", "unknown"]
    assert (kept["value"], kept["low"], kept["high"], kept["labels"]) == (0.991, 0.984, 0.9953, 12345)
    assert kept["burn"]["3d"] == {"rate": 0.52, "low": 0.31}
    assert kept["burn"]["5m"] == {"rate": None, "low": None}
    assert (kept["runs_out_seconds"], kept["lasts"]) == (None, True)
    assert (soon["runs_out_seconds"], soon["lasts"]) == (4 * DAY, False)
    assert (broken["budget_left"], broken["said_at"]) == (-1.9, AT)
    assert {silent[name] for name in ("value", "low", "high", "budget_left", "said_at")} == {None}
    assert (silent["predicted"], silent["above"], silent["per_seconds"]) == (2, 0.9, 30 * DAY)
    assert [(one["tag"], one["verdict"], one["gain"]) for one in shadows["shadows"]] == [
        ("0123abcd", "better", 0.0021),
        ("ffff0000", "unknown", None),
    ]
    assert shadows["shadows"][1]["log_evidence"] == {"better": 0.1, "worse": None}
    assert [one.status_code for one in gone] == [404, 404]


def test_metrics_hold_every_declared_series_and_nothing_of_what_is_not_known(watch: Watch) -> None:
    with talk_to(watch) as client:
        families = text_string_to_metric_families(client.get("/metrics").text)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for one in (sample for family in families for sample in family.samples):
        if re.match("calib_(contract|shadow)_", one.name):
            assert (one.labels["model"], one.labels["version"]) == ("m", "1")
            rest = tuple(one.labels[name] for name in ("clause", "tag", "window") if name in one.labels)
            found.setdefault(one.name, {})[rest] = one.value
    assert set(found) == {one.name for one in (*CONTRACTS, *SHADOWS_DECLARED)}
    names = [one.clause.name for one in STATES]
    assert found["calib_contract_state"] == {(n,): s for n, s in zip(names, (1, -1, 0, 0), strict=True)}
    assert found["calib_contract_promise"] == {(one.clause.name,): one.clause.promise for one in STATES}
    # A budget that lasts, and one of which nothing is known, have no time at which they run out.
    assert found["calib_contract_runs_out_seconds"] == {(names[1],): 0, (names[2],): 4 * DAY}
    assert found["calib_contract_value"] == {
        (n,): one.value for n, one in zip(names, STATES[:3], strict=False)
    }
    assert found["calib_contract_burn_rate_low"] == {
        ("act", "1h"): 0.1,
        ("act", "3d"): 0.31,
        (names[1], "1h"): 2.1,
    }
    assert found["calib_shadow_verdict"] == {("0123abcd",): 1, ("ffff0000",): 0}
    assert found["calib_shadow_gain_high"] == {("0123abcd",): 0.0038}


def test_texts_of_users_are_no_html_and_a_version_without_a_contract_has_no_section(
    watch: Watch, tmp_path: Path
) -> None:
    with talk_to(watch) as client:
        page = client.get("/").text
    assert "segment &lt;de&gt;" in page
    assert "&lt;TorchServe&gt; counts them" in page
    assert "<de>" not in page
    assert "<TorchServe>" not in page
    bare = make_watch(tmp_path)
    with talk_to(bare) as client:
        page = client.get("/").text
        assert client.get("/v1/contract?model=m&version=1").json()["clauses"] == []
    bare.close()
    assert 'id="contract"' not in page
    assert 'id="shadow"' not in page


@contextmanager
def served(watch: Watch) -> Iterator[str]:
    """Its app on a port of this host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_app(watch), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until, "no server within 60 s"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.server
def test_it_is_readable_on_every_screen_in_the_dark_and_without_scripts(watch: Watch) -> None:
    with served(watch) as url, chromium(hosts="127.0.0.1") as browser:
        for width in (360, 768, 1100):
            for dark in (False, True):
                browser.open(url, dark=dark, width=width)
                assert browser.run("return document.documentElement.scrollWidth") <= width
                assert browser.run(CONTRAST) == []
                assert browser.run("return document.querySelectorAll('article.clause').length") == 4
        assert browser.complaints() == []
        text = browser.run("return document.getElementById('contract').parentElement.innerText")
        for said in (
            "Kept since",
            "Broken since",
            "Not yet known: 640 labels",
            "190 % overspent",
            "runs out in 4 days",
        ):
            assert said in text
        shadow = browser.run("return document.getElementById('shadow').parentElement.innerText")
        assert re.search(r"0123abcd\s+Better\s+20,000\s+\+0.0021", shadow)
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        browser.driver.get(url)
        tree = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})
        told = {node.get("name", {}).get("value", "") for node in tree["nodes"]}
        assert "promised: 98 % or more; by labels 99.1%; at any time between 98.4% and 99.5%" in told
        assert "43% of the error budget is left" in told
        assert "the error budget is overspent by 190%" in told


def test_a_watch_of_a_broken_promise_says_so_everywhere_and_how_its_shadow_compares(tmp_path: Path) -> None:
    text = "contract: 1\nact: {above: 0.9, accuracy: 0.98}\ncoverage: {above: 0.9, at_least: 0.5}"
    artifact = Artifact(
        (LogitMap.temperature(1.5),), method="temperature", classes=3, contract=Contract.read(text)
    )
    rng = np.random.default_rng(0)
    models, ledger = {("m", "1"): artifact}, tmp_path / "l.db"
    with (
        Watch.open(models, keyring=RING, ledger=ledger, maturity=0) as watch,
        talk_to(watch) as client,
    ):
        unsure = 0
        for _ in range(4):
            confidence = rng.choice([0.6, 0.95], 500)
            unsure += int((confidence < 0.9).sum())
            # Of those that are acted on 90 % are right, and the shadow knows it.
            wrong = rng.random(500) < np.where(confidence > 0.9, 0.1, 0.4)
            items = [
                ServedPrediction("m", "1", 0, c, shadow=Shadow(0, min(c, 0.9), b"\x01\x23\xab\xcd"))
                for c in confidence.tolist()
            ]
            receipts = watch.predictions(items)
            watch.labels([{"receipt": r, "label": int(w)} for r, w in zip(receipts, wrong, strict=True)])
            watch.feed.tick()
        act, coverage = client.get("/v1/contract?model=m&version=1").json()["clauses"]
        (shadow,) = client.get("/v1/shadows?model=m&version=1").json()["shadows"]
        page, metrics = client.get("/").text, client.get("/metrics").text
    assert (act["state"], act["low"] < 0.9 < act["high"] < 0.98) == ("broken", True)
    assert act["budget_left"] == pytest.approx(1 - (1 - act["value"]) / 0.02)
    assert coverage["state"] == "unknown"
    assert "too few predictions" in coverage["why"]
    low = beta.ppf(0.025, unsure, 2000 - unsure + 1) / 0.5  # Clopper and Pearson 1934
    assert coverage["burn"]["1h"] == pytest.approx({"rate": unsure / 2000 / 0.5, "low": low})
    assert (shadow["tag"], shadow["labels"]) == ("0123abcd", 2000)
    assert "<strong>Broken since " in page
    assert "<strong>Not yet known:</strong> too few predictions to be sure." in page
    assert shadow["says"] in page
    assert 'calib_contract_state{clause="act",model="m",version="1"} -1.0' in metrics
    assert 'calib_shadow_labels{model="m",tag="0123abcd",version="1"} 2000.0' in metrics
