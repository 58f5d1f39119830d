"""What a command line that cannot be is answered with: one line, the exit code 2 or 3, and what to type."""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from command_line import calib_serve
from small_models import linear_onnx, temperature

from calib_serve import Artifact, app
from calib_serve.core.errors import Deprecated, ServerError
from calib_serve.integrations import collect
from calib_serve.integrations.collect.reading import DeadLetter

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    z = 2 * rng.standard_normal((90, 3))
    np.savez(tmp_path / "s.npz", logits=3 * z, labels=(z + rng.gumbel(size=z.shape)).argmax(axis=1))
    temperature().save(tmp_path / "a")
    (tmp_path / "l.csv").write_text("id,label\n1,2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "says"),
    {
        "fit s.npz": "fit needs -o or --out; see calib-serve fit --help",
        "keys retire k.json": "keys retire needs --key; see calib-serve keys retire --help",
        "fit s.npz -o b --bins 3": "A setting is given as --option bins=VALUE.",
        "evaluate s.npz --bins 3": "Unknown option: --bins",
        "evaluate s.npz --class-names=a,b": "evaluate takes no --class-names; calib-serve schema DATA",
        "fit s.npz -o b --option ridge": "--option takes KEY=VALUE, got 'ridge'",
        "fit s.npz -o b --option ridge=": "--option takes KEY=VALUE, got 'ridge='",
        "fit s.npz -o b --option =1": "--option takes KEY=VALUE, got '=1'",
        "fit s.npz -o b --option method=auto": "--option takes no method: fit or schema has an option",
        "fit s.npz -o b --option test=1": "--option takes no test, which no method has",
        "fit s.npz -o b --option ridge=[": "'[' cannot be read",
        "fit s.npz -o b --pictures mean=0": "--pictures are for the pictures of a model (--model)",
        "fit s.npz -o b --keep-rows": "--keep-rows is for the rows that a model (--model) is run on",
        "fit s.npz -o b --prior none.yaml": "--prior: cannot read 'none.yaml' as shares or as a file of them",
        "fit s.npz -o b --prior a=x": "--prior: class shares are numbers, or NAME=SHARE each",
        "fit d --model m.onnx --by c -o b": "--by is a column beside scores, and DATA are inputs",
        "fit d --model m.onnx --columns a,b -o b": "--columns is for a file of scores; beside --model, DATA",
        "fit d --model m.onnx --pictures mean=0 -o b": "--pictures mean: give mean and std, too",
        "fit d --model m.onnx --pictures size=0 -o b": "--pictures has the keys mean, std, image_size",
        "evaluate d --model m.onnx --unknown o.npz": "--unknown is a file of scores, and DATA are none",
        "evaluate s.npz --tree none.yaml": "--tree: cannot read 'none.yaml'",
        "compare s.npz s.npz s.npz": "--data are one file for methods, or two for two models",
        "compare s.npz --option seed=1": "--option is for a study (--study)",
        "compare s.npz s.npz --methods none": "--methods are for one file of scores",
        "compare s.npz s.npz -o out.csv": "-o of two models is a report: .html, .htm, .png, .svg, got",
        "compare s.npz s.npz --study size": "--data must be one for size",
        "compare s.npz --study optimum --methods none": "--methods are not for optimum, which has its own",
        "contract check a s.npz": "a has no contract: name one with --contract, or set it (contract set)",
        "export probabilities a s.npz -o p.csv": "the output is an npz file, got 'p.csv'",
        "export probabilities a s.npz -o l.csv/p.npz": "cannot write l.csv/p.npz",
        "schema s.npz -o l.csv/s.yaml": "cannot write l.csv/s.yaml",
        "inspect": "say what to look at: a folder or an archive, or --from ARCHIVE to run its handler",
        "inspect a --from x.mar": "say what to look at",
        "inspect a --probe p": "--probe goes with --from",
        "pack --model m.onnx": "say what to pack: --artifact DIR with --model or --from X.mar; or --feedback",
        "pack --model m.onnx --artifact a": "give the model a name: --name NAME",
        "pack --model m.onnx --artifact a --name m --option top=1.5": "--option top cannot be 1.5",
        "pack --model m.onnx --artifact a --name m --option tip=1": "here, and no tip",
        "pack --model m --artifact a --name m --input-shape 3,2.5": "--input-shape is a whole number",
        "refit a --samples s -o b --new-version 2": "--new-version packs an archive again",
        "refit promote": "give the archive of the new version, or --back MODEL",
        "ledger drop l.db m": "a model's version is NAME:VERSION, such as digits:1.0, got 'm'",
        "ledger revoke l.db --source s --since now": "a time is such as 2026-05-01T12:00, or seconds",
        "keys list none.json --ttl-days 0": "--ttl-days must be above 0 and finite, got 0",
        "doctor --for gpus": "there is no extra gpus; there are",
        "nosuch": "nosuch",
    }.items(),
)  # fmt: skip
def test_one_line_says_what_is_wrong(line: str, says: str, folder: Path) -> None:
    before = sorted(folder.iterdir())
    done = calib_serve(*line.split())
    assert (done.exit_code, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]  # behind progress, where the host is slow
    assert last.startswith("calib-serve: ")
    assert says in last
    assert sorted(folder.iterdir()) == before


def test_what_fails_though_it_was_used_rightly_ends_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ServerError("the watch is away")

    monkeypatch.setattr(collect, "send_label_file", fails)
    done = calib_serve("label", "l.csv")
    assert (done.exit_code, done.stderr) == (3, "calib-serve: the watch is away\n")


@pytest.mark.parametrize(("name", "code"), [("matplotlib.pyplot", 3), ("calib_serve.nosuch", None)])
def test_a_library_that_is_missing_is_named_and_one_of_ours_is_a_defect(
    name: str, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("calib_serve.metrics.evaluate", fails)
    if code is None:
        with pytest.raises(ModuleNotFoundError):
            calib_serve("evaluate", "s.npz")
    else:
        done = calib_serve("evaluate", "s.npz")
        assert (done.exit_code, "matplotlib" in done.stderr) == (code, True)


def test_what_goes_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def run(words: list[str]) -> int:
        warnings.warn("x.pt is to go", Deprecated, stacklevel=1)
        warnings.warn("a library's own", UserWarning, stacklevel=1)
        return 7

    monkeypatch.setattr(sys, "argv", ["calib-serve", "fit"])
    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def show(told: Warning, kind: type[Warning], file: str, line: int, *_: object) -> None:
        sys.stderr.write(warnings.formatwarning(told, kind, file, line))

    monkeypatch.setattr(warnings, "showwarning", show)
    warnings.simplefilter("always")  # pytest sets it back
    with pytest.raises(SystemExit) as ended:
        app.main()
    assert ended.value.code == 7
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "calib-serve: x.pt is to go"
    assert second.endswith("UserWarning: a library's own")


def test_labels_are_sent_with_the_token_and_what_became_of_them_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def send(path: str, options: object, *, token: str, progress: object) -> collect.Sent:
        asked.append((path, token, options.id_column))  # type: ignore[attr-defined]
        sent = collect.Sent(accepted=5, held=2)
        for n in range(count):
            sent.bury(DeadLetter("bad_label", "no class", f"row {n}"))
        return sent

    monkeypatch.setattr(collect, "send_label_file", send)
    count = 0
    monkeypatch.setenv("CALIB_SERVE_TOKEN", "from-the-environment")
    done = calib_serve("label", "l.csv", "--column", "id=order")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "5 counted; 2 wait for their model version to be watched\n"
    count = 12
    (folder / "token").write_text("from-a-file\n")
    (folder / "token").chmod(0o600)
    done = calib_serve("label", "l.csv", "--token-file", "token", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == {"accepted": 5, "held": 2, "refused": {"bad_label": 12}}
    named = done.stderr.splitlines()
    assert named[0] == "calib-serve: row 0: bad_label: no class"
    assert (len(named), named[-1]) == (11, "calib-serve: and 2 more, which --refused FILE writes")
    assert asked == [("l.csv", "from-the-environment", "order"), ("l.csv", "from-a-file", None)]


def test_a_fused_file_is_inspected_by_its_proof(folder: Path) -> None:
    linear_onnx(folder / "m.onnx")
    done = calib_serve("fuse", "onnx", "m.onnx", "a", "--unproven", "-o", "c.onnx")
    assert done.exit_code == 0, done.output
    shown = done.stdout.splitlines()
    assert shown[-1] == "c.onnx"
    assert any(line.split()[:1] == ["parity"] for line in shown)
    told = json.loads(calib_serve("inspect", "c.onnx").stdout)
    assert (told["model"], bool(told["proof"])) == ("c.onnx", True)
    assert [one.key for one in onnx.load("c.onnx").metadata_props if one.value == told["proof"]] == [
        "calib_serve.proof"
    ]


def test_class_shares_are_shown_and_the_corrected_artifact_is_written_once(folder: Path) -> None:
    assert calib_serve("fit", "s.npz", "--method", "temperature", "-o", "f").exit_code == 0
    done = calib_serve("refit", "prior", "f", "s.npz")
    assert done.exit_code == 0, done.output
    shares = Artifact.load("f").data["class_shares"]
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line
    ]
    assert sorted((name, old) for name, old, _ in rows) == [
        (str(k), f"{100 * share:.1f}\xa0%") for k, share in enumerate(shares)
    ]
    assert "class shares of 90 samples, 95 % intervals" in done.stdout.replace("\xa0", " ")
    z = 2 * rng.standard_normal((9000, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    np.savez("many.npz", logits=z[:3000], labels=y[:3000])
    np.savez("moved.npz", logits=z[3000:][(y[3000:] > 0) | (rng.random(6000) < 0.2)])
    assert calib_serve("fit", "many.npz", "--method", "temperature", "-o", "g").exit_code == 0
    moved = calib_serve("refit", "prior", "g", "moved.npz", "-o", "corrected")
    assert "written to corrected; it has no reference" in moved.stderr
    now = [
        list(map(float, re.findall(r"[\d.]+", line.split("│")[3])))
        for line in moved.stdout.splitlines()
        if "[" in line
    ]
    assert len(now) == 3
    assert all(low < share < high for share, low, high in now)
    z = np.zeros((1, 3))  # for which the shares are all there is
    assert Artifact.load("corrected").probs(z)[0, 0] < 0.15 < Artifact.load("g").probs(z)[0, 0]
    said = calib_serve("refit", "prior", "f", "s.npz", "-o", "f")
    assert (said.exit_code, "f exists; remove it, or give another --out" in said.stderr) == (2, True)


def test_a_project_is_written_with_what_to_do_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = importlib.import_module("calib_serve.app.host_checks")
    monkeypatch.setattr(checks, "missing", lambda extra, packages: ["fastapi"] if extra == "watch" else [])
    done = calib_serve("quickstart", "my own")
    assert done.exit_code == 0, done.output
    assert "to run it, fastapi are missing here: pip install 'calib-serve[torch,onnx,watch" in done.stderr
    first, second, *commands = done.stdout.splitlines()
    assert first.startswith("written to my own: ")
    assert "secrets" in first
    assert second == "next, as README.md there says:"
    assert commands[:2] == ["  cd 'my own'", "  python train.py"]
    again = calib_serve("quickstart", "my own")
    assert again.stdout.splitlines()[0] == "written to my own: nothing"


def test_a_watch_names_its_address_as_a_browser_takes_it() -> None:
    from calib_serve.app._serving import served_at

    for host, cert, address in (
        ("127.0.0.1", None, "http://127.0.0.1:80"),
        ("::1", "c.pem", "https://[::1]:80"),
    ):
        assert served_at(SimpleNamespace(host=host, tls_cert=cert), 80) == address
