"""What repeats in the log is written a few times a minute, and counted."""

from __future__ import annotations

import logging

import pytest

from calib_serve.watch.http.quiet import Sparing, sparing


def message(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("a", logging.ERROR, "", 0, text, args, None)


def test_each_kind_is_written_a_few_times_a_minute_and_then_counted() -> None:
    now = [0.0]
    quiet = Sparing(clock=lambda: now[0])
    assert sum(quiet.filter(message("no more files, 100 %% %s", i)) for i in range(1000)) == 5
    assert quiet.filter(message("another"))
    now[0] = 61
    assert quiet.filter(message("another"))
    record = message("no more files, 100 %% %s", "x")
    assert quiet.filter(record)
    assert record.getMessage() == "no more files, 100 % x (995 more like this before)"


def test_kinds_that_are_made_up_are_no_way_around() -> None:
    quiet = Sparing(clock=lambda: 0.0)
    assert sum(quiet.filter(message(f"kind {i}")) for i in range(20_000)) < 300


def test_it_ends_with_the_server(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("calib_serve.of_a_test")
    with sparing(log.name):
        for _ in range(100):
            log.error("again")
    assert len(caplog.records) == 5
    log.error("again")
    assert len(caplog.records) == 6
