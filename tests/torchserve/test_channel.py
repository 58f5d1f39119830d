"""The metrics channel: what we send is what the server's expression reads, to the last character."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ledgers import accept, entries, make_label
from real_watch import make_watch

from calib_serve.core.errors import InputError
from calib_serve.monitor import Detector
from calib_serve.receipts.series import SERIES, WORKERS
from calib_serve.torchserve._channel import LINE, Emitter, label_value, metric_line
from calib_serve.torchserve.feedback import Publisher

anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=80)


def read_back(line: str) -> tuple[str, float, list[tuple[str, str]]]:
    """What the server makes of a line: it splits labels at commas, and each at its colon."""
    match = LINE.fullmatch(line)
    assert match, line
    pairs = [pair.split(":") for pair in match.group(4).split(",")]
    assert all(len(pair) == 2 and all(pair) for pair in pairs), line
    return match.group(1), float(match.group(3)), [(key, value) for key, value in pairs]


@given(model=anything, version=anything, value=st.floats(0, 1e15))
def test_any_name_and_any_value_arrive_whole(model: str, version: str, value: float) -> None:
    labels = (label_value(model), label_value(version), "3")
    line = metric_line("calib_predictions_total", value, labels, host="h", second=7)
    assert len(line.splitlines()) == 1
    name, read, pairs = read_back(line)
    assert (name, read) == ("calib_predictions_total", value)
    assert pairs == list(zip(("model", "version", "bin"), labels, strict=True))


@given(a=anything, b=anything)
@example(a="", b="\0")
def test_different_short_names_stay_different(a: str, b: str) -> None:
    x, y = label_value(a), label_value(b)
    if max(len(x), len(y)) < 200:
        assert (x == y) == (a == b)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e16, -1.0])
def test_a_value_that_the_server_would_drop_is_never_sent(value: float) -> None:
    with pytest.raises(InputError, match="drop"):
        metric_line("calib_predictions_total", value, ("m", "v", "0"), host="h", second=0)


def test_every_series_has_a_line_of_its_own_shape() -> None:
    for series in (*SERIES, *WORKERS):
        line = metric_line(series.name, 0.5, tuple("x" for _ in series.labels), host="h", second=0)
        assert [key for key, _ in read_back(line)[2]] == list(series.labels)


def test_what_cannot_be_sent_is_counted_and_costs_nothing_else() -> None:
    sent: list[str] = []
    emitter = Emitter(write=sent.append)
    emitter.add("calib_predictions_confidence_total", math.nan, "m", "1", "0")
    emitter.add("calib_predictions_total", 1, "m", "1", "0")
    assert [emitter.flush(), emitter.flush()] == [1, 1]
    names = [read_back(text.strip())[0] for text in sent]
    assert names == ["calib_predictions_total", "calib_monitor_errors_total"]


@pytest.mark.store
def test_an_alarm_as_the_last_label_is_published_and_no_failure(tmp_path: Path) -> None:
    sent: list[str] = []
    watch = make_watch(tmp_path, detector=lambda: Detector(arl=100, tolerance=0.01), maturity=0.0)
    publisher = Publisher(watch, Emitter(write=sent.append, host="h"))
    publisher.publish()
    accept(watch.ledger, [make_label(i, label=0) for i in range(60)])
    watch.feed.tick()
    progress = watch.ledger.followers.progress()["m", "1"]
    assert math.isnan(progress.log_evidence)  # the detector has started afresh
    publisher.publish()
    publisher.publish()
    text = "".join(sent)
    alarms = [read_back(line) for line in text.splitlines() if "calib_drift_alarms_total" in line]
    assert [value for _, value, _ in alarms] == [0, 12]  # each value is sent once
    labels = [read_back(line) for line in text.splitlines() if "calib_feedback_total" in line]
    assert [value for _, value, _ in labels] == [0, 60]
    published = watch.ledger.published()
    assert labels[-1][2][-2:] == [("ledger", published.ledger), ("edition", published.edition)]
    assert not [line for line in text.splitlines() if "calib_monitor_errors_total.Count:1" in line]
    watch.close()


@pytest.mark.store
def test_windows_of_labels_are_published_and_predictions_are_left_to_the_workers_that_count_them(
    tmp_path: Path,
) -> None:
    watch, sent = make_watch(tmp_path), list[str]()
    publisher = Publisher(watch, Emitter(write=sent.append, host="h"))
    publisher.publish()
    accept(watch.ledger, [make_label(i, when=time.time()) for i in range(60)])
    publisher.publish()
    found: dict[str, float] = {}
    for line in "".join(sent).splitlines():
        if "calib_window_sums" in line:
            _, value, pairs = read_back(line)
            own = dict(pairs)
            if own["window"] == "24h":
                found[own["sum"]] = max(found.get(own["sum"], 0.0), value)
    assert found["feedback"] == 60
    assert "predictions" not in found
    assert found["feedback_confidence"] == pytest.approx(54)
    watch.close()


@pytest.mark.store
def test_the_next_worker_publishes_the_same_sums_and_after_a_revocation_another_edition(
    tmp_path: Path,
) -> None:
    watch = make_watch(tmp_path)

    def shown() -> dict[str, float]:
        """The labels that a new worker sends, by edition."""
        sent: list[str] = []
        Publisher(watch, Emitter(write=sent.append, host="h")).publish()
        found: dict[str, float] = {}
        for _, value, pairs in (
            read_back(one) for one in sent[0].splitlines() if "calib_feedback_total" in one
        ):
            edition = dict(pairs)["edition"]
            found[edition] = found.get(edition, 0.0) + value
        return found

    watch.ledger.accept(entries([make_label(i) for i in range(5)], source="lab"))
    watch.ledger.accept(entries([make_label(9)]))
    assert shown() == shown() == {"1": 6}
    watch.ledger.revoke("lab")
    assert shown() == {"2": 1}
    watch.close()
