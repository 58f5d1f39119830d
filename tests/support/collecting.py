"""A real watch, a real collector, and predictions whose labels are on the way."""

import os
import sys
import threading
import time
from contextlib import contextmanager

import httpx
from processes import started

from calib_serve.receipts import Keyring

FACTS = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}


def predict(server, count, prefix="order"):
    """Predictions that come with ids; their labels."""
    items = [FACTS | {"id": f"{prefix}-{i}"} for i in range(count)]
    for at in range(0, count, 1000):
        answer = httpx.post(f"{server.url}/v1/predictions", json=items[at : at + 1000], timeout=60)
        assert answer.status_code == 200
    return [{"id": one["id"], "label": 1} for one in items]


def by_receipt(folder, count):
    """Labels with receipts."""
    ring = Keyring.load(folder / "keys.json")
    return [{"receipt": ring.sign(**FACTS), "label": 1} for _ in range(count)]


def value(url, name, **labels):
    """A sample of /metrics; the sum over labels that are not named."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    wanted = [f'{key}="{one}"' for key, one in labels.items()]
    lines = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(one in line for one in wanted))


def counted(server):
    return value(server.url, "calib_feedback_total")


def command(source, server, *options):
    return [
        sys.executable,
        *("-W", "error::DeprecationWarning:calib_serve"),
        *("-c", "from calib_serve.app import main; main()", "label", str(source)),
        *("--url", f"{server.url}/v1/labels", *map(str, options)),
    ]


def collecting(source, server, *options, log=None, **more):
    """A real ``calib-serve label`` that follows, ended afterwards; what it says goes to the file ``log``."""
    return started(command(source, server, *options), stdout=log, stderr=log, env=os.environ | more)


def until(condition, *, seconds=120, what=""):
    """The first true result of ``condition``; fails where there is none in time."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"not within {seconds} s {what}"
        time.sleep(0.1)
    return result


@contextmanager
def at_work(collector, **options):
    """Inside, a collector runs in a thread; it has ended behind."""
    thread = threading.Thread(target=collector.run, kwargs=options)
    thread.start()
    try:
        yield
    except BaseException:
        collector.stop()
        raise
    finally:
        thread.join()
