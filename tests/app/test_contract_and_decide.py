"""``calib-serve contract`` and ``decide``: what they promise is kept, shown, checked and measured."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Done, by_schema
from command_line import calib_serve as invoke

from calib_serve import Artifact, calibrate
from calib_serve.artifact import Abstain, Contract, LogitMap
from calib_serve.fit.refitting import refit
from calib_serve.fit.shares import for_shares

NAMES = ("ant", "bee", "cat", "dog")
TEXT = """
contract: 1
act: {above: 0.9, accuracy: 0.9}
segments: {nord: {act: {above: 0.95, accuracy: 0.9}}}
classes: {cat: {act: {above: 0.5, accuracy: 0.999}}}
"""


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 4))
    return (3 * z).astype(np.float32), (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    arrays: dict[str, Any] = {}
    for seed, (name, n) in enumerate({"cal": 400, "held": 1500, "test": 1000}.items()):
        arrays[f"{name}_logits"], arrays[f"{name}_labels"] = draw(n, seed)
    np.savez(tmp_path / "z.npz", class_names=NAMES, **arrays)
    fitted = calibrate(
        arrays["cal_logits"], arrays["cal_labels"], "temperature", cross_validate=False, outputs="logits"
    )
    replace(fitted, class_names=NAMES).save(tmp_path / "artifact")
    (tmp_path / "contract.yaml").write_text(TEXT)
    return tmp_path


def run(*arguments: object) -> str:
    found = invoke(*arguments)
    assert found.exit_code == 0, found.output
    return found.stdout


def refused(says: str, *arguments: object) -> None:
    found: Done = invoke(*arguments)
    assert found.exit_code >= 2, found.output
    assert says in found.stderr


def test_what_is_set_is_shown_as_it_is_set_again(folder: Path, tmp_path: Path) -> None:
    artifact = folder / "artifact"
    before = Artifact.load(artifact)
    shutil.copytree(artifact, tmp_path / "out")
    run("contract", "set", tmp_path / "out", folder / "contract.yaml")
    found = Artifact.load(tmp_path / "out")
    assert found.contract == Contract.read(TEXT, NAMES)
    np.testing.assert_array_equal(found.probs(np.eye(4)), before.probs(np.eye(4)))
    shown = json.loads(run("inspect", tmp_path / "out", "--json"))["contract"]
    (folder / "again.yaml").write_text(json.dumps(shown))
    run("contract", "set", artifact, folder / "again.yaml")  # in place
    assert Artifact.load(artifact).fingerprint == found.fingerprint


def test_check_says_what_can_be_kept_and_fails_where_something_cannot(folder: Path) -> None:
    artifact, held = folder / "artifact", (folder / "z.npz", "--split", "held")
    asked = ("contract", "check", artifact, *held, "--contract", folder / "contract.yaml")
    told = json.loads(run(*asked, "--json"))
    found = [one["found"] for one in told["clauses"]]
    assert found == ["can be kept", "not checked", "not enough samples"]
    assert (told["broken"], told["proven"], told["samples"]) == (False, False, 1500)
    said = run(*asked).splitlines()
    firsts = [one for one in said if not one.startswith("  ")]
    assert [one.rpartition(": ")[2] for one in firsts] == found
    line = told["clauses"][0]["line"]
    (folder / "kept.yaml").write_text(f"contract: 1\n{line}")
    (folder / "never.yaml").write_text("contract: 1\nact: {above: 0.5, accuracy: 0.99}")
    assert invoke(*asked[:-1], folder / "never.yaml").exit_code == 1
    refused("has no contract", "contract", "check", artifact, *held)
    run("contract", "set", artifact, folder / "kept.yaml")
    run("contract", "check", artifact, *held)


def test_what_cannot_be_is_refused_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    artifact, contract = folder / "artifact", folder / "contract.yaml"
    of_labels = Artifact((), method="none", classes=4, model={"outputs": "label_logits"}).save(
        tmp_path / "labels"
    )
    (folder / "huge.yaml").write_text("#" * (1 << 21))
    (folder / "bytes.yaml").write_bytes(b"\xff\xfe\x00\x00")
    seen = (folder / "z.npz", "--split", "cal")
    np.save(folder / "w.npy", np.ones(len(np.load(folder / "z.npz")["held_labels"])))
    said = by_schema(folder / "z.npz", "--split", "held", "--sample-weight", folder / "w.npy")
    weighed = (folder / "z.npz", "--split", "held", *said)
    for match, asked in {
        "one class a sample": ("set", of_labels, contract),
        "contract is a page": ("set", artifact, folder / "huge.yaml"),
        "cannot be read": ("set", artifact, folder / "bytes.yaml"),
        "has not seen": ("check", artifact, *seen, "--contract", contract),
        "rename the column of weights": ("check", artifact, *weighed, "--contract", contract),
        "needs --data": ("check", artifact, "--contract", contract),
    }.items():
        refused(match, "contract", *asked)
    assert Artifact.load(artifact).contract is None


def test_a_refit_and_other_class_shares_keep_it_as_users_were_promised_it() -> None:
    z, y = draw(2000, 3)
    contract = Contract.read("contract: 1\nact: {above: 0.9, accuracy: 0.9}")
    old: Any = Artifact((LogitMap.temperature(0.3),), method="temperature", classes=4, contract=contract)
    found = refit(replace(old, abstain=Abstain(0.5, risk=0.1)), z, y, method="temperature")
    assert found.artifact is not None
    assert found.artifact.contract == contract
    assert found.artifact.abstain is None
    shares = for_shares(
        replace(old, data={"class_shares": [0.25] * 4}), np.array([0.4, 0.2, 0.2, 0.2]), how="given"
    )
    assert shares.contract == contract
    assert old.only(*old.steps).contract is None


def test_decide_writes_what_it_promises_and_evaluate_measures_it(folder: Path) -> None:
    file, out = folder / "z.npz", folder / "decided"
    run("contract", "set", folder / "artifact", folder / "contract.yaml")
    asked = ("--split", "held", "--coverage", 0.9, "--per-class", "--risk", 0.1)
    run("decide", folder / "artifact", file, *asked, "-o", out)
    artifact = Artifact.load(out)
    assert artifact.sets is not None
    assert artifact.sets.classes == 4
    assert artifact.contract == Contract.read(TEXT, NAMES)
    how = ("--split", "test", "--json")
    found = json.loads(run("evaluate", file, *how, "--artifact", out))
    assert found["sets"]["promised"] == 0.9
    assert found["abstain"]["threshold"] == artifact.abstain.threshold
    assert len(found["sets"]["by_class"]) == 4
    assert not {"sets", "abstain"} & json.loads(run("evaluate", file, *how)).keys()


COSTS = "".join(
    f"{true}: {{{', '.join(f'{a}: {int(a != true)}' for a in NAMES)}, review: 0.3}}\n" for true in NAMES
)


def test_decide_by_costs_is_said_shown_measured_and_exported(folder: Path) -> None:
    file, out = folder / "z.npz", folder / "decided"
    (folder / "costs.yaml").write_text(COSTS)
    asked = ("--split", "held", "--cost", folder / "costs.yaml", "--coverage", 0.9, "--level", 0.9)
    said = run("decide", folder / "artifact", file, *asked, "-o", out)
    assert "Decisions cost" in said
    assert "Sets hold" in said
    artifact = Artifact.load(out)
    assert artifact.choice is not None
    assert artifact.choice.actions == (*NAMES, "review")
    told = json.loads(run("inspect", out, "--json"))["choice"]
    assert (told["goal"], told["level"], np.shape(told["costs"])) == ("cost", 0.9, (4, 5))
    assert "decides by cost" in repr(artifact)
    found = json.loads(run("evaluate", file, "--split", "test", "--json", "--artifact", out))
    assert found["choice"]["measured"]["value"] <= found["choice"]["promised"]
    run("export", "probabilities", out, file, "--split", "test", "-o", folder / "p.npz")
    exported = np.load(folder / "p.npz")
    np.testing.assert_array_equal(exported["decision"], artifact.choice(exported["probs"]))
    run(
        *("evaluate", file, "--split", "test", "--artifact", out),
        "--report",
        folder / "r.html",
    )
    assert "Cost of the decisions" in (folder / "r.html").read_text()


def test_decide_refuses_what_it_cannot_promise_and_writes_nothing(folder: Path) -> None:
    out, (file, artifact) = folder / "decided", (folder / "z.npz", folder / "artifact")
    (folder / "costs.yaml").write_text(COSTS.replace("ant:", "Ant:", 1))
    for says, asked in {
        "see 'Ant', 'ant'": ("--cost", folder / "costs.yaml"),
        "cannot be read": ("--cost", folder / "none.yaml"),
        "is of two classes": ("--precision", 0.9),
        "are 4: say what each action": ("--cost", "1,5"),
        "one way to decide": ("--recall", 0.9, "--budget", 0.1),
        "goes with": ("--coverage", 0.9, "--level", 0.8),
    }.items():
        refused(says, "decide", artifact, file, "--split", "held", *asked, "-o", out)
    refused(
        "has not seen", "decide", artifact, file, "--split", "cal", "--cost", folder / "costs.yaml", "-o", out
    )
    assert not out.exists()
