"""An option is declared once; and whatever gives it a value, it is named as it was given."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import typing
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from command_line import by_schema, invoke

import calib_serve
from calib_serve.app import COMMANDS
from calib_serve.app._command import program
from calib_serve.core.errors import OptionError
from calib_serve.core.options.base import Checked, changed
from calib_serve.core.options.data import DataOptions
from calib_serve.core.options.evaluate import EvaluateOptions

ROOT = Path(calib_serve.__file__).parent
NAMES = [name for names in COMMANDS.values() for name in names]


def declared() -> list[tuple[str, str, str | None]]:
    """(class, field, help) of each field that an options class declares itself, as the sources have them."""
    found = []
    for path in [*ROOT.glob("core/options/*.py"), *ROOT.glob("app/*.py")]:
        for node in ast.parse(path.read_text()).body:
            if not (isinstance(node, ast.ClassDef) and "kw_only=True" in map_text(node)):
                continue
            for one, after in itertools.zip_longest(node.body, node.body[1:]):
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    found.append((node.name, one.target.id, after.value.value if is_text else None))
    return [(cls, name, text) for cls, name, text in found if not cls.startswith("_")]


def option_modules() -> list[typing.Any]:
    names = [path.stem for path in ROOT.glob("core/options/[a-z]*.py")]
    return [importlib.import_module(f"calib_serve.core.options.{name}") for name in names]


def option_class(name: str) -> type:
    """The options class of this name."""
    return next(vars(one)[name] for one in option_modules() if name in vars(one))


def map_text(node: ast.ClassDef) -> str:
    return " ".join(ast.unparse(one) for one in node.decorator_list)


def functions(name: str) -> list[typing.Any]:
    """The functions of a command and of those below it."""
    found, left = [], [program(name)[name]]
    while left:
        app = left.pop()
        found += [] if app.default_command is None else [app.default_command]
        left += [app[word] for word in app if not word.startswith("-")]
    return found


def test_every_option_has_one_help_text_and_none_stands_twice() -> None:
    texts = declared()
    assert not [one for one in texts if not one[2]]
    twice = [text for text, n in Counter(text for *_, text in texts).items() if n > 1]
    assert not twice


def test_no_options_class_forgets_the_checks_of_its_bases() -> None:
    """``Checked`` runs them all; a class that had a ``__post_init__`` of its own would leave some out."""
    classes = {one for module in option_modules() for one in vars(module).values() if inspect.isclass(one)}
    options = [one for one in classes if dataclasses.is_dataclass(one)]
    assert len(options) > 40
    assert [one for one in options if "__post_init__" in vars(one)] == [Checked]
    assert all(issubclass(one, Checked) for one in options)
    with pytest.raises(OptionError, match=r"^level "):
        EvaluateOptions(level=2)


@pytest.mark.parametrize("name", sorted(set(calib_serve.__all__)))
def test_a_verb_that_takes_options_has_no_default_of_its_own_for_one(name: str) -> None:
    verb = getattr(calib_serve, name)
    parameters = inspect.signature(verb).parameters if inspect.isfunction(verb) else {}
    if "options" not in parameters or parameters["options"].kind is inspect.Parameter.VAR_KEYWORD:
        return
    assert len(parameters) <= 8
    words = str(parameters["options"].annotation).split(" | ")
    (cls,) = [option_class(word) for word in words if word != "None"]
    assert not {field.name for field in dataclasses.fields(cls)} & set(parameters)
    with pytest.raises(calib_serve.CalibServeError, match="no option"):
        changed(cls(), {"no_such": 1})


@pytest.mark.parametrize("name", NAMES)
def test_a_command_takes_its_options_from_options_classes_alone(name: str) -> None:
    for function in functions(name):
        parameters = inspect.signature(function).parameters.values()
        assert len(parameters) <= 8
        for one in parameters:
            if one.kind is one.KEYWORD_ONLY:
                cls = typing.get_args(typing.get_type_hints(function, include_extras=True)[one.name])[0]
                assert dataclasses.is_dataclass(cls), one.name
                assert cls.__dataclass_params__.frozen, cls


@pytest.mark.parametrize("name", NAMES)
def test_help_begins_with_an_example_that_the_command_takes(name: str) -> None:
    done = invoke([name, "--help"])
    assert done.exit_code == 0
    assert done.stdout.strip().startswith(f"calib-serve {name}")


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3))
    np.savez(tmp_path / "s.npz", logits=3 * z, labels=(z + rng.gumbel(size=z.shape)).argmax(axis=1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


COLUMNS = ["--columns", "logit a,logit c, logit d", "--method", "temperature"]


def method_of(*more: str) -> str:
    done = invoke(["fit", "s.npz", "-o", "a", "--force", *more])
    assert done.exit_code == 0, done.stderr
    return calib_serve.Artifact.load("a").method


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    scores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scores / "fit.yaml").write_text("method: vector\noption: [ridge=0.5]\n")
    assert method_of("--config", "fit.yaml") == "vector"
    assert calib_serve.Artifact.load("a").fit["ridge"] == 0.5
    monkeypatch.setenv("CALIB_SERVE_FIT_METHOD", "temperature")
    assert method_of() == "temperature"
    assert method_of("--config=fit.yaml", "--option", "ridge=1", "--method", "matrix") == "matrix"


@pytest.mark.parametrize("text", ["prior: [0.5, 0.25, 0.25]", "prior: {a: 0.5, b: 0.25, c: 0.25}"])
def test_a_file_may_hold_class_shares_as_yaml_has_them(scores: Path, text: str) -> None:
    (scores / "fit.yaml").write_text(f"{text}\nmethod: temperature\n")
    said = by_schema(scores / "s.npz", "--class-names", "a,b,c")
    method_of("--config", "fit.yaml", *said)
    assert calib_serve.Artifact.load("a").fit.prior.new == (0.5, 0.25, 0.25)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("metod: vector", "metod"),
        ("seam: ''", "seam in fit.yaml is PLACE"),
        ("verbose: soon", "[verbose] from fit.yaml"),
        ("- method", "fit.yaml"),
        ("method: [", "fit.yaml"),
        ("columns: [a, b]", "name it alone"),
        ("class_names: [a, b]", "[class-names]"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_and_named(scores: Path, text: str, says: str) -> None:
    (scores / "fit.yaml").write_text(text)
    done = invoke(["fit", "s.npz", "-o", "a", "--config", "fit.yaml"])
    assert done.exit_code == 2
    assert says in done.stderr.splitlines()[-1]
    assert not (scores / "a").exists()


@pytest.mark.parametrize("missing", [["--config", "none.yaml"], ["--config"]])
def test_a_file_that_is_not_there_is_refused(scores: Path, missing: list[str]) -> None:
    done = invoke(["fit", "s.npz", "-o", "a", *missing])
    assert (done.exit_code, "--config" in done.stderr) == (2, True)


def test_a_wrong_value_is_named_as_it_was_given(scores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["fit", "s.npz", "-o", "a"]
    assert "--seam is PLACE" in invoke([*asked, "--seam", ":"]).stderr
    monkeypatch.setenv("CALIB_SERVE_FIT_SEAM", ":")
    assert "CALIB_SERVE_FIT_SEAM is PLACE" in invoke(asked).stderr
    with pytest.raises(calib_serve.CalibServeError, match=r"^probe_timeout must be above 0"):
        DataOptions(probe_timeout=0)


def test_an_option_of_a_command_below_another_is_named_as_it_was_given(scores: Path) -> None:
    retire = ["keys", "retire", "keyring.json", "key", "--ttl-days"]
    assert "--ttl-days must be above 0" in invoke([*retire, "0"]).stderr
    assert "--ttl-days must be above 0" in invoke([*retire[:-1], "--ttl-days=0"]).stderr


@pytest.mark.parametrize("before", [[], ["--ttl-days", "-2"]])
def test_a_variable_and_a_flag_of_one_option_are_told_apart(
    scores: Path, monkeypatch: pytest.MonkeyPatch, before: list[str]
) -> None:
    monkeypatch.setenv("CALIB_SERVE_WATCH_TTL_DAYS", "-1")
    named = "--ttl-days" if before else "CALIB_SERVE_WATCH_TTL_DAYS"
    assert f"{named} must be above 0" in invoke(["watch", "m:1=3", *before]).stderr


def test_values_take_commas_and_names_in_a_file_may_hold_them(scores: Path) -> None:
    (scores / "fit.yaml").write_text('method: temperature\ncolumns: ["logit a, b", logit c, logit d]\n')
    given = np.load("s.npz")
    rows = np.column_stack([given["logits"], given["labels"]])
    for names in ('"logit a, b"', "logit a"):
        head = f"{names},logit c,logit d,label"
        np.savetxt(f"{len(names)}.csv", rows, "%.6g", delimiter=",", header=head, comments="")
    for file, asked, name in (("12.csv", ["--config", "fit.yaml"], "a, b"), ("7.csv", COLUMNS, "a")):
        done = invoke(["fit", file, "-o", "a", "--force", *asked])
        assert done.exit_code == 0, done.stderr
        assert calib_serve.Artifact.load("a").class_names == (name, "c", "d")


@pytest.mark.parametrize("word", ["ridge", "=1", "ridge=", "ridge=much", "ridge=[1", "nosuch=1"])
def test_a_method_option_that_cannot_be_right_is_refused(scores: Path, word: str) -> None:
    done = invoke(["fit", "s.npz", "-o", "a", "--method", "vector", "--option", word])
    assert done.exit_code == 2, done.output
    assert not (scores / "a").exists()


@pytest.mark.parametrize("name", NAMES)
def test_no_command_takes_the_version_of_a_model_for_a_question_after_its_own(name: str) -> None:
    """``refit --version 2``, typed for ``--new-version 2``, would tell the program's and end well."""
    below = [word for word in program(name)[name] if not word.startswith("-")]
    for one in ([name], *([name, word] for word in below)):
        assert invoke([*one, "--version", "2"]).exit_code, one
