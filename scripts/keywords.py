"""Write calib_serve/core/options/keywords.py: keywords of public functions, for readers and type checkers.

    python scripts/keywords.py

A TypedDict holds the fields of an options class, and, where a function passes keywords on to methods, the
keyword parameters of those. It inherits the classes before it whose keys are all among its own.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from calib_serve.core.options.audit import AuditOptions
from calib_serve.core.options.base import Seeded
from calib_serve.core.options.data import ArchiveOptions, ScoresOptions
from calib_serve.core.options.evaluate import (
    CompareOptions,
    DecideOptions,
    EvaluateOptions,
    JudgeOptions,
    ReportOptions,
)
from calib_serve.core.options.fit import (
    ArchiveFitOptions,
    FitOptions,
    ModelFitOptions,
    RefitOptions,
    ServedRefitOptions,
)
from calib_serve.core.options.fuse import (
    GraphOptions,
    ModuleOptions,
    OnnxOptions,
    TorchOptions,
    TritonOptions,
)
from calib_serve.core.options.label import CollectOptions, LabelOptions
from calib_serve.core.options.pack import AroundOptions, FeedbackOptions, Packed, PackOptions
from calib_serve.core.options.servers import (
    GatewayOptions,
    ServeOptions,
    WatchOptions,
)
from calib_serve.fit import CANDIDATES, TWO_CLASSES, select
from calib_serve.fit.from_model import MODEL_FITTERS, SCHEDULES, model_options
from calib_serve.fit.from_scores import method_options
from calib_serve.fit.labels import LABEL_METHODS
from calib_serve.fit.masked import READINGS
from calib_serve.fit.output.candidates import own_options

FILE = Path(__file__).resolve().parents[1] / "calib_serve" / "core" / "options" / "keywords.py"

OPTIONS = (
    *(
        Seeded,
        GraphOptions,
        Packed,
        ScoresOptions,
        EvaluateOptions,
        CompareOptions,
        JudgeOptions,
        DecideOptions,
        ReportOptions,
        AuditOptions,
    ),
    *(RefitOptions, ServedRefitOptions, ArchiveOptions),
    *(OnnxOptions, ModuleOptions, TorchOptions, TritonOptions, PackOptions, AroundOptions, FeedbackOptions),
    *(
        LabelOptions,
        CollectOptions,
        WatchOptions,
        GatewayOptions,
        ServeOptions,
    ),
)
"""Classes whose fields are all keywords that a function takes; the first three are parts of others."""

ON_SCORES = (*CANDIDATES.values(), *TWO_CLASSES.values(), *LABEL_METHODS.values(), select)
"""What ``calibrate`` passes keywords on to."""

WIDER = {"ignore_label": "Any"}
"""Fields that take more in Python than on the command line: labels are numbers, too."""

HEADER = '''\
"""The keywords of public functions, by the options classes that hold them: for readers and type checkers.

Written by scripts/keywords.py. Nothing is imported from here when the program runs. ``XKeywords`` are the
fields of ``XOptions``; those of a fit, of a model or of an archive, and the options of its methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import ArrayLike

    from calib_serve.core.options.data import Kind'''
KNOWN = ("Any", "ArrayLike", "Kind", *vars(builtins))
"""Names that are written as they are; others are aliases, and are spelt out."""


def fields_of_class(cls: type) -> dict[str, tuple[ast.expr, ModuleType]]:
    """Find the annotation of each field of an options class, and the module that it is written in."""
    found: dict[str, tuple[ast.expr, ModuleType]] = {}
    for base in reversed(cls.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        home = sys.modules[base.__module__]
        found |= {
            one.target.id: (one.annotation, home)
            for one in tree.body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
    return found


def parameters_of(function: Callable[..., Any]) -> dict[str, tuple[ast.expr, ModuleType]]:
    """Find the annotation of each keyword parameter of a function, and the module that it is written in."""
    home = sys.modules[function.__module__]
    return {
        one.name: (ast.parse(one.annotation, mode="eval").body, home)
        for one in inspect.signature(function).parameters.values()
        if one.kind is one.KEYWORD_ONLY
    }


def members(node: ast.expr, home: ModuleType) -> Iterator[str]:
    """Write the members of an annotation, without marks and with paths and sequences as Python takes them."""
    again = partial(members, home=home)
    match node:
        case ast.Constant(value=str(text)):
            yield from again(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from (*again(left), *again(right))
        case ast.Subscript(value=ast.Name("Annotated"), slice=ast.Tuple(elts=[kind, *_])):
            yield from again(kind)
        case ast.Subscript(value=ast.Name("Union"), slice=ast.Tuple(elts=kinds)):
            yield from (text for kind in kinds for text in again(kind))
        case ast.Subscript(value=ast.Name("tuple"), slice=ast.Tuple(elts=[kind, ast.Constant(value=e)])) if (
            e is ...
        ):
            yield f"Sequence[{' | '.join(again(kind))}]"
        case ast.Subscript(value=ast.Name("list" | "Sequence"), slice=kind):
            yield f"Sequence[{' | '.join(again(kind))}]"
        case ast.Name("Path"):
            yield from ("str", "Path")
        case ast.Name(name) if name not in KNOWN:
            alias = vars(home)[name]
            yield from map(named, [alias] if get_origin(alias) is Literal else get_args(alias))
        case _:
            yield ast.unparse(node)


def named(kind: Any) -> str:
    """Write a type that an alias holds."""
    return written(get_args(kind)) if get_origin(kind) is Literal else str(kind.__name__)


def written(values: Iterable[object]) -> str:
    """Write a Literal of these values."""
    texts = (f'"{value}"' if isinstance(value, str) else repr(value) for value in values)
    return f"Literal[{', '.join(texts)}]"


def union(found: Collection[str]) -> str:
    """Write a union of members, with one Literal and None at its end."""
    if "Any" in found:
        return "Any"
    values: dict[object, None] = {}
    others: dict[str, None] = {}
    for text in found:
        if text.startswith("Literal["):
            values |= dict.fromkeys(ast.literal_eval(f"({text[8:-1]},)"))
        elif text != "None":
            others[text] = None
    texts = ([written(values)] if values else []) + list(others) + (["None"] if "None" in found else [])
    return " | ".join(texts)


def of_class(cls: type) -> dict[str, str]:
    """Write the type of each field."""
    return {name: WIDER.get(name) or union([*members(*one)]) for name, one in fields_of_class(cls).items()}


def of_methods(functions: Sequence[Callable[..., Any]], names: Iterable[str]) -> dict[str, str]:
    """Write the types of parameters that methods have by these names: in agreement, else a union of them."""
    found: dict[str, list[str]] = {}
    for function in functions:
        for name, one in parameters_of(function).items():
            if name in names:
                found[name] = [*found.get(name, []), *members(*one)]
    return {name: union(kind) for name, kind in found.items()}


def of_models() -> dict[str, str]:
    """Write what ``calibrate_model`` takes for its methods."""
    functions = [*MODEL_FITTERS.values(), *(fit for fit, _ in SCHEDULES.values()), *ON_SCORES]
    found = {**of_class(FitOptions), **of_methods(functions, model_options())}
    # These are names of settings, which calibrate_model looks up.
    found |= {"schedule": written(SCHEDULES), "reading": written(READINGS)}
    found["gamma"] = f'Literal["paper"] | {found["gamma"]}'
    return {name: found[name] for name in model_options()}


def typed_dict(name: str, keys: dict[str, str], before: dict[str, dict[str, str]]) -> str:
    """Write a class, with the classes before it that it holds, the largest first, as its bases."""
    held = [other for other in before if before[other].items() <= keys.items()]
    held = [one for one in held if not any(before[one].items() < before[other].items() for other in held)]
    own = dict(sorted(keys.items() - {pair for other in held for pair in before[other].items()}))
    head = f"class {name}({', '.join(held or ['TypedDict'])}, total=False):"
    return "\n".join([head, *([f"    {k}: {v}" for k, v in own.items()] or ["    pass"])])


def module() -> str:
    """Write the module."""
    on_scores = of_methods(ON_SCORES, method_options())
    every = {_name(cls): of_class(cls) for cls in OPTIONS}
    every["MethodKeywords"] = of_methods([*CANDIDATES.values(), *TWO_CLASSES.values()], own_options())
    every["FitMethodKeywords"] = on_scores
    every |= {_name(cls): {**on_scores, **of_class(cls)} for cls in (FitOptions, ArchiveFitOptions)}
    every["ModelFitKeywords"] = {**of_models(), **of_class(ModelFitOptions)}
    classes, before = [], dict[str, dict[str, str]]()
    for name, keys in every.items():
        classes.append(typed_dict(name, keys, before))
        before[name] = keys
    return "\n\n\n".join([HEADER, *classes]) + "\n"


def _name(cls: type) -> str:
    return f"{cls.__name__.removesuffix('Options')}Keywords"


if __name__ == "__main__":
    FILE.write_text(module(), encoding="utf-8")
