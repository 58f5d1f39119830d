"""The text of a contract, YAML: read strictly into the fields of its clauses, and written again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

import yaml

from calib_serve.core.errors import InputError
from calib_serve.core.names import Naming, as_duration, parse_duration, shown
from calib_serve.core.text import NAMED_IN_A_MESSAGE
from calib_serve.scores import read_yaml

FORMAT = 1
MOST_CLASSES = 2**32
"""Class ids are below, as receipts hold them in 32 bits."""
PROMISES: Mapping[str, str] = {"act": "accuracy", "calibration": "error", "coverage": "at_least"}
"""What each kind of clause calls its promise."""
Scope = tuple[str, Union[int, None]]
"""The segment, or "", and the predicted class, or None."""
Fields = Mapping[str, Any]
"""Fields of a clause, by name."""


def parse_contract(text: str | bytes) -> Any:
    """Parse the YAML document of a contract.

    Raises InputError for text that is no YAML, and for a name given twice.
    """
    try:
        return read_yaml(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise InputError(f"the contract cannot be read: {error}") from error


def scopes_of(content: Any, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of each clause in a contract's content."""
    top = _mapping(content, "the contract", {"contract", "per", *PROMISES, "segments", "classes"})
    if type(top.get("contract")) is not int or top["contract"] != FORMAT:
        raise InputError(f"a contract begins with 'contract: {FORMAT}', got {shown(top.get('contract'))}")
    per = top.get("per", "30d")
    _seconds(per, "per of the contract")
    own = {"contract", "per", "segments", "classes"}
    found = _clauses({k: v for k, v in top.items() if k not in own}, "the contract", per=per)
    for name, entry in _mapping(top.get("segments", {}), "segments").items():
        if not isinstance(name, str) or not name:
            raise InputError(f"a segment is a text, and YAML reads one as {shown(name)}; put it in quotes")
        found += _clauses(entry, f"segment {shown(name)}", per=per, segment=name)
    for name, entry in _mapping(top.get("classes", {}), "classes").items():
        found += _clauses(entry, f"class {shown(name)}", per=per, predicted=_class_id(name, class_names))
    return found


def _clauses(entry: Any, where: str, *, per: Any, **scope: Any) -> list[dict[str, Any]]:
    given = _mapping(entry, where, set(PROMISES))
    if not given and scope:
        raise InputError(f"{where} promises nothing; give it one of {', '.join(PROMISES)}, or leave it out")
    return [
        {"kind": kind, **_fields(kind, given[kind], f"{kind} of {where}", per), **scope}
        for kind in PROMISES
        if kind in given
    ]


def _fields(kind: str, entry: Any, where: str, per: Any) -> dict[str, Any]:
    promise = PROMISES[kind]
    needed = [promise] if kind == "calibration" else ["above", promise]
    given = _mapping(entry, where, {*needed, "per"})
    missing = [name for name in needed if name not in given]
    if missing:
        raise InputError(f"{where} has no {' and no '.join(missing)}")
    for name in needed:
        if isinstance(given[name], bool) or not isinstance(given[name], (int, float)):
            raise InputError(f"{name} of {where} must be a number, got {shown(given[name])}")
    found = {"promise" if name == promise else name: given[name] for name in needed}
    return {**found, "per": _seconds(given.get("per", per), f"per of {where}")}


def _seconds(value: Any, what: str) -> float:
    if not isinstance(value, str):
        raise InputError(f"{what} is a time with its unit, such as 30d or 12h; got {shown(value)}")
    return parse_duration(value, what=what)


def _mapping(value: Any, what: str, allowed: set[str] | None = None) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} must be a mapping of names to values, got {shown(value)}")
    unknown = [] if allowed is None else [key for key in value if key not in allowed]
    if unknown:
        told = ", ".join(map(shown, unknown[:NAMED_IN_A_MESSAGE])) + (
            " and more" if unknown[NAMED_IN_A_MESSAGE:] else ""
        )
        raise InputError(f"{what} does not know {told}; it may have {', '.join(sorted(allowed or ()))}")
    return value


def _class_id(name: Any, class_names: Sequence[str]) -> int:
    if isinstance(name, bool) or not isinstance(name, (int, str)):
        raise InputError(f"a class is its name or id, and YAML reads one as {shown(name)}; put it in quotes")
    classes = Naming(len(class_names) or MOST_CLASSES, class_names)
    try:
        if isinstance(name, str) and name in class_names:
            return classes.find(name, by="name")
        return classes.find(str(name))
    except InputError as error:
        quotes = "" if isinstance(name, str) else "; in quotes it is the name"
        raise InputError(f"classes of the contract: {error}{quotes}") from error


def clause_facts(clauses: Iterable[Fields]) -> dict[str, Any]:
    """The content of a contract with these clauses, as ``scopes_of`` reads it without class names."""
    found: dict[str, Any] = {"contract": FORMAT}
    for one in clauses:
        place, kind = found, one["kind"]
        if one["segment"]:
            place = found.setdefault("segments", {}).setdefault(one["segment"], {})
        elif one["predicted"] is not None:
            place = found.setdefault("classes", {}).setdefault(str(one["predicted"]), {})
        above = {} if kind == "calibration" else {"above": one["above"]}
        place[kind] = {**above, PROMISES[kind]: one["promise"], "per": as_duration(one["per"])}
    return found


def written(clauses: Iterable[Fields], class_names: Sequence[str]) -> str:
    """The YAML text of a contract; classes by their names, or by id where classes share a name."""
    facts = clause_facts(clauses)
    if "classes" in facts:
        facts["classes"] = {_class_key(int(k), class_names): v for k, v in facts["classes"].items()}
    # default_flow_style=None writes a clause a line, and the mappings around clauses as blocks.
    text: str = yaml.safe_dump(
        facts, sort_keys=False, default_flow_style=None, allow_unicode=True, width=10**6
    )
    return text


def _class_key(predicted: int, class_names: Sequence[str]) -> str | int:
    named = class_names[predicted] if predicted < len(class_names) else None
    return predicted if named is None or list(class_names).count(named) > 1 else named
