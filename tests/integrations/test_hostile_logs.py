"""Logs that lie, lack or mislead are refused with a reason, or counted; secrets are never told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from libraries import library
from logs import START, expected, some_logs
from pyarrow import parquet

from calib_serve.core.bins import Bins
from calib_serve.core.errors import InputError, ServerError
from calib_serve.integrations.audit.engines import PASSWORD
from calib_serve.integrations.audit.expressions import Columns
from calib_serve.integrations.audit.measuring import Audit, audit

library("ibis")

pytestmark = pytest.mark.filterwarnings("ignore:::ibis")

Audited = Callable[..., Audit]


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    """Audits tables of these columns; ``labels`` are of ids 0, 1, ... if not given."""

    def run(predictions: dict[str, Any], labels: dict[str, Any] | None = None, **options: Any) -> Audit:
        n = len(next(iter(predictions.values())))
        told = {
            "id": np.arange(n),
            "predicted": np.zeros(n, int),
            "confidence": np.full(n, 0.9),
        } | predictions
        # The confidences of these logs are whatever an engine may get wrong, and no model's.
        options.setdefault("confidence_of", "predicted")
        truth = labels or {"id": np.arange(n), "label": np.zeros(n, int)}
        parquet.write_table(pa.table(told), tmp_path / "p.parquet")
        parquet.write_table(pa.table(truth), tmp_path / "l.parquet")
        return audit(tmp_path / "p.parquet", tmp_path / "l.parquet", **options)

    return run


def edge_cases(bins: int) -> np.ndarray:
    """Every edge as numpy and as division make it, and its neighbours on both sides."""
    edges = np.concatenate([np.linspace(0, 1, bins + 1), np.arange(bins + 1) / bins])
    near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1), [5e-324, 1 - 2**-53]])
    return np.unique(near[(near >= 0) & (near <= 1)])


@pytest.mark.parametrize("bins", [1, 2, 7, 10, 15, 49, 100])
def test_a_confidence_on_an_edge_falls_where_the_monitor_puts_it(audited: Audited, bins: int) -> None:
    c = edge_cases(bins)
    right = np.arange(len(c)) % 3 == 0
    found = audited({"confidence": c}, {"id": np.arange(len(c)), "label": np.where(right, 0, 1)}, bins=bins)
    told = found.total.bins
    want = np.array([np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], one) for one in c])
    assert told.count.tolist() == np.bincount(want, minlength=bins).tolist()
    assert told.correct.tolist() == np.bincount(want, weights=right, minlength=bins).tolist()
    assert told.count.tolist() == Bins.tally(c, right, bins=bins).count.tolist()


@pytest.mark.parametrize("wrong", [np.nan, -1e-9, 1.0000001, np.inf, -np.inf, None, 97.5])
def test_a_confidence_that_is_none_is_refused_with_its_count_and_id(audited: Audited, wrong: Any) -> None:
    column = {"id": np.array([40, 41, 42]), "confidence": pa.array([0.5, wrong, 0.5], pa.float64())}
    labels = {"id": np.array([40, 41, 42]), "label": np.zeros(3, int)}
    with pytest.raises(InputError, match=r"1 of 3 predictions .* confidence in \[0, 1\].*of id 41"):
        audited(column, labels)
    found = audited(column, labels, skip_invalid=True)
    assert found.refused["confidence"].count == 1
    assert (found.total.bins.n, found.labels.of_refused) == (2, 1)
    assert np.isfinite(found.total.sums.vector).all()


@pytest.mark.parametrize("wrong", [0.5, 0.0, -3.0, np.nan, np.inf, None])
def test_a_weight_below_one_is_refused(audited: Audited, wrong: Any) -> None:
    columns = {"confidence": [0.5, 0.5], "weight": pa.array([1.0, wrong], pa.float64())}
    with pytest.raises(InputError, match="weight of at least 1"):
        audited(columns)
    assert audited(columns, skip_invalid=True).total.bins.n == 1


ONE = {"id": [0], "label": [0]}
NAIVE = {"time": pa.array([START * 10**6], pa.timestamp("us"))}


@pytest.mark.parametrize(
    ("predictions", "labels", "options", "says"),
    [
        ({"id": [0]}, ONE, {"columns": Columns(confidence="score")}, "no column score; it has [a-z, ]*$"),
        ({"id": [0]}, ONE, {"by": ["team"]}, "no column team; it has [a-z, ]*$"),
        ({"id": [0]}, {"id": [0], "truth": [0]}, {}, "labels .*id, truth.*--column label=NAME"),
        ({"predicted": [1]}, {**ONE, "label": ["1"]}, {}, "cannot be compared"),
        ({"predicted": [1.0]}, {**ONE, "label": [1.0]}, {}, "must be"),
        ({"predicted": [True]}, {**ONE, "label": [1]}, {}, "cannot be compared"),
        ({"id": ["0"]}, ONE, {}, "ids of predictions and labels cannot be compared"),
        ({"confidence": ["0.9"]}, ONE, {}, "confidences must be numbers"),
        (NAIVE, ONE, {"every": 3600}, "have no zone"),
        (NAIVE, ONE, {"since": datetime(2026, 1, 1)}, "since has no zone"),
        ({"time": [START * 1000]}, ONE, {"every": 60}, "no time, or one beyond"),
        ({"time": [START, np.nan]}, ONE, {"every": 60}, "1 of 2 predictions have no time"),
        ({"id": np.array([], int)}, ONE, {}, "no predictions"),
        ({"user": np.arange(2500)}, ONE, {"by": ["user"]}, "more than 2000 groups"),
        ({"id": [1, 2]}, {"id": [1, 1], "label": [0, 0]}, {"unique_ids": True}, "ids are not unique"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_reason(
    audited: Audited, predictions: Any, labels: Any, options: Any, says: str
) -> None:
    with pytest.raises(InputError, match=says):
        audited(predictions, labels, **options)


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Asia/Kathmandu"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_moment_is_the_same_in_every_zone_and_unit(audited: Audited, zone: str, unit: str) -> None:
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    at = [START * per - 1, START * per, (START + 60) * per - 1, (START + 60) * per]
    found = audited(
        {"time": pa.array(at, pa.timestamp(unit, tz=zone))},
        since=datetime.fromtimestamp(START, timezone.utc),
        until=datetime.fromtimestamp(START + 60, timezone.utc),
        every=60,
    )
    (one,) = found.measured
    assert (one.since, one.until, found.predictions) == (START, START + 60, 2)


def test_nothing_is_no_perfect_calibration(audited: Audited) -> None:
    found = audited({"id": [0]}, {"id": [1], "label": [0]})
    assert (found.unlabelled, found.labels.without_prediction) == (1, 1)
    assert found.total.verdict.level in ("too_little", "no_error_found")
    told = found.as_dict()["total"]
    assert told["labelled"]["ece"] is None
    assert told["estimated"]["debiased_ece"]["value"] is None


def test_verdicts_are_those_of_the_monitor_and_only_with_enough_labels(audited: Audited) -> None:
    rng = np.random.default_rng(0)
    c = rng.choice([0.75, 0.95], 20_000)
    truth = {"id": np.arange(20_000), "label": (rng.random(20_000) > c).astype(int)}
    assert audited({"confidence": c}, truth).total.verdict.level == "calibrated"
    assert audited({"confidence": np.minimum(c + 0.05, 1)}, truth).total.verdict.level == "off"
    few = {"id": np.arange(20), "label": np.zeros(20, int)}
    assert audited({"confidence": c}, few).total.verdict.level in ("too_little", "no_error_found")
    # A label may be missing for what came of it: then nothing is proven by those that are there.
    half = {name: column[:10_000] for name, column in truth.items()}
    assert audited({"confidence": c}, half, missing="unknown").total.verdict.level in (
        "too_little",
        "no_error_found",
    )


def test_columns_of_odd_names_and_groups_of_odd_values(audited: Audited) -> None:
    odd = ['it\'s "x"; DROP TABLE', "\u2028", "", None, "other", "NULL"]
    names = Columns(id="i d", predicted="select", confidence='"c"', label="; --", model="ключ")
    found = audited(
        {
            '"c"': np.full(6, 0.9),
            "i d": np.arange(6),
            "select": np.zeros(6, int),
            "ключ": odd,
            "id": ["x"] * 6,
        },
        {"i d": np.arange(6), "; --": np.zeros(6, int)},
        columns=names,
    )
    counts = {one.by["ключ"]: one.bins.n for one in found.measured}
    assert counts == {odd[0]: 1, odd[1]: 1, "": 2, "other": 1, "NULL": 1}  # no value is none, too


def test_folders_and_patterns_are_one_log(tmp_path: Path) -> None:
    logs = some_logs(900)
    for part in range(3):
        folder = tmp_path / "p" / f"day={part}"
        folder.mkdir(parents=True)
        parquet.write_table(logs.predictions.slice(300 * part, 300), folder / "part.parquet")
    parquet.write_table(logs.labels, tmp_path / "labels.parquet")
    wanted = expected(logs)
    for where in (tmp_path / "p", tmp_path / "p" / "day=*" / "*.parquet"):
        found = audit(where, tmp_path / "labels.parquet", by=[], confidence_of="predicted")
        np.testing.assert_allclose(found.total.bins.correct, wanted.correct, rtol=1e-12)
    by_day = audit(tmp_path / "p", tmp_path / "labels.parquet", by=["day"], confidence_of="predicted")
    assert len(by_day.measured) == 3


def test_what_is_no_parquet_is_refused_by_name(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    parquet.write_table(some_logs(30).predictions, good)
    cut, lying = good.read_bytes()[:-7], b"PAR1" + b"\xff" * 400 + b"PAR1"
    for contents in (b"", b"PAR1", b"id,label\n1,2\n", cut, lying):
        bad.write_bytes(contents)
        with pytest.raises(InputError, match=r"bad\.parquet|cannot"):
            audit(good, bad)
    for table, says in (("nothing", "cannot find the table nothing"), ("a.b.c.d", "a table is NAME")):
        with pytest.raises(InputError, match=says):
            audit(table, "labels", engine="duckdb://")


@pytest.mark.parametrize(
    "address",
    [
        "postgres://ana:s3cret@db/logs",
        "postgres://ana:s3@cret@db/logs",
        "clickhouse://db/logs?PassWord=s3cret",
        "duckdb:///x.duckdb?motherduck_token=s3cret",
    ],
)
def test_an_address_with_a_secret_is_refused_without_telling_it(address: str) -> None:
    with pytest.raises(InputError, match=PASSWORD) as refused:
        audit("p", "l", engine=address)
    assert "s3cret" not in str(refused.value)
    assert "cret@" not in str(refused.value)


@pytest.mark.server
def test_a_server_that_is_not_there_is_said_without_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library("psycopg")
    monkeypatch.setenv(PASSWORD, "s3cret")
    with pytest.raises(ServerError, match=r"cannot open postgres://127\.0\.0\.1:1/logs") as refused:
        audit("p", "l", engine="postgres://ana@127.0.0.1:1/logs")
    assert "s3cret" not in str(refused.value)
    word = tmp_path / "word"
    word.write_text("s3cret\n")
    word.chmod(0o644)
    monkeypatch.delenv(PASSWORD)
    monkeypatch.setenv(f"{PASSWORD}_FILE", str(word))
    with pytest.raises(InputError, match="chmod 600"):
        audit("p", "l", engine="postgres://ana@127.0.0.1:1/logs")
