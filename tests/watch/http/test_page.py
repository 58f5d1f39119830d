"""The page of ``watch`` in a real Chromium: live, whole without the network, for every reader."""

import os
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from chromium import chromium

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.bins import Bins
from calib_serve.watch.ledger import Key, SqliteLedger, Sums

pytestmark = pytest.mark.server

CONTRAST = """
const parse = text => text.match(/[\\d.]+/g).map(Number);
const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(v => { v /= 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return .2126*r + .7152*g + .0722*b; };
const ground = node => { for (let n = node; n; n = n.parentElement) {
  const c = parse(getComputedStyle(n).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
  return [255, 255, 255]; };
const poor = [];
for (const node of document.querySelectorAll("h1,h2,p,dt,dd,th,td,a,figcaption,summary,svg text")) {
  if (!node.textContent.trim() || node.closest(".skip") || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const a = light(parse(node.closest("svg") ? style.fill : style.color)), b = light(ground(node));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) poor.push(`${node.tagName} ${node.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
}
return poor;
"""


@pytest.fixture(scope="module")
def browser():
    with chromium(hosts="127.0.0.1") as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class):
    """A watch that has seen calibrated labels of two segments, then overconfident ones."""
    folder = tmp_path_factory.mktemp("watch")
    rng = np.random.default_rng(0)
    reference = Bins.tally(rng.beta(6, 2, 2000), np.ones(2000))
    Artifact((LogitMap.temperature(1.5),), method="temperature", classes=3, reference=reference).save(
        folder / "artifact"
    )
    models = (f"digits:1.0={folder / 'artifact'}", "digits:0.9=3")
    remember(folder / "ledger.db", rng)
    with server_class(folder, "--arl", "10000", "--maturity", "0", models=models) as server:
        for step in range(8):
            c = rng.beta(6, 2, 250)
            send(server, c, rng.random(250) < c - (0.15 if step > 4 else 0), rng)
            time.sleep(1.1)
        wait_for_an_incident(server)
        yield server


def remember(path, rng):
    """What was served in the hours before: calibrated."""
    ledger = SqliteLedger(path)
    for minutes in range(5, 720, 5):
        for name in ("north", "south"):
            c = rng.beta(6, 2, 10)
            sums = Sums.served(c) + Sums.labelled(c, rng.random(10) < c, delay=60.0)
            keys = (Key("digits", "1.0", name), Key("digits", "1.0", "1", "class"))
            ledger.add(dict.fromkeys(keys, sums), time=time.time() - 60 * minutes)
    ledger.close()


def wait_for_an_incident(server):
    end = time.monotonic() + 60
    while not httpx.get(f"{server.url}/v1/incidents", timeout=60).json()["items"]:
        assert time.monotonic() < end, "no incident within 60 s"
        time.sleep(0.1)


def send(server, confidence, right, rng):
    segments = ["north", "south"]
    items = [
        {
            "model": "digits",
            "version": "1.0",
            "predicted": 1,
            "confidence": float(c),
            "segment": segments[int(rng.integers(2))],
        }
        for c in confidence
    ]
    answer = httpx.post(f"{server.url}/v1/predictions", json={"items": items}, timeout=60).json()
    labels = [
        {"receipt": one["receipt"], "label": int(y), "segment": item["segment"]}
        for one, y, item in zip(answer["items"], right, items, strict=True)
    ]
    assert httpx.post(f"{server.url}/v1/labels", json=labels, timeout=60).json()["refused"] == 0


def test_it_shows_what_is_going_on_and_complains_of_nothing(browser, server):
    browser.open(f"{server.url}/?window=1h")
    assert "Overconfident: it says" in browser.run("return document.body.innerText")
    browser.open(server.url)
    text = browser.run("return document.body.innerText")
    assert "Open incident 1: overconfident, +" in text
    assert "labels are taken as they come" in text
    assert browser.run("return document.querySelectorAll('svg .dot').length") >= 8
    assert browser.run("return document.querySelectorAll('svg .bar').length") == 15
    assert browser.run("return document.querySelectorAll('.broad svg polyline.ece').length") == 1
    assert browser.run("return document.querySelectorAll('svg line.alarm').length") >= 1
    assert browser.run("return document.querySelectorAll('svg polyline.reference').length") == 1
    assert browser.complaints() == []


def test_windows_are_looked_at_one_by_one_and_say_how_much_they_cover(browser, server):
    counts = []
    for name in ("1h", "24h", "all"):
        browser.open(f"{server.url}/?window={name}&model=digits&version=1.0")
        assert browser.run("return document.querySelector('nav.windows a[aria-current]').textContent") == name
        text = browser.run("return document.querySelector('.tiles').innerText")
        assert "of predictions lie where there are enough labels" in text
        counts.append(browser.run("return document.querySelectorAll('.tiles dd')[0].textContent"))
    counts = [int(one.replace(",", "")) for one in counts]
    assert counts[0] < counts[1] <= counts[2]
    assert browser.complaints() == []


def test_without_a_known_maturity_it_says_so_and_judges_nothing(browser, tmp_path, server_class):
    with server_class(tmp_path, models=("digits:1.0=3",)) as young:
        send(young, np.full(60, 0.9), np.zeros(60), np.random.default_rng(0))
        browser.open(young.url)
        text = browser.run("return document.body.innerText")
        assert "Too early to tell" in text
        assert "How late labels come is not known yet" in text
        assert browser.complaints() == []


def test_it_asks_nobody_but_its_own_server(browser, server):
    browser.open(server.url)
    assert all(url.startswith((server.url, "data:")) for url in browser.requests())


def test_numbers_renew_themselves(browser, server):
    browser.open(server.url)
    count = "return document.querySelectorAll('.tiles dd')[0].textContent"
    before = browser.run(count)
    one = {"model": "digits", "version": "1.0", "predicted": 1, "confidence": 0.9}
    httpx.post(f"{server.url}/v1/predictions", json={"items": [one] * 7}, timeout=60)
    browser.wait(f"{count} !== {before!r}")
    assert "Live, as of" in browser.run("return document.getElementById('live').textContent")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1100])
def test_it_is_readable_on_a_phone_and_in_the_dark(browser, server, dark, width):
    browser.open(server.url, dark=dark, width=width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(CONTRAST) == []
    beyond = "return [...document.querySelectorAll('td, th, svg')].filter(n => n.getClientRects().length && "
    if width < 400:  # nothing is cut off, nor behind a scrollbar
        assert browser.run(f"{beyond} n.getBoundingClientRect().right > {width}).length") == 0
        assert browser.run("return getComputedStyle(document.querySelector('.narrow')).display") == "block"
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(17, 20, 24)") == dark


def test_the_keyboard_reaches_versions_segments_and_tables(browser, server):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(server.url)
    seen = []
    for _ in range(20):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        seen.append(
            browser.run(
                "const n = document.activeElement, s = getComputedStyle(n);"
                "return [n.textContent.trim().slice(0, 40), s.outlineStyle !== 'none']"
            )
        )
    names = [name for name, _ in seen]
    assert names[0] == "Skip to the figures"
    for link in ("1h", "24h", "7d", "all", "Open incident 1", "digits 0.9", "digits 1.0", "north", "south"):
        assert link in names
    assert all(outlined for name, outlined in seen if name in ("digits 0.9", "north"))
    link = browser.driver.find_element(By.LINK_TEXT, "north")
    link.send_keys(Keys.ENTER)
    browser.wait("return document.querySelector('h2').textContent.includes('north')")


def test_what_is_open_or_focused_is_not_torn_away(browser, server):
    browser.open(server.url)
    browser.run("document.querySelector('details').open = true")
    time.sleep(6)
    assert browser.run("return document.querySelector('details').open")


def test_it_is_photographed_for_the_docs_when_asked(browser, server, tmp_path):
    browser.open(server.url, width=1100)
    path = browser.photograph(Path(os.environ.get("CALIB_SERVE_SCREENSHOT", tmp_path / "page.png")))
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


@pytest.mark.last
def test_an_incident_that_a_person_closed_is_said(browser, server):
    closed = httpx.post(
        f"{server.url}/v1/incidents/1/close", json={"by": "Ada", "note": "<b>known</b>"}, timeout=60
    )
    assert closed.status_code == 200
    browser.open(server.url)
    text = browser.run("return document.getElementById('incidents').parentElement.innerText")
    assert "by Ada" in text
    assert "<b>known</b>" in text
    assert "Open incident 1" not in browser.run("return document.body.innerText")
