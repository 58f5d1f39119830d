"""The page of ``watch``: its numbers are those of the sums, and it lives in a browser without help."""

import re

import httpx
import numpy as np
import pytest
from chromium import chromium
from real_watch import make_watch, talk_to

from calib_serve.receipts.batch import ServedPrediction


def numbers(page):
    """The values of the three figures and of the table of all others, by their names."""
    plain = page.replace("\xa0", " ")
    figures = re.findall(r"<dt>([^<]*)</dt>\s*<dd[^>]*>([^<]*)</dd>", plain)
    rows = re.findall(r'<th scope="row">([^<]*)</th><td data-name="Value">([^<]*)</td>', plain)
    return dict(rows + figures)


def first_screen(page):
    """The words that are seen before anything is opened."""
    section = page[page.index('<section class="first"') : page.index("</section>")]
    text = re.sub(r"<[^>]*>", " ", re.sub(r"<svg.*?</svg>", "", section, flags=re.DOTALL))
    return [word for word in text.split() if re.search("[a-z]", word, re.IGNORECASE)]


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
            shown = numbers(client.get("/", params={"segment": segment, "window": "1h"}).text)
            assert shown["Predictions"] == shown["Labels"] == f"{mine.sum():,}"
            assert float(shown["Accuracy"].split()[0]) == pytest.approx(100 * right[mine].mean(), abs=0.3)
            gap = 100 * (c - right)[mine].mean()
            assert float(shown["Gap, points"]) == pytest.approx(gap, abs=0.3)
        page = client.get("/", params={"window": "1h"}).text
        assert '<div class="verdict off">' in page
        assert "Not calibrated: overconfident, on average" in page
        assert len(first_screen(page)) <= 60
        assert "all wrong, or all right" not in page  # every prediction has its label: nothing is unknown
    watch.close()


@pytest.mark.server
def test_it_renews_its_numbers_and_asks_nobody_else(shared_watch):
    server, model = shared_watch, shared_watch.model()
    one = {"model": model, "version": "1", "predicted": 1, "confidence": 0.9}
    httpx.post(f"{server.url}/v1/predictions", json={"items": [one] * 60}, timeout=60)
    with chromium(hosts="127.0.0.1") as browser:
        browser.open(f"{server.url}/?model={model}&version=1&window=all")
        count = "return document.querySelectorAll('.facts')[0].textContent"
        before = browser.run(count)
        httpx.post(f"{server.url}/v1/predictions", json={"items": [one] * 7}, timeout=60)
        browser.wait(f"{count} !== {before!r}")
        assert all(url.startswith((server.url, "data:")) for url in browser.requests())
        assert browser.complaints() == []
