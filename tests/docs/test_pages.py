"""Every block of every page is run as it stands, in order, against real servers where it starts them.

What cannot run here is in ``NOT_RUN``, and what is run once for two pages in ``RUN_ELSEWHERE``. Nothing else
is left out: a block that somebody adds is run, or fails this test. What a newcomer follows first, README and
quickstart, is run in every run, all other pages at night.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from doc_blocks import (
    DOCS,
    ROOT,
    blocks,
    commands,
    pages,
    typed,
    unlike,
    unlike_json,
)
from live_server import total
from PIL import Image
from real_servers import needed
from terminal import Terminal, http_ok, http_text

from calib_serve import load_artifact, load_model
from calib_serve.metrics import ece
from calib_serve.models import calibrated_probs
from calib_serve.scores import softmax

# --- what is not run here -------------------------------------------------------------------------

NOT_RUN = (
    # They ask a package index; tests/test_packages.py and scripts/server_environments.sh do the same.
    *("pip install ", "pip uninstall ", "-c constraints.txt", "--require-hashes", "uv add "),
    # Servers of environments of their own, which tests/servers starts.
    *("python calibrated.py", "bentoml serve ", "serve run ", "mlserver start ", "mlflow models serve"),
    # Minutes to hours, each with tests of its own.
    *("make ", "python benchmarks/", "scripts/watch_image.sh "),
    # tests/deploy/test_watch_proxy.py runs it, with its folders elsewhere.
    "nginx -c ",
    # A container engine, a cluster.
    *("docker build", "docker compose", "docker import", "kubectl "),
    # A database, a Kafka or files of others, which tests/integrations/test_label_recipes.py has.
    *('psql "$DATABASE"', 'calib-serve label "kafka:', "for file in labels/"),
)
"""Commands that hold one of these."""

# Files that a page shows whole: tests/servers runs each by its own server, and holds them equal.
OF_SERVERS = {path.read_text("utf-8") for path in (ROOT / "examples" / "servers").rglob("*.py")}

# Commands that start a server, or train, where the page does nothing with it: another page has the
# very same command, and there it is run.
RUN_ELSEWHERE = {
    ("docs/report.md", "calib-serve evaluate"): "docs/quickstart.md",
    ("model_store/README.md", "calib-serve serve"): "docs/torchserve.md",
}

# They begin in an empty folder; the other pages go on in that of the quickstart.
FIRST = {ROOT / "README.md", DOCS / "quickstart.md"}

# Pages that a test of their own follows, as their server is not one of ours.
FOLLOWED_ELSEWHERE = {
    DOCS / "gateway.md": "tests/gateway/test_gateway_page.py",
}

# --- what a page finds in its folder besides the quickstart's files, or just before a command ------


def image(t: Terminal) -> np.ndarray:
    pixels = np.load(t.folder / "data.npz")["test_inputs"][0, 0]
    Image.fromarray((pixels * 255).astype(np.uint8)).save(t.folder / "image.png")
    (t.folder / "image.json").write_text(json.dumps([pixels.tolist()]))
    return pixels


def a_picture_and_a_checkout(t: Terminal) -> None:
    image(t)
    t.copy("config.properties", "handlers")


def a_text_classifier(t: Terminal) -> None:
    """A classifier of Hugging Face that is three times too sure, and labelled texts of two splits."""
    from hugging_face import NAMES, classifier, drawn, logits, sentences, table

    t.type(f"export PYTHONPATH={Path(__file__).parents[1] / 'support' / 'torchvision_ops'}")
    classifier(t.folder / "model")
    texts = sentences(700)
    labels = [NAMES[y] for y in drawn(logits(t.folder / "model", texts, at_once=50))]
    table(t.folder / "reviews.csv", texts, labels, split=["cal"] * 400 + ["test"] * 300)


def a_changed_world(t: Terminal) -> None:
    """Predictions with logits and their labels, on which the artifact is overconfident."""
    import httpx

    rng = np.random.default_rng(3)
    logits = np.tile(np.load(t.folder / "logits.npz")["test_logits"], (4, 1))
    for z in np.array_split(logits, 6):
        items = [
            {"model": "digits", "version": "1.0", "predicted": int(row.argmax()), "confidence": 0.9}
            | {"logits": row.tolist()}
            for row in z
        ]
        answer = httpx.post(t.url(9300, "v1/predictions"), json={"items": items}, timeout=60).json()
        true = np.where(rng.random(len(z)) < 0.6, z.argmax(1), rng.integers(0, 10, len(z)))
        labels = [
            {"receipt": one["receipt"], "label": int(y)} for one, y in zip(answer["items"], true, strict=True)
        ]
        done = httpx.post(t.url(9300, "v1/labels"), json={"items": labels}, timeout=60).json()
        assert done["accepted"] == len(z)
    t.stop(9300)  # it writes its log once a minute, and when it ends


def a_linear_model(t: Terminal) -> None:
    """The examples of FastAPI, and the weights that they serve."""
    rng = np.random.default_rng(0)
    np.savez(t.folder / "weights.npz", W=rng.normal(size=(3, 10)), b=rng.normal(size=10))
    for path in (ROOT / "examples" / "servers" / "fastapi").glob("*.py"):
        (t.folder / path.name).write_text(t.here(path.read_text("utf-8")), "utf-8")


def the_page_of_the_watch_has_a_verdict(t: Terminal) -> None:
    """898 predictions, one by curl, and as many labels, though they were sent twice."""
    assert http_ok(t.url(9300, ""), has=("digits 1.0", "would tell as much", "Reliability"))
    served = http_text(t.url(8082, "metrics"))
    assert total(served, "calib_feedback_total", model="digits") == 898
    assert total(served, "calib_predictions_total", model="digits") == 898


BEFORE_PAGE: dict[str, Callable[[Terminal], object]] = {
    "docs/torchserve.md": a_picture_and_a_checkout,
    "docs/data.md": a_text_classifier,
    "docs/servers.md": a_linear_model,
}
BEFORE_COMMAND = {
    ("docs/torchserve.md", "torch-model-archiver"): the_page_of_the_watch_has_a_verdict,
    ("docs/recalibrate.md", "calib-serve refit model_store"): a_changed_world,
}

# --- what a page promises, beyond that its commands succeed ----------------------------------------


def a_calibrated_model(t: Terminal) -> None:
    project = t.folder / "digits"
    data, model = np.load(project / "data.npz"), load_model(project / "model.pt2", input_shape=(1, 8, 8))
    before = softmax(model.logits(data["test_inputs"]))
    after = calibrated_probs(model, data["test_inputs"], load_artifact(project / "artifact"))
    assert ece(after, data["test_labels"]) < ece(before, data["test_labels"])


AFTER_PAGE = {
    "README.md": a_calibrated_model,
}

# --- the test ---------------------------------------------------------------------------------------

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def follow(page: Path, t: Terminal) -> None:
    """Do what a reader of ``page`` does, block by block."""
    name = name_of(page)
    for program in ("curl", "prometheus", "promtool"):
        if any(where == name and f"{program} " in command for where, command in every_command()):
            needed(program, program)
    BEFORE_PAGE.get(name, BEFORE_PAGE.get(name.split("/")[0], lambda _: None))(t)
    for block in blocks(page):
        if block.language in ("bash", "console"):
            for command, shown in typed(block):
                is_run = type_it(name, command, t)
                missing = unlike(shown, t.output) if shown and is_run else None
                assert missing is None, f"{name} shows\n{missing}\nand {command} printed\n{t.output}"
        elif block.language == "python":
            if block.text not in OF_SERVERS:
                t.python(block.text)
        elif block.language == "json":
            missing = unlike_json(block.text, t.output)
            assert missing is None, f"{name} shows {missing}:\n{block.text}\nand this came\n{t.output}"
        elif block.language == "yaml":
            assert yaml.safe_load(block.text)
        else:
            raise AssertionError(f"{name} has a block of {block.language!r}, which nothing here runs")
    AFTER_PAGE.get(name, lambda _: None)(t)


def type_it(name: str, command: str, t: Terminal) -> bool:
    """Type a command unless it is not run here; return whether it was typed."""
    if any(words in command for words in NOT_RUN):
        return False
    for (page, start), other in RUN_ELSEWHERE.items():
        if page == name and command.startswith(start):
            assert (other, plain(command)) in {(p, plain(c)) for p, c in every_command()}, command
            return False
    for (page, start), prepare in BEFORE_COMMAND.items():
        if page == name and command.startswith(start):
            prepare(t)
    t.type(plain(command))
    return True


def plain(command: str) -> str:
    """Without the words behind it."""
    return re.sub(r"\s+#.*", "", command)


@pytest.fixture(scope="module")
def quickstart(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart") / "folder"
    folder.mkdir()
    with Terminal(folder, installed) as t:
        follow(DOCS / "quickstart.md", t)
    return folder


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(one, marks=[] if one in FIRST else [pytest.mark.nightly], id=name_of(one))
        for one in pages()
        if one not in FOLLOWED_ELSEWHERE
    ],
)
def test_every_block_runs(page: Path, quickstart: Path, installed: Path, tmp_path: Path) -> None:
    if page == DOCS / "quickstart.md":
        return  # the fixture has followed it
    folder = tmp_path / "folder"
    if page in FIRST:
        folder.mkdir()
    else:
        shutil.copytree(quickstart, folder, ignore=shutil.ignore_patterns("serving", "logs"))
    with Terminal(folder, installed) as t:
        follow(page, t)


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["without_the_command_line.py"])
def test_an_example_runs(command: str, installed: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path / "folder", installed) as t:
        t.folder.mkdir()
        t.copy("examples")
        t.type(f"python examples/{command}")
        assert t.output


def every_command() -> Iterator[tuple[str, str]]:
    for page in pages():
        for block in blocks(page):
            if block.language in ("bash", "console"):
                yield from ((name_of(page), command) for command in commands(block))
