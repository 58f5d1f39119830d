"""The report as a reader meets it: in a real browser, on a wide screen and on a phone."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from chromium import chromium

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.metrics import evaluate
from calib_serve.report import write_report
from calib_serve.scores import softmax

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
            every = "document.querySelectorAll('details').forEach((fold) => (fold.open = true));"
            for opened in ("", every):
                assert browser.run(opened + "return document.documentElement.scrollWidth <= innerWidth")
        told = browser.run("return document.querySelector('.facts').innerText").replace("\xa0", " ")
        found = evaluate(*after, replicates=0)
        assert f"{100 * found.ece.value:.1f} %" in told
        browser.run("document.querySelector('#each').open = true")
        names = "return [...document.querySelectorAll('.sortable tbody th')].map(e => e.innerText)"
        press = "document.querySelectorAll('.sortable thead button')[0].click();"
        assert browser.run(press + names) == sorted(NAMES)
        assert browser.run(press + names) == sorted(NAMES, reverse=True)


def test_it_can_be_read_by_keyboard_in_the_dark_on_a_phone_and_on_paper(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    p = softmax(2 * rng.standard_normal((900, 3)))
    labels = np.array([rng.choice(3, p=row) for row in p])
    sharp = p**2 / (p**2).sum(1, keepdims=True)
    path = write_report(
        tmp_path / "r.html", title="Three", before=(sharp, labels), after=(p, labels), replicates=0
    )
    shown = (
        "return [...document.querySelectorAll('#verdict svg')].map((e) => e.getBoundingClientRect().right)"
    )
    contrast = """
        const [r, g, b] = getComputedStyle(document.querySelector('.verdict strong')).color.match(/[0-9.]+/g);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;"""
    with chromium() as browser:
        browser.open(path.as_uri(), width=390)
        assert max(browser.run(shown)) <= 390  # nothing of "after" is cut off
        light = browser.run(contrast)
        browser.run("document.querySelector('#sure summary').focus()")
        browser.driver.switch_to.active_element.send_keys("\n")
        assert browser.run("return document.querySelector('#sure').open")
        browser.open(path.as_uri(), dark=True)
        assert browser.run(contrast) > light + 60
        printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
        assert base64.b64decode(printed["data"]).count(b"/Type /Page") > 3  # with all that is folded
