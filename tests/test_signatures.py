"""Public functions show their keywords: to readers, to type checkers, and to whoever misspells one."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from signatures import keywords_of, undocumented

import calib_serve
from calib_serve.core.errors import InputError

ROOT = Path(__file__).parents[1]
SCRIPT, FILE = ROOT / "scripts/keywords.py", ROOT / "calib_serve/core/options/keywords.py"
PUBLIC = [(name, getattr(calib_serve, name)) for name in calib_serve.__all__]
FUNCTIONS = sorted(name for name, one in PUBLIC if inspect.isfunction(one))

PASSED_ON = {
    "_like.Plain.forward": "a model's own inputs",
    "CalibratedMany.forward": "a model's own inputs",
    "_Session.run": "ONNX Runtime's",
    "_with_inference.inference": "TorchServe's",
    "log_calibrated": "MLflow's log_model",
    "CalibratedClassifier.fit": "the classifier's own fit",
}
"""Functions that pass on keywords of others, and whose."""


def functions_with_keywords() -> Iterator[tuple[str, str, str]]:
    """(module, function or Class.method, annotation) of each function that ends in ``**``, in the sources."""
    for path in sorted((ROOT / "calib_serve").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        waiting: list[tuple[str, ast.AST]] = [("", ast.parse(path.read_text()))]
        while waiting:
            within, node = waiting.pop()
            for one in ast.iter_child_nodes(node):
                name = f"{within}.{one.name}".lstrip(".") if hasattr(one, "name") else within
                waiting.append((name, one))
                if isinstance(one, ast.FunctionDef) and one.args.kwarg is not None:
                    annotation = one.args.kwarg.annotation
                    yield module, name, "" if annotation is None else ast.unparse(annotation)


# A display's keywords go to its ``from_predictions``, which has them one by one: Python checks them.
TYPED = [
    (module, name)
    for module, name, kind in functions_with_keywords()
    if kind.startswith("Unpack[") and not name.endswith(".from_estimator")
]
VERBS = sorted(f"{module}:{name.removesuffix('.__init__')}" for module, name in TYPED)


def found(verb: str) -> Callable[..., Any]:
    """A function, a method, or a class by its constructor."""
    module, _, name = verb.partition(":")
    thing: Any = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing  # type: ignore[no-any-return]


def parameters(verb: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(verb).parameters.values())


def keywords(verb: Callable[..., Any]) -> tuple[str, ...]:
    """Every keyword of a TypedDict that a verb takes."""
    return tuple(name for one in parameters(verb) for name in keywords_of(one, verb))


def test_the_typed_keywords_are_those_that_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("scripts_keywords", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert FILE.read_text() == script.module(), "run scripts/keywords.py"


def test_a_public_function_hides_no_keyword() -> None:
    hidden = {
        name
        for _, name, kind in functions_with_keywords()
        if not kind.startswith("Unpack[") and not name.rpartition(".")[2].startswith("_")
    }
    assert hidden == set(PASSED_ON)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_takes_every_field_of_its_options_as_a_keyword(verb: str) -> None:
    thing = found(verb)
    signature = inspect.signature(thing).parameters
    if "options" not in signature:
        return
    module = sys.modules[verb.partition(":")[0]]
    cls = vars(module)[signature["options"].annotation.removesuffix(" | None")]
    assert {one.name for one in dataclasses.fields(cls)} <= set(keywords(thing))


def misspelt(name: str) -> str:
    return name + name[-1]


@pytest.mark.parametrize("verb", VERBS)
def test_a_misspelt_keyword_is_an_error_that_names_the_right_one(verb: str) -> None:
    thing = found(verb)
    needed = [
        one for one in parameters(thing) if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    positional = [None for one in needed if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: None for one in needed if one.kind is one.KEYWORD_ONLY}
    optional = [one.name for one in parameters(thing) if one.default is not one.empty]
    for name in (*keywords(thing), *optional):
        with pytest.raises(InputError, match=rf"no option '{misspelt(name)}', did you mean {name}\?"):
            called(thing, *positional, **named, **{misspelt(name): None})


def called(verb: Callable[..., Any], *args: Any, **given: Any) -> None:
    """Call a function, and enter what it returns to be entered."""
    result = verb(*args, **given)
    if hasattr(result, "__enter__"):
        with result:
            pass


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not keywords(getattr(calib_serve, name))])
def test_python_itself_refuses_a_misspelt_keyword_of_the_others(name: str) -> None:
    thing = getattr(calib_serve, name)
    args = [None for one in parameters(thing) if one.default is one.empty]
    with pytest.raises(TypeError, match="unexpected keyword argument 'sead'"):
        thing(*args, sead=1)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_documents_its_keywords_and_no_others(verb: str) -> None:
    assert not undocumented(found(verb))


def test_a_classifier_is_drawn_by_the_keywords_of_its_probabilities() -> None:
    displays: list[Any] = [one for _, one in PUBLIC if hasattr(one, "from_estimator")]
    taken = [one for display in displays for one in parameters(display.from_predictions)]
    named = {one.name for one in taken if one.kind is one.KEYWORD_ONLY} - {"labels", "name"}
    assert named
    assert [{*keywords(display.from_estimator)} for display in displays] == [named] * len(displays)


def calls(name: str) -> Iterator[str]:
    """A right call, and wrong ones that a type checker must refuse, of a public function, method or class."""
    thing: Any = calib_serve
    for part in name.split("."):
        thing = getattr(thing, part)
    needed = [
        one for one in parameters(thing) if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    given = ["x" if one.kind is one.POSITIONAL_OR_KEYWORD else f"{one.name}=x" for one in needed]
    known = [one.name for one in parameters(thing) if one.default is not one.empty] + [*keywords(thing)]

    def call(*more: str) -> str:
        return f"calib_serve.{name}({', '.join([*given, *more])})"

    yield call(*(f"{key}=x" for key in known))
    for key in known or ["seed"]:
        yield f"{call(f'{misspelt(key)}=x')}  # type: ignore[call-arg]"


CALLED = [*FUNCTIONS, "Keyring.create", "Reporter", "Server", "Watch.open"]


@pytest.mark.server
def test_a_type_checker_takes_right_calls_and_refuses_misspelt_ones(tmp_path: Path) -> None:
    lines = [line for name in CALLED for line in calls(name)]
    lines.append('calib_serve.evaluate(x, bins="many")  # type: ignore[arg-type]')
    file = tmp_path / "calls.py"
    file.write_text("\n".join(["from typing import Any", "import calib_serve", "x: Any = None", *lines, ""]))
    assert sum("type: ignore" in line for line in lines) > 200
    # An accepted wrong call leaves an ignore that nothing needs, which is an error.
    command = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", file]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
