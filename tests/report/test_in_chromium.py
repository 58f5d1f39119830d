"""The report as a reader meets it: in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chromium import Browser, chromium

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.metrics import evaluate, softmax
from calib_serve.report import write_report

RNG = np.random.default_rng(11)
NAMES = ("ant", "bee", "cat", "dog", "<b>elk</b>")
LOGITS = 2 * RNG.standard_normal((1200, 5))
LABELS = np.array([RNG.choice(5, p=p) for p in softmax(LOGITS)])
BEFORE, AFTER = softmax(3 * LOGITS), softmax(LOGITS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    artifact = Artifact((LogitMap.temperature(3.0),), method="temperature", classes=5, class_names=NAMES)
    return write_report(
        tmp_path_factory.mktemp("report") / "report.html",
        title="Five animals",
        before=(BEFORE, LABELS),
        after=(AFTER, LABELS),
        artifact=artifact,
        replicates=100,
    )


def contrast(browser, selector: str, paint: str) -> float:
    """WCAG's contrast ratio of what an element's text is painted with and the page's paper."""
    colors = browser.run(
        f"const e = document.querySelector({selector!r});"
        f"return [getComputedStyle(e).{paint}, getComputedStyle(document.body).backgroundColor]"
    )

    def luminance(color: str) -> float:
        rgb = np.array([int(v) / 255 for v in re.findall(r"\d+", color)[:3]])
        linear = np.where(rgb <= 0.03928, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, light = sorted(map(luminance, colors))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_opens_without_a_complaint_or_a_request(browser, report: Path, dark: bool) -> None:
    browser.open(report.as_uri(), dark=dark)
    assert browser.run("return document.title") == "Five animals: calibration report"
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith(("file:", "data:"))] == []


def test_the_verdict_matches_the_numbers(browser, report: Path) -> None:
    browser.open(report.as_uri())
    found = evaluate(AFTER, LABELS, replicates=0)
    told = browser.run("return document.querySelector('#verdict').innerText").replace("\xa0", " ")
    assert f"Expected calibration error: {100 * found.ece.value:.1f} %" in told
    assert f"It is right in {100 * found.accuracy.value:.1f} % of 1,200 predictions" in told
    tile = browser.run("return document.querySelector('.tiles').innerText").replace("\xa0", " ")
    assert f"{100 * evaluate(BEFORE, LABELS, replicates=0).ece.value:.2f} %" in tile
    assert f"{100 * found.ece.value:.2f} %" in tile
    assert "better" in tile


def test_the_accessibility_tree_names_every_figure(browser, report: Path) -> None:
    browser.open(report.as_uri())
    nodes = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    images = [n for n in nodes if n.get("role", {}).get("value") in ("img", "image", "graphics-document")]
    named = {n["name"]["value"]: n.get("description", {}).get("value", "") for n in images}
    assert "Does confidence mean what it says?" in named
    assert len([text for text in named.values() if len(text) > 40]) == 6


def test_headings_sort_the_classes_both_ways(browser, report: Path) -> None:
    browser.open(report.as_uri())
    names = "return [...document.querySelectorAll('.sortable tbody th')].map(e => e.innerText)"
    press = "document.querySelectorAll('.sortable thead button')[0].click();"
    assert browser.run(press + names) == sorted(NAMES)
    assert browser.run(press + names) == sorted(NAMES, reverse=True)
    order = browser.run("return document.querySelector('.sortable thead th').getAttribute('aria-sort')")
    assert order == "descending"
    by_count = "document.querySelectorAll('.sortable thead button')[1].click();"
    counts = "return [...document.querySelectorAll('.sortable tbody tr')].map(r => +r.cells[1].dataset.value)"
    found = browser.run(by_count + counts)
    assert found == sorted(np.bincount(LABELS).tolist(), reverse=True)


def test_the_whole_page_can_be_walked_by_keyboard(browser, report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(report.as_uri())
    walked: list[str] = []
    while len(walked) < 60 and walked.count("Askip") < 2:
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        walked.append(browser.run("return document.activeElement.tagName + document.activeElement.className"))
    assert walked.pop(0) == "Askip"
    assert walked.count("SUMMARY") == 6
    assert walked.count("BUTTON") == 8


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_is_readable_in_both_modes(browser, report: Path, dark: bool) -> None:
    browser.open(report.as_uri(), dark=dark)
    for selector in ("h1", ".meta", "figcaption", "summary", ".word.better", "svg text", "td small"):
        paint = "fill" if selector == "svg text" else "color"
        assert contrast(browser, selector, paint) >= 4.5, selector


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_runs_off_the_side(browser, report: Path, width: int) -> None:
    browser.open(report.as_uri(), width=width)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_it_prints_on_paper(browser, report: Path) -> None:
    browser.open(report.as_uri(), dark=True)
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert len(printed) > 20_000
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.run("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
