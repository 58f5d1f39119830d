"""The page of ``watch``: its numbers are those of the sums, and it lives in a browser without help."""

import re

import httpx
import numpy as np
import pytest
from chromium import chromium
from real_watch import make_watch, talk_to

from calib_serve.watch.batch import ServedPrediction


def tiles(page):
    """The values of the tiles by their names."""
    return dict(re.findall(r"<dt>([^<]*)</dt>\s*<dd[^>]*>([^<]*)</dd>", page))


@pytest.mark.store
def test_the_numbers_of_each_segment_are_those_of_numpy(tmp_path):
    rng = np.random.default_rng(0)
    c = rng.uniform(0.4, 0.95, 3000)
    right, north = rng.random(3000) < c - 0.1, rng.random(3000) < 0.3
    watch = make_watch(tmp_path, maturity=0.0)
    receipts = watch.predictions(
        [
            ServedPrediction("m", "1", 1, float(p), segment="north" if at else "south")
            for p, at in zip(c, north, strict=True)
        ]
    )
    labels = [{"receipt": r, "label": 1 if y else 2} for r, y in zip(receipts, right, strict=True)]
    assert all(one.accepted for one in watch.labels(labels))
    with talk_to(watch) as client:
        for segment, mine in (("", north | True), ("north", north)):
            shown = tiles(client.get("/", params={"segment": segment, "window": "1h"}).text)
            assert shown["Predictions"] == shown["Labels"] == f"{mine.sum():,}"
            assert float(shown["Accuracy"].split()[0]) == pytest.approx(100 * right[mine].mean(), abs=0.3)
            gap = 100 * (c - right)[mine].mean()
            assert float(shown["Gap"].split()[0]) == pytest.approx(gap, abs=0.3)
            brier = ((c - right)[mine] ** 2).mean()
            assert float(shown["Brier"]) == pytest.approx(brier, abs=2e-3)
        assert "Not calibrated: overconfident, on average" in client.get("/", params={"window": "1h"}).text
    watch.close()


@pytest.mark.server
def test_it_renews_its_numbers_and_asks_nobody_else(shared_watch):
    server, model = shared_watch, shared_watch.model()
    one = {"model": model, "version": "1", "predicted": 1, "confidence": 0.9}
    httpx.post(f"{server.url}/v1/predictions", json={"items": [one] * 60}, timeout=60)
    with chromium(hosts="127.0.0.1") as browser:
        browser.open(f"{server.url}/?model={model}&version=1&window=all")
        count = "return document.querySelectorAll('.tiles dd')[0].textContent"
        before = browser.run(count)
        httpx.post(f"{server.url}/v1/predictions", json={"items": [one] * 7}, timeout=60)
        browser.wait(f"{count} !== {before!r}")
        assert all(url.startswith((server.url, "data:")) for url in browser.requests())
        assert browser.complaints() == []
