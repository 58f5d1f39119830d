"""The written page: one file, safe, complete, and true to its numbers."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.errors import InputError, ShapeError
from calib_serve.core.options.evaluate import ReportOptions
from calib_serve.metrics import ece
from calib_serve.report import Contents, prepare_report, render, write_page, write_report
from calib_serve.scores import softmax

RNG = np.random.default_rng(5)
LOGITS = 2 * RNG.standard_normal((1500, 4))
LABELS = np.array([RNG.choice(4, p=p) for p in softmax(LOGITS)])
BEFORE = softmax(2.5 * LOGITS), LABELS  # overconfident
AFTER = softmax(LOGITS), LABELS  # calibrated by construction
ARTIFACT = Artifact(
    (LogitMap.temperature(2.5),),
    method="temperature",
    classes=4,
    class_names=("cat", "dog", "frog", "newt"),
    fit={"temperature": 2.5},
    data={"samples": 900},
)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&$\\frac{1}{</title>\u202e\x00"


class Page(HTMLParser):
    """Tags with their attributes, and the ids of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def contents() -> Contents:
    return prepare_report(
        title="pets", before=BEFORE, after=AFTER, artifact=ARTIFACT, options=ReportOptions(replicates=50)
    )


@pytest.fixture(scope="module")
def page(contents: Contents) -> str:
    return render(contents)


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", page)).replace("\xa0", " ")


def test_the_page_is_one_small_file_that_loads_nothing(page: str, contents: Contents, tmp_path: Path) -> None:
    """And the same numbers give the same bytes, whoever draws with matplotlib beside it."""
    before = dict(mpl.rcParams)
    path = write_page(tmp_path / "new" / "r.html", contents)
    assert path.read_text() == page
    assert dict(mpl.rcParams) == before
    assert [p.name for p in path.parent.iterdir()] == ["r.html"]
    assert path.stat().st_size < 2_000_000
    tags = Page(page).tags
    links = [v for _, attrs in tags for k, v in attrs.items() if k in ("src", "href", "xlink:href", "action")]
    assert all(link.startswith(("#", "data:")) for link in links if link)
    assert "url(http" not in page


def first_screen(page: str) -> str:
    """The text of the first section, without its diagram."""
    section = page[page.index('<section class="first"') : page.index("</section>")]
    return " ".join(text_of(re.sub(r"<svg.*?</svg>", "", section, flags=re.DOTALL)).split())


def words(text: str) -> list[str]:
    return [word for word in text.split() if re.search("[a-z]", word, re.IGNORECASE)]


def test_the_first_screen_tells_the_verdict_and_three_figures(page: str, contents: Contents) -> None:
    told = first_screen(page)
    assert contents.verdict.headline.replace("\xa0", " ") in told
    assert f"ECE {100 * ece(*BEFORE):.1f} % → {100 * ece(*AFTER):.1f} %" in told
    accuracy = 100 * (AFTER[0].argmax(1) == LABELS).mean()
    assert f"Accuracy {accuracy:.1f} % → {accuracy:.1f} %" in told
    assert "Classes changed 0.0 %" in told
    assert len(words(told)) <= 60


def test_hostile_names_stay_text() -> None:
    artifact = Artifact(
        (),
        method=HOSTILE,
        classes=4,
        class_names=(HOSTILE.rstrip("\0"), "b", "c", "d"),
        model={HOSTILE: HOSTILE},
        fit={"note": [HOSTILE] * 3},
    )
    contents = prepare_report(
        title=HOSTILE,
        before=BEFORE,
        after=AFTER,
        artifact=artifact,
        options=ReportOptions(names=(HOSTILE, "$\\frac"), replicates=0),
    )
    page = render(contents)
    parsed = Page(page)
    assert len(parsed.all("script")) == 1
    assert not parsed.all("img")
    assert not any(name.startswith("on") for _, attrs in parsed.tags for name in attrs)
    assert "\u202e" not in page
    assert "\x00" not in page
    assert "$\\frac" in page


def test_only_the_pages_own_script_may_run(page: str) -> None:
    policy = next(a["content"] for a in Page(page).all("meta") if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.split("script-src")[1]


def test_predictions_of_other_samples_are_refused() -> None:
    with pytest.raises(ShapeError, match="same samples"):
        prepare_report(title="x", before=(BEFORE[0][:-1], LABELS[:-1]), after=AFTER)
    with pytest.raises(InputError, match="different labels"):
        prepare_report(title="x", before=(BEFORE[0], LABELS[::-1]), after=AFTER)
    with pytest.raises(InputError, match=r"report\.html"):
        write_report("slide.png", title="x", after=AFTER, replicates=0)
    with pytest.raises(InputError, match="tolerance"):
        prepare_report(title="x", after=AFTER, options=ReportOptions(tolerance=2, replicates=0))
