"""What is held of every server in whose process a Reporter runs, whatever protocol it speaks."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import httpx
import numpy as np
import psutil
from example_servers import Site, expected, rows
from live_server import until


@dataclass(frozen=True)
class Reply:
    """What a client reads of one row."""

    predicted: int
    confidence: float
    receipt: str


Predict = Callable[[np.ndarray], list[Reply]]
"""Sends rows (n, 16) by the server's own protocol, as one request where it takes several rows."""


def served(predict: Predict, x: np.ndarray, *, clients: int = 8, at_once: int = 1) -> list[Reply]:
    """The replies to ``x``, sent by several clients; each is what the artifact makes of its row."""
    parts = np.array_split(x, max(1, len(x) // at_once))
    with ThreadPoolExecutor(clients) as pool:
        found = [reply for replies in pool.map(predict, parts) for reply in replies]
    probs = expected(x)
    assert [reply.predicted for reply in found] == probs.argmax(axis=1).tolist()
    np.testing.assert_allclose([reply.confidence for reply in found], probs.max(axis=1), rtol=1e-5)
    assert len({reply.receipt for reply in found}) == len(x)
    assert all(reply.receipt for reply in found)
    return found


def send_labels(site: Site, replies: list[Reply], label: int = 3) -> dict[str, int]:
    """What the watch answered to one label for all of them: accepted and refused."""
    items = [{"receipt": reply.receipt, "label": label} for reply in replies]
    answer = httpx.post(f"{site.watch.url}/v1/labels", json={"items": items}, timeout=60).json()
    return {"accepted": answer["accepted"], "refused": answer["refused"]}


def workers_of(site: Site) -> list[psutil.Process]:
    """The processes that the server has spawned to run the model, and that run."""
    found = []
    for process in psutil.Process(site.processes[-1].pid).children():
        with suppress(psutil.NoSuchProcess):  # a zombie is none either
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process)
    return found


def check_a_killed_worker_loses_no_more_than_it_had_not_sent(
    site: Site, predict: Predict, workers: Callable[[Site], list[psutil.Process]] = workers_of
) -> None:
    """Of two workers one is killed: what was counted stays, and its successor counts on."""
    served(predict, rows(60))
    site.until_counted(60)
    killed = workers(site)[0]
    killed.kill()
    until(lambda: len(workers(site)) == 2 and killed not in workers(site), seconds=60)
    served(predict, rows(60, seed=1))
    site.until_counted(120)


def check_predictions_and_labels_are_counted_once(site: Site, predict: Predict, n: int = 120) -> None:
    """Each prediction, and each label of one, however often it is sent; in the bins of their confidences."""
    replies = served(predict, rows(n))
    site.until_counted(n)
    half = replies[: n // 2]
    assert send_labels(site, half) == {"accepted": n // 2, "refused": 0}
    assert send_labels(site, replies) == {"accepted": n - n // 2, "refused": n // 2}
    assert site.counted("calib_feedback_total", model="digits", version="1") == n
    right = sum(reply.predicted == 3 for reply in replies)
    day = {"name": "calib_window_sums", "window": "24h", "version": "1"}
    assert site.counted(**day, sum="feedback_correct") == right
    mean = sum(reply.confidence for reply in replies)
    assert abs(site.counted(**day, sum="feedback_confidence") - mean) < 1e-4 * n


def check_the_watch_may_be_away(site: Site, predict: Predict, n: int = 60) -> None:
    """Predictions go on while nobody counts them, and are counted when somebody does."""
    site.watch.process.kill()
    site.watch.process.wait()
    away = served(predict, rows(n, seed=1))
    site.watch.process.stderr.close()
    site.watch.start()
    back = served(predict, rows(n, seed=2))
    site.until_counted(2 * n)
    assert send_labels(site, away + back) == {"accepted": 2 * n, "refused": 0}


def check_the_watch_may_die_at_work(site: Site, predict: Predict, times: int = 3) -> None:
    """Killed and started again while predictions come, it counts each once, acknowledged or not."""
    ended = threading.Event()

    def go_on() -> int:
        found = 0
        while not ended.is_set():
            found += len(predict(rows(1)))
        return found

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(go_on) for _ in range(4)]
        try:
            for _ in range(times):
                seen = site.counted("calib_predictions_total")
                until(lambda seen=seen: site.counted("calib_predictions_total") > seen, seconds=60)
                site.watch.process.kill()
                site.watch.process.wait()
                site.watch.process.stderr.close()
                site.watch.start()
        finally:
            ended.set()
        answered = sum(one.result() for one in asking)
    site.until_counted(answered, seconds=60)


def check_what_was_served_is_counted_at_the_end(
    site: Site, predict: Predict, how: signal.Signals, n: int = 60
) -> None:
    """Asked to end right after its last reply, the server sends what it has not sent yet."""
    served(predict, rows(n, seed=3))
    site.processes[-1].send_signal(how)
    site.processes[-1].wait(60)
    site.until_counted(n)


def check_a_row_without_a_number_spoils_no_other(site: Site, predict: Predict) -> None:
    """Of rows that may come in one batch, one has infinite logits: it alone has no receipt."""
    x = rows(11, seed=4).astype(float)
    x[5] = 1.7e308

    def ask(row: np.ndarray) -> list[Reply]:
        with suppress(AssertionError):  # what the server refuses has no receipt, either
            return predict(row[None])
        return []

    with ThreadPoolExecutor(11) as pool:
        found = list(pool.map(ask, x))
    assert not any(reply.receipt for reply in found[5])
    assert all(replies[0].receipt for replies in found[:5] + found[6:])
    site.until_counted(10)


def check_each_answer_until_the_end_is_counted(
    site: Site, predict: Predict, how: signal.Signals, *, last_words: str = ""
) -> None:
    """Asked to end amid its work: whatever it has answered is counted.

    ``last_words``: of a server that may stay though it has shut down all it had; it is killed then.
    """
    started, ended = time.monotonic(), threading.Event()

    def ask_on(seed: int) -> tuple[int, int]:
        asked = answered = 0
        while not ended.is_set() and time.monotonic() - started < 120:
            asked += 1
            try:
                answered += len(predict(rows(1, seed=seed)))
            except (httpx.TransportError, AssertionError):  # it has ended, or refuses what is new
                time.sleep(0.01)
        return asked, answered

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask_on, seed) for seed in range(4)]
        until(lambda: site.counted("calib_predictions_total") > 0)
        process = site.processes[-1]
        process.send_signal(how)
        if last_words:
            until(lambda: process.poll() is not None or last_words in site.log())
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
        process.wait(90)
        ended.set()
    asked, answered = np.sum([client.result() for client in clients], axis=0)
    assert answered > 0
    with suppress(AssertionError):
        until(lambda: site.counted("calib_predictions_total") >= answered, seconds=60)
    assert answered <= site.counted("calib_predictions_total") <= asked
