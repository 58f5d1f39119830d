"""The report as a reader meets it: in a real browser, on a wide screen and on a phone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from chromium import chromium

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.metrics import evaluate, softmax
from calib_serve.report import write_report

pytestmark = pytest.mark.server

NAMES = ("ant", "bee", "cat", "dog", "<b>elk</b>")


def test_the_page_opens_complete_and_asks_nobody_for_anything(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    z = 2 * rng.standard_normal((1200, 5))
    labels = np.array([rng.choice(5, p=p) for p in softmax(z)])
    artifact = Artifact((LogitMap.temperature(3.0),), method="temperature", classes=5, class_names=NAMES)
    before, after = (softmax(3 * z), labels), (softmax(z), labels)
    path = write_report(
        tmp_path / "r.html", title="Five", before=before, after=after, artifact=artifact, replicates=50
    )
    with chromium() as browser:
        for width in (360, 1440):
            browser.open(path.as_uri(), width=width)
            assert browser.complaints() == []
            assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []
            assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        told = browser.run("return document.querySelector('#verdict').innerText").replace("\xa0", " ")
        found = evaluate(*after, replicates=0)
        assert f"Expected calibration error: {100 * found.ece.value:.1f} %" in told
        names = "return [...document.querySelectorAll('.sortable tbody th')].map(e => e.innerText)"
        press = "document.querySelectorAll('.sortable thead button')[0].click();"
        assert browser.run(press + names) == sorted(NAMES)
        assert browser.run(press + names) == sorted(NAMES, reverse=True)
