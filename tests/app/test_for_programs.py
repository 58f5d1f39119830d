"""What commands print for people are the numbers that they print for programs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import calib_serve

from calib_serve import Artifact, evaluate
from calib_serve.app import COMMANDS
from calib_serve.app._command import program
from calib_serve.app.evaluate import reliability_table
from calib_serve.core.bins import Bins
from calib_serve.fit import CANDIDATES
from calib_serve.metrics import evaluate_labels
from calib_serve.receipts import Keyring
from calib_serve.scores import Scores
from calib_serve.torchserve.foreign import ArchiveLook

FIRST = {
    "accuracy", "mean_confidence", "ece", "noise_floor", "positive_ece", "positive_noise_floor", "nll",
    "brier", "refinement_auroc",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scores of three classes in two splits, of two classes, and of 33 labels, three times too sure."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    z = 2 * rng.standard_normal((600, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    z *= 3
    np.savez("z.npz", cal_logits=z[:300], cal_labels=y[:300], test_logits=z[300:], test_labels=y[300:])
    one = rng.standard_normal(600)
    np.savez(
        "two.npz",
        logits=np.stack([0 * one, 3 * one], axis=1),
        labels=(rng.random(600) < 1 / (1 + np.exp(-one))).astype(int),
    )
    many = rng.standard_normal((300, 33))
    shifted = many - np.arange(33) / 20
    truths = (rng.random(many.shape) < 1 / (1 + np.exp(-many))).astype(int)
    np.savez("labels.npz", label_logits=shifted, labels=truths, class_names=[f"l{k}" for k in range(33)])
    return tmp_path


def printed(*arguments: object, code: int = 0) -> str:
    done = calib_serve(*arguments)
    assert done.exit_code == code, done.output
    return done.stdout


def cells(text: str, first: str) -> list[str]:
    """The cells of the table's row that begins with ``first``."""
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] or [""] for line in text.splitlines()]
    return next(row for row in rows if row[0] == first)


def metric(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return f"{value:.4f}" if name in ("nll", "entropy") or "cllr" in name else f"{100 * value:.2f}\xa0%"


@pytest.mark.parametrize("file", ["z.npz", "two.npz", "labels.npz"])
def test_evaluate_prints_the_first_metrics_or_all_with_their_intervals(file: str) -> None:
    split = ("--split", "test") if file == "z.npz" else ()
    read = Scores.read(file, split=split[1] if split else None)
    found = evaluate_labels(read) if read.is_multilabel else evaluate(read)
    few, all_ = printed("evaluate", file, *split), printed("evaluate", file, *split, "--verbose")
    what = ("samples", "labels") if read.is_multilabel else ("predictions", "classes")
    assert f"{file}: {len(read)} {what[0]}, {read.classes} {what[1]}" in few
    assert cells(few, "metric") == ["metric", "value", "debiased", "0.95 low", "high"]
    for name, one in found.estimates().items():
        assert cells(all_, name)[1:] == [
            metric(name, x) for x in (one.value, one.debiased, one.low, one.high)
        ]
        assert (f" {name} " in few) == (name in FIRST)


def test_a_verdict_says_its_reasons_where_they_are_asked_for() -> None:
    verdict = json.loads(printed("evaluate", "z.npz", "--split", "test", "--json"))["verdict"]
    few, all_ = (printed("evaluate", "z.npz", "--split", "test", *more) for more in ((), ("--verbose",)))
    assert few.splitlines()[0] == all_.splitlines()[0] == verdict["headline"]
    for shown, do in ((few, verdict["do"][:1]), (all_, verdict["do"])):
        lines = [line[2:] for line in shown.splitlines() if line.startswith("- ")]
        assert [line for line in lines if line in verdict["do"]] == do
    assert all((one in few, one in all_) == (False, True) for one in verdict["reasons"])


def test_a_reliability_diagram_has_a_row_for_each_bin_that_holds_anything() -> None:
    p, y = np.array([0.55, 0.55, 0.55, 0.95, 0.999, 1.0]), np.array([1, 0, 0, 1, 1, 1], bool)
    table = reliability_table(Bins.tally(p, y, bins=4))
    columns = [[str(cell) for cell in column._cells] for column in table.columns]
    assert columns[0] == ["0.500-0.750", "0.750-1.000"]
    assert columns[1] == ["3", "3"]
    assert columns[3] == ["+21.7", "-1.7"]
    middle, last = columns[2]
    assert (len(middle), middle.count("█"), middle.index("|")) == (41, 13, 22)
    assert (len(last), last.count("█"), last.index("|")) == (41, 39, 39)
    assert table.columns[2].header == "0 %" + 33 * " " + "100 %"


@pytest.mark.parametrize(
    ("file", "bins"),
    [
        ("two.npz", lambda read: evaluate(read).positive_bins),
        ("z.npz", lambda read: evaluate(read).bins),
        ("labels.npz", lambda read: evaluate_labels(read).bins),
    ],
)
def test_evaluate_draws_the_diagram_that_its_verdict_is_of(file: str, bins: Callable[[Scores], Bins]) -> None:
    split = ("--split", "test") if file == "z.npz" else ()
    found, shown = (
        bins(Scores.read(file, split=split[1] if split else None)),
        printed("evaluate", file, *split),
    )
    counts = [
        row[1] for line in shown.splitlines() if len(row := line.split("│")[1:-1]) == 4 and "-" in row[0]
    ]
    assert [int(one) for one in counts] == [int(n) for n in found.count if n]
    assert ("P(y = 1)" in shown) == (file == "two.npz")
    both = printed("evaluate", file, *split, "--verbose")
    assert both.count("bars are") == 1 + (file == "two.npz")


def test_labels_are_shown_from_the_worst_on() -> None:
    found, shown = evaluate_labels(Scores.read("labels.npz")), printed("evaluate", "labels.npz")
    worst = found.worst()
    assert [line.split("│")[1].strip() for line in shown.splitlines() if re.match(r"│ l\d", line)] == [
        f"l{k}" for k in worst[:30]
    ]
    assert "3 more by --json" in shown
    assert "reliability of all labels' decisions: bars are accuracy, | is confidence" in shown
    one = found.labels[worst[0]]
    values = (one.prevalence, one.accuracy, one.positive_gap, one.positive_ece, one.positive_brier)
    shares = [metric("ece", value) for value in values]
    assert cells(shown, f"l{worst[0]}")[1:] == [
        *shares,
        metric("nll", one.nll),
        metric("ece", one.positive_ece.low),
    ]


def test_levels_of_a_tree_are_shown_with_their_intervals() -> None:
    Path("tree.yaml").write_text("low: ['0', '1']\nhigh: ['2']")
    asked = ("evaluate", "z.npz", "--split", "test", "--tree", "tree.yaml")
    (level,) = json.loads(printed(*asked, "--json"))["levels"]
    (row,) = [line.split() for line in printed(*asked).splitlines() if line.startswith("1  ")]
    assert "level nodes accuracy" in printed(*asked)
    m = level["metrics"]
    shares = [m["accuracy"]["value"], *(m["ece"][end] for end in ("value", "low", "high"))]
    wanted = [
        "1",
        "2",
        *(metric("ece", x) for x in shares),
        metric("nll", m["nll"]["value"]),
        metric("", m["brier"]["value"]),
    ]
    assert row == [*" ".join(wanted).split(), *level["verdict"]["level"].split("_")]


def test_compare_shows_what_it_measured() -> None:
    asked = ("compare", "z.npz", "--methods", "none,temperature,platt")
    told, shown = json.loads(printed(*asked, "--json")), printed(*asked)
    assert "fitted on cal, measured on test" in shown
    assert (told["fit_split"], told["test_split"]) == ("cal", "test")
    names = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "refinement_auroc")
    assert "acc    nll brier   ece  aece cwece auroc moved    s" in shown
    for one in told["methods"]:
        row = next(line.split() for line in shown.splitlines() if line.startswith(one["method"]))
        if "error" in one:
            assert f"{one['method']}: {one['error']}" in shown
            continue
        values = [(name, one["metrics"][name]["value"]) for name in names]
        assert row[1:8] == [f"{v:.4f}" if name == "nll" else f"{100 * v:.2f}" for name, v in values]
        assert row[8] == f"{100 * one['moved']:.2f}"
    assert any("error" in one for one in told["methods"])
    alike = json.loads(printed("compare", "two.npz", "two.npz", "--json"))
    shown = printed("compare", "two.npz", "two.npz", "-o", "r.html").splitlines()
    assert (shown[0], shown[-1]) == (alike["verdict"]["gain"], "written to r.html")
    _, first, second, *_ = next(line.split() for line in shown if line.startswith("NLL"))
    assert first == second == f"{alike['sides'][0]['metrics']['nll']['value']:.4f}"


def test_a_fit_shows_candidates_facts_and_metrics_where_they_are_asked_for() -> None:
    asked = ("fit", "z.npz", "--split", "cal", "--test-split", "test", "-o", "a")
    shown = printed(*asked, "--option", "candidates=none,temperature,histogram-width", "--verbose")
    artifact = Artifact.load("a")
    assert f"{artifact.method} fitted on 300 samples, measured on test; written to a" in shown
    for one in artifact.selection.scores:
        numbers = [f"{one.score:.5f}", f"{one.above_best:.5f} ± {one.standard_error:.5f}"]
        assert cells(shown, one.method)[1:] == [*numbers, one.refused or ""]
    for name, after in artifact.after.items():
        before = artifact.before[name]
        wanted = [
            metric(name, end["value"])
            + ("" if end["low"] is None else f" [{metric(name, end['low'])}, {metric(name, end['high'])}]")
            for end in (before, after)
        ]
        assert cells(shown, name) == [name, *wanted]
    assert cells(shown, "method") == ["method", artifact.method]
    assert cells(printed("inspect", "a"), "fingerprint") == ["fingerprint", artifact.fingerprint]
    facts = json.loads(printed("inspect", "a", "--json"))
    weight = float(artifact.steps[0].weight)
    assert facts["steps"] == [{"kind": "logit_map", "weight": weight, "on": "logits"}]
    assert (facts["classes"], facts["method"]) == (3, artifact.method)
    assert facts["reference"]["n"] == artifact.reference.n


def test_a_study_shows_its_rows_and_what_it_says() -> None:
    asked = ("compare", "z.npz", "--study", "size", "--option", "sizes=50,100", "--option", "repeats=2")
    told, shown = json.loads(printed(*asked, "--json")), printed(*asked, "-o", "made")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    for row, one in zip(rows, told["rows"], strict=True):
        for cell, value in zip(row, one.values(), strict=True):
            if isinstance(value, float):
                assert cell == f"{value:.4f}"
            else:
                assert cell == ("" if value is None else f"{value:,}" if isinstance(value, int) else value)
    said = [line[2:] for line in shown.splitlines() if line.startswith("- ")]
    assert said == told["says"]
    assert "written to made/" in shown
    assert Path("made/study.json").is_file()


def test_a_calibrated_model_is_called_so() -> None:
    rng = np.random.default_rng(1)
    one = 2 * rng.standard_normal(40_000)
    labels = (rng.random(40_000) < 1 / (1 + np.exp(-one))).astype(int)
    np.savez("good.npz", logits=np.stack([0 * one, one], axis=1), labels=labels)
    assert printed("evaluate", "good.npz").startswith("Calibrated")


def test_the_names_of_both_sides_are_on_the_page() -> None:
    printed("fit", "z.npz", "--split", "cal", "--method", "temperature", "-o", "a")
    printed("fit", "z.npz", "--split", "cal", "--method", "vector", "-o", "b")
    asked = ("evaluate", "z.npz", "--split", "test", "--artifact", "a", "--report", "r.html", "--json")
    for more, names in (((), ["before", "after"]), (("--against", "b"), ["b", "a"])):
        sides = json.loads(printed(*asked, *more))["report"]["sides"]
        assert [one["name"] for one in sides] == names


def test_keys_are_listed_with_when_each_may_go() -> None:
    ring = Keyring.create(Path("keys.json"))
    printed("keys", "rotate", "keys.json")
    new = Keyring.load("keys.json").active
    shown = printed("keys", "list", "keys.json").splitlines()
    assert len(shown) == 2
    lines = {line.split()[0]: line for line in shown}
    assert lines[new] == f"{new}  signs     retire once another signs"
    assert re.fullmatch(rf"{ring.active}  verifies  retire from 20.* on", lines[ring.active])
    printed("keys", "add", "keys.json")
    (fresh,) = set(Keyring.load("keys.json").keys) - {new, ring.active}
    assert f"{fresh}  verifies  retire once it signs nowhere (not known here)" in printed(
        "keys", "list", "keys.json"
    )
    token = printed("keys", "token", "lab", "--scopes", "label")
    assert re.fullmatch(r"token: (\S{43})\nline:  lab label sha256:[0-9a-f]{64}\n", token)


def test_methods_are_listed_and_each_shows_its_options() -> None:
    shown = printed("methods")
    for name in (*CANDIDATES, "auto", "platt", "batch", "neural-clamping"):
        assert any(line.split()[:1] == [name] for line in shown.splitlines()), name
    assert "--option bins=  [default: 15]" in printed("methods", "histogram-width")
    clamping = printed("methods", "neural-clamping")
    assert "--option batch_size=  [default: 256]" in clamping
    assert "--option device=\n" in clamping
    for never in ("samples", "class_names", "seed", "progress"):
        assert f"--option {never}=" not in clamping + printed("methods", "temperature")
    refused = calib_serve("methods", "nosuch")
    assert (refused.exit_code, "there is no method 'nosuch'; choose one of auto, " in refused.stderr) == (
        2,
        True,
    )


def test_methods_are_listed_where_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import calib_serve.fit as room

    of_face = room.__getattr__

    def without_torch(name: str) -> object:
        if name.startswith("MODEL_"):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return of_face(name)

    for name in ("MODEL_FITTERS", "MODEL_OPTIONS"):
        monkeypatch.delitem(vars(room), name, raising=False)
    monkeypatch.setattr(room, "__getattr__", without_torch)
    shown = printed("methods")
    assert " temperature " in shown
    assert "neural-clamping" not in shown
    assert "--option bins=  [default: 15]" in printed("methods", "histogram-width")


LOOK = ArchiveLook(
    name="pets", version="1.0", handler="handler.py", sha256=None, calibrated=False, classes=7,
    class_names=tuple("abcdefg"), seam="model.forward", output="logits", outputs="logits",
    request="one picture", alone_because="", reply={"said": "x" * 90}, shows=("the class", "its probability"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "rows", "last"),
    [
        (
            {},
            {
                "handler": "handler.py", "sha256": "no model file in the manifest", "request": "one picture",
                "passes": "logits, 7 classes: a, b, c, d, e, ...", "seam": "model.forward, in its logits",
                "in batches": "each score is its own request's",
            },
            "Neural Clamping and new heads change the model itself",
        ),
        (
            {
                "calibrated": True, "class_names": (), "outputs": "label_logits", "output": "",
                "alone_because": "odd",
            },
            {
                "handler": "handler.py, inside a calibration", "seam": "model.forward", "in batches": "odd",
                "passes": "label_logits, 7 labels, of which any may be true, without names",
            },
            "  calib-serve evaluate DATA --from x.mar",
        ),
    ],
)  # fmt: skip
def test_what_one_request_showed_of_an_archive_is_told_with_what_to_do(
    change: dict, rows: dict[str, str], last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def look(archive: Path, options: object, *, probe: Path | None) -> ArchiveLook:
        asked.append((archive.name, options.seam, options.outputs, probe))  # type: ignore[attr-defined]
        return replace(LOOK, **change)

    monkeypatch.setattr("calib_serve.torchserve.look_at_archive", look)
    told = json.loads(printed("inspect", "--from", "x.mar", "--json"))
    assert told == {"archive": "x.mar", **json.loads(json.dumps(replace(LOOK, **change).as_dict()))}
    shown = printed("inspect", "--from", "x.mar", "--seam", "model", "--outputs", "logits", "--probe", "p")
    assert asked == [("x.mar", None, None, None), ("x.mar", "model", "logits", Path("p"))]
    assert shown.startswith("pets 1.0\n")
    assert {name: cells(shown, name)[1] for name in rows} == rows
    assert cells(shown, "reply")[1] == f"{json.dumps(LOOK.reply)[:77]}..."
    assert shown.splitlines()[-1].startswith(last)
    if not change:
        how = ["--seam", "model", "--outputs", "logits"]
        fit, pack = (line.split()[2:] for line in shown.splitlines() if line.startswith("  calib-serve"))
        assert fit == ["DATA", "--from", "x.mar", *how, "-o", "artifact"]
        assert pack == ["--from", "x.mar", "--artifact", "artifact", *how[:2], "--probe-data", "DATA"]


def test_exported_arrays_are_what_the_artifact_makes_of_the_scores() -> None:
    printed("fit", "labels.npz", "--method", "temperature", "-o", "l")
    assert printed("export", "probabilities", "l", "labels.npz", "-o", "l-probs.npz").endswith(
        "33 labels: l-probs.npz\n"
    )
    made, artifact = np.load("l-probs.npz"), Artifact.load("l")
    probs = artifact.probs(Scores.read("labels.npz"))
    np.testing.assert_array_equal(made["label_probs"], probs)
    np.testing.assert_array_equal(made["confidence"], np.maximum(probs, 1 - probs))
    assert str(made["calibrated_by"]) == artifact.fingerprint
    assert made["class_names"].tolist() == [f"l{k}" for k in range(33)]
    printed("fit", "z.npz", "--split", "cal", "--method", "temperature", "-o", "a")
    printed("decide", "a", "z.npz", "--split", "test", "--coverage", "0.9", "--risk", "0.4", "-o", "d")
    printed("export", "probabilities", "d", "z.npz", "--split", "test", "-o", "z-probs.npz")
    made, decided = np.load("z-probs.npz"), Artifact.load("d")
    probs = decided.probs(np.load("z.npz")["test_logits"])
    np.testing.assert_array_equal(made["set"], decided.sets(probs))
    np.testing.assert_array_equal(made["abstain"], decided.abstain(probs))
    np.testing.assert_allclose(made["confidence"], probs.max(axis=1))
    assert not {"act", "decision", "ids"} & set(made)
    assert calib_serve("decide", "a", "z.npz", "--split", "test", "--risk", "0.4", "-o", "d").exit_code == 2


def test_acts_of_a_contract_are_exported() -> None:
    printed("fit", "z.npz", "--split", "cal", "--method", "temperature", "-o", "a")
    Path("contract.yaml").write_text("contract: 1\nact: {above: 0.6, accuracy: 0.5}\n")
    printed("contract", "set", "a", "contract.yaml")
    printed("export", "probabilities", "a", "z.npz", "--split", "test", "-o", "p.npz")
    made = np.load("p.npz")
    np.testing.assert_array_equal(made["act"], made["probs"].max(axis=1) >= 0.6)
    assert 0 < made["act"].mean() < 1


def test_an_artifact_says_what_the_scores_of_its_samples_are() -> None:
    data = np.load("z.npz")
    for split in ("cal", "test"):
        named = np.array(["a", "b", "c"])[data[f"{split}_labels"]]
        rows = zip(data[f"{split}_logits"].tolist(), named, strict=True)
        lines = ["a,b,c,label", *(",".join(map(str, [*row, name])) for row, name in rows)]
        Path(f"{split}.csv").write_text("\n".join(lines))
    assert calib_serve("fit", "cal.csv", "--method", "temperature", "-o", "a").exit_code == 2
    printed("fit", "cal.csv", "--outputs", "logits", "--method", "temperature", "-o", "a")
    assert "Sets hold" in printed("decide", "a", "test.csv", "--coverage", "0.9", "-o", "d")


EXPLAINED = {
    "DATA": ("schema", "evaluate", "fit", "compare", "decide"),
    "MODELS": ("serve", "gateway", "watch"),
    "SOURCE": ("label",), "PREDICTIONS": ("audit",), "SERVED": ("refit",), "LEDGER": ("ledger",),
    "FILE": ("keys",),
}  # fmt: skip


@pytest.mark.parametrize("word", EXPLAINED)
def test_a_help_explains_its_argument_and_has_its_parts(word: str) -> None:
    for name in EXPLAINED[word]:
        lines = printed(name, "--help").splitlines()
        text = [line for line in lines if not line.startswith(("│", "Usage"))]
        assert any(re.search(rf"\b{word}\b", line) for line in text), name
        if word == "DATA":
            parts = [line.split()[1] for line in lines if line.startswith("╭─")]
            assert parts[-2:] == ["Data", "Output"], name


def test_shells_complete_commands_with_what_each_is_for() -> None:
    script = program().generate_completion(shell="zsh")
    for names in COMMANDS.values():
        assert all(" ".join(summary.split()[:2]).strip(":") in script for summary in names.values())


def test_the_program_says_its_version_and_commands_at_once() -> None:
    assert re.fullmatch(r"calib-serve \d+\.\d+\.\d+\S*\n", printed("--version"))
    assert printed() == printed("--help") == printed("-h")
    assert "\nWatch\n  watch       Count predictions" in printed()
