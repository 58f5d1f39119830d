"""Every engine finds what numpy finds, to 1e-12: DuckDB, a real Postgres, a real Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from engines import postgres, spark_options
from libraries import library
from logs import START, Logs, expected, some_logs
from pyarrow import parquet

from calib_serve.core.errors import InputError
from calib_serve.integrations.audit.engines import PASSWORD
from calib_serve.integrations.audit.measuring import Audit, audit

library("ibis")

pytestmark = [
    pytest.mark.filterwarnings("ignore:::ibis"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WORD = "it's a s3cret"
Auditor = Callable[..., Audit]


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def on_files(folder: Path, **options: Any) -> Auditor:
    def run(logs: Logs, **more: Any) -> Audit:
        for name in ("predictions", "labels"):
            parquet.write_table(getattr(logs, name), folder / f"{name}.parquet")
        how = {"confidence_of": "predicted", **options, **more}  # theirs are no model's
        return audit(folder / "predictions.parquet", folder / "labels.parquet", **how)

    return run


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres(password=WORD) as address:
        yield address


TYPES = {"int64": "bigint", "int32": "integer", "double": "double precision", "string": "text"}


def put(connection: Any, name: str, table: pa.Table) -> None:
    """A table of Postgres that holds what an arrow table holds."""
    types = [TYPES.get(str(one.type), "timestamptz") for one in table.schema]
    columns = ", ".join(f"{one} {kind}" for one, kind in zip(table.column_names, types, strict=True))
    connection.execute(f"DROP TABLE IF EXISTS {name}")
    connection.execute(f"CREATE TABLE {name} ({columns})")
    with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
        for row in table.to_pylist():
            copy.write_row(tuple(row.values()))


def on_postgres(address: str) -> Auditor:
    psycopg = library("psycopg")

    def run(logs: Logs, **more: Any) -> Audit:
        with psycopg.connect(address, password=WORD) as connection:
            put(connection, "logged_predictions", logs.predictions)
            put(connection, "logged_labels", logs.labels)
        how = {"confidence_of": "predicted", "engine": address, **more}
        return audit("public.logged_predictions", "logged_labels", **how)

    return run


@pytest.fixture(
    params=[
        "duckdb",
        pytest.param("postgres", marks=pytest.mark.server),
        pytest.param("spark", marks=[pytest.mark.server, pytest.mark.nightly]),
    ]
)
def auditor(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Auditor:
    monkeypatch.setenv("TZ", "America/St_Johns")  # no engine may read times by the clock of its host
    if request.param == "duckdb":
        return on_files(tmp_path)
    if request.param == "spark":
        return on_files(tmp_path, engine=spark_options(monkeypatch))
    monkeypatch.setenv(PASSWORD, WORD)
    return on_postgres(request.getfixturevalue("server"))


@pytest.mark.parametrize(("weighted", "text"), [(False, False), (True, True)])
def test_an_engine_finds_what_numpy_finds(auditor: Auditor, weighted: bool, text: bool) -> None:
    logs = some_logs(weighted=weighted, text=text)
    found = auditor(logs)
    assert [one.by for one in found.measured] == [{"model": "pets", "version": v} for v in ("1.0", "2.0")]
    for one in found.measured:
        version = np.array(logs.predictions["version"].to_pylist()) == one.by["version"]
        wanted = expected(logs, version)
        told = one.as_dict()
        assert (told["predictions"], told["labels"]) == (wanted.predictions, wanted.labelled)
        for name in ("count", "confidence", "correct"):
            close(getattr(one.bins, name), getattr(wanted, name))
        for name in ("ece", "accuracy", "brier"):
            close(told["labelled"][name], getattr(wanted, name))
    assert found.predictions == 3000
    assert found.unlabelled == 1000
    assert found.labels.counted == found.labels.rows == 2000


def test_windows_begin_and_end_at_their_second_and_groups_add_up(auditor: Auditor) -> None:
    logs = some_logs()
    since, until, every = START + 600, START + 60 * 2000 + 1, 12 * 3600
    found = auditor(
        logs,
        by=["segment"],
        since=datetime.fromtimestamp(since, timezone.utc),
        until=datetime.fromtimestamp(until, timezone.utc),
        every=every,
    )
    at = START + 60 * np.arange(3000)
    inside = (at >= since) & (at < until)
    segment = np.array(logs.predictions["segment"].to_pylist())
    seen = 0
    for one in found.measured:
        assert one.since is not None
        assert one.until is not None
        assert (one.since - since) % every == 0
        which = inside & (segment == one.by["segment"]) & (at >= one.since) & (at < one.until)
        wanted = expected(logs, which)
        assert one.sums.predictions.sum() == wanted.predictions
        close(one.bins.correct, wanted.correct)
        seen += wanted.predictions
    assert seen == inside.sum() == found.predictions
    close(found.total.bins.confidence, expected(logs, inside).confidence)


@pytest.mark.parametrize("kind", ["probabilities", "percent", "log_probs"])
def test_the_probability_of_a_named_class_is_measured_on_every_engine(auditor: Auditor, kind: Any) -> None:
    rng = np.random.default_rng(0)
    p, ids = rng.random(2000), np.arange(2000)
    y = (rng.random(2000) < p).astype(int)
    scale = {"probabilities": p, "percent": 100 * p, "log_probs": np.log(p)}[kind]
    predictions = {"id": ids, "predicted": (p > 0.5).astype(int), "confidence": scale}
    labels = {"id": ids, "label": np.array(["no", "yes"])[y]}
    logs = Logs(pa.table(predictions), pa.table(labels))
    found = auditor(logs, class_names=("no", "yes"), confidence_of="yes", outputs=kind).total.bins
    at = np.clip(np.searchsorted(np.linspace(0, 1, 16), p) - 1, 0, 14)
    close(found.correct, np.bincount(at, weights=y, minlength=15))
    close(found.confidence, np.bincount(at, weights=p, minlength=15))
    with pytest.raises(InputError, match="no class 7 "):
        auditor(logs, confidence_of="7", outputs=kind)
    below = auditor_refusal(auditor, logs, kind)
    assert "below 1/2" in below
    assert "--confidence-of yes" in below


def auditor_refusal(auditor: Auditor, logs: Logs, kind: Any) -> str:
    """What is said where a class's probability is taken for the predicted class's."""
    with pytest.raises(InputError) as refused:
        auditor(logs, class_names=("no", "yes"), confidence_of=None, outputs=kind)
    return str(refused.value)


def test_what_does_not_fit_is_counted_on_every_engine(auditor: Auditor) -> None:
    logs = Logs(
        pa.table(
            {
                "id": pa.array([1, 2, 3, 4, 5, 5, 6, 6, None, 8, 9, 10, 11], pa.int64()),
                "predicted": pa.array([0, 0, 0, 0, 0, 0, 0, 1, 0, None, 0, 0, 0], pa.int32()),
                "confidence": [0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.4, 0.3, 0.2, np.nan, 1.5, None],
            }
        ),
        pa.table(
            {
                "id": pa.array([1, 2, 2, 3, 3, 5, 6, 9, 77, 78, None, 4], pa.int64()),
                "label": pa.array([0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, None], pa.int64()),
            }
        ),
    )
    found = auditor(logs, skip_invalid=True)
    assert {name: one.count for name, one in found.refused.items()} == {
        "repeated": 2,
        "id": 1,
        "class": 1,
        "confidence": 3,
    }
    assert found.refused["repeated"].example == "6"
    assert found.refused["class"].example == "8"
    assert found.refused["confidence"].example in {"9", "10", "11"}
    assert (found.predictions, found.again, found.unlabelled, found.conflicting) == (13, 1, 1, 1)
    labels = found.labels
    assert (labels.rows, labels.empty, labels.without_prediction) == (12, 2, 2)
    assert (labels.again, labels.conflicting, labels.of_refused) == (1, 2, 2)
    assert labels.counted == 3 == found.total.bins.n  # of 1, 2 and 5
    assert found.total.bins.correct.sum() == 2
