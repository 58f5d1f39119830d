"""The page's first part: every version with one status, incidents first, then what serves most now."""

import logging
import re
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from ledgers import by_clock
from real_watch import RING, make_watch, talk_to

from calib_serve.ledger import Ledger
from calib_serve.metrics import Verdict
from calib_serve.monitor import Detector
from calib_serve.monitor.checks import Check
from calib_serve.monitor.versions import Watched
from calib_serve.monitor.watch import Watch
from calib_serve.receipts import ServedPrediction
from calib_serve.receipts.classes import Classes
from calib_serve.web.monitoring.files import monitoring_files
from calib_serve.web.status import status_of

pytestmark = pytest.mark.store
CALIBRATED = Verdict("calibrated", "Calibrated: off by at most 1 point.")


class Clock:
    """The time, as far on as somebody says."""

    ahead = 0.0

    def __call__(self):
        return time.time() + self.ahead


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(tmp_path, clock):
    models = {("m", version): Watched(Classes(3, ("zero", "one", "two"))) for version in ("1", "2")}
    watch = Watch(RING, by_clock(Ledger(tmp_path / "l.db"), clock), models=models, maturity=0.0)
    yield watch
    watch.close()


def serve(watch, version, count, *, gap=None):
    rng = np.random.default_rng(0)
    confidences = rng.uniform(0.5, 0.95, count)
    receipts = watch.predictions([ServedPrediction("m", version, 1, float(c)) for c in confidences])
    if gap is not None:
        right = rng.random(count) < confidences - gap
        watch.labels([{"receipt": r, "label": 1 if y else 2} for r, y in zip(receipts, right, strict=True)])


def drift(watch, version):
    """An incident by the detector itself, of labels that are wrong by 20 points."""
    rng, detector = np.random.default_rng(0), Detector(arl=1e4)
    c = rng.uniform(0.6, 0.9, 1500)
    y = rng.random(1500) < c - 0.2
    alarms = detector.update(c, y, time=time.time() + np.arange(1500))
    watch.feed.incidents.observe(("m", version), list(c - y), alarms, first=1, now=time.time())


def page(watch, **query):
    with talk_to(watch) as client:
        return client.get("/", params=query).text


def heading(text):
    return " ".join(re.sub("<[^>]*>", "", re.search(r'class="title">(.*?)</h[12]>', text)[1]).split())


def rows(text):
    """The status of each version, in the page's order."""
    table = text[text.index('aria-label="Versions"') : text.index("</tbody>")]
    found = re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>.*?data-name="Status"[^>]*>([^<]*)<', table)
    return dict(found)


def test_it_opens_on_what_serves_now_and_not_on_what_served_most_ever(watch, clock):
    serve(watch, "1", 5000)
    clock.ahead = 7200
    serve(watch, "2", 50)
    assert watch.traffic() == {("m", "2"): 50}
    assert heading(page(watch)) == "m 2"
    assert heading(page(watch, model="m", version="1")) == "m 1"
    clock.ahead = 20 * 3600  # in the last hour nobody served, and before that 2 did
    assert heading(page(watch)) == "m 2"


def test_an_incident_is_on_top_whichever_version_is_looked_at(watch):
    serve(watch, "2", 500, gap=0.0)
    serve(watch, "1", 50, gap=0.0)
    drift(watch, "1")
    for version in ("1", "2"):
        text = page(watch, model="m", version=version)
        before = text[: text.index('aria-label="Verdict"')]
        assert re.search(r'class="verdict off">.*?version=1.*?overconfident', before, re.DOTALL)
        assert list(rows(text)) == ["m 1", "m 2"]
        assert rows(text)["m 1"] == "Incident 1"
    text = page(watch, model="m", version="1")
    assert 'class="verdict calibrated"' not in text
    assert "Drifting: overconfident" in text


def test_one_version_alone_has_one_banner_for_its_incident(tmp_path):
    watch = make_watch(tmp_path, maturity=0.0)
    serve(watch, "1", 50)
    drift(watch, "1")
    text = page(watch)
    watch.close()
    assert text.count('class="verdict off"') == 1
    assert "<h1>All versions" not in text


def test_nothing_green_stands_above_what_is_wrong(watch):
    serve(watch, "2", 20_000, gap=0.0)
    assert '<div class="verdict calibrated">' in page(watch)
    watch.checks.add(Check("upstream", lambda: "it does not answer"))
    watch.checks.run("upstream")
    text = page(watch)
    assert '<div class="verdict calibrated">' not in text
    assert "Check upstream: it does not answer" in text
    assert rows(text)["m 2"] == "In doubt"


@pytest.mark.parametrize("level", ["calibrated", "no_error_found", "too_little", "off"])
def test_a_failing_check_makes_no_status_better(level):
    order = ["calibrated", "no_error_found", "too_little", "off"]
    verdict = Verdict(level, "Something is said.")
    well, ill = (status_of(verdict, checks={"disk": reason}) for reason in (None, "full"))
    assert order.index(ill.level) >= order.index(well.level) == order.index(level)
    assert (ill.level == "calibrated") is False


@pytest.mark.parametrize("gap", [0.0, 0.15])
def test_advice_is_for_a_model_that_serves(watch, gap):
    serve(watch, "2", 20_000, gap=gap)
    told = watch.window(("m", "2"), "1h").verdict
    assert told.level == ("off" if gap else "calibrated")
    text = page(watch)
    assert told.do[0] in text
    assert ("go back a version" in told.do[0]) == bool(gap)
    for of_a_file in ("Deploy it", "held-out"):
        assert of_a_file not in text + " ".join(told.do)


def test_who_closes_an_incident_is_in_the_log_and_why_is_not(watch, caplog):
    drift(watch, "1")
    with caplog.at_level(logging.WARNING), talk_to(watch) as client:
        client.post("/v1/incidents/1/close", json={"by": "ann", "note": "a secret"})
    assert "m 1: incident 1 is closed by ann" in caplog.text
    assert "secret" not in caplog.text
    with caplog.at_level(logging.WARNING):
        drift(watch, "2")
        watch.feed.incidents.observe(("m", "2"), [0.0] * 40_000, [], first=1501, now=time.time())
    assert "m 2: incident 2 is closed by recovery" in caplog.text


class Page(HTMLParser):
    """The anchors and links of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.ids |= {value for name, value in attrs if name == "id"}
        self.links |= {value for name, value in attrs if tag == "a" and name == "href"}


def test_every_alert_has_its_section_in_the_watch_and_no_link_there_is_dead(watch):
    with talk_to(watch, tokens=["a-token-that-is-long"]) as client:  # an alert's link opens without one
        answer = client.get("/runbooks")
    assert answer.status_code == 200
    found = Page(answer.text)
    links = re.findall(r"runbook_url: (\S+)", monitoring_files(parts=["alerts"])["prometheus/alerts.yml"])
    assert len(links) > 10
    assert {one.partition("#")[0] for one in links} == {"http://127.0.0.1:9300/runbooks"}
    assert {one.partition("#")[2] for one in links} <= found.ids
    assert found.links == {"."}
    assert "<table>" in answer.text


def test_the_page_links_to_the_runbooks(watch):
    drift(watch, "2")
    serve(watch, "2", 10)
    assert "runbooks#calibrationdrift" in Page(page(watch)).links
