"""A contract as YAML: read with its errors named by their place, and written so that it reads the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Union

import yaml

from calib_serve.artifact.manifest import read_yaml
from calib_serve.errors import InputError
from calib_serve.names import Naming, as_duration, parse_duration, shown

__all__ = ["MOST_CLASSES", "PROMISES", "Scope", "clause_facts", "read_contract", "scopes_of", "written"]

FORMAT = 1
MOST_CLASSES = 2**32
"""Class ids are below, as receipts hold them in 32 bits."""
PROMISES: Mapping[str, str] = {"act": "accuracy", "calibration": "error", "coverage": "at_least"}
"""What each kind of clause calls its promise."""
Scope = tuple[str, Union[int, None]]
"""The segment, or "", and the predicted class, or None."""
Fields = Mapping[str, Any]
"""Those of a clause."""

_PER = "30d"
_TOLD = 5  # names in a message
_LONGEST_KEY = 100  # characters that a key on one line may have
_BREAKS = {"\t", "\n", "\x85", "\u2028", "\u2029"}


class _Once(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would keep the last, and keys of merged mappings."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.tag for key, _ in node.value]
        found = super().construct_mapping(node, deep=deep)
        if len(found) != len(keys) or "tag:yaml.org,2002:merge" in keys:
            raise yaml.constructor.ConstructorError(
                None, None, "a name is there twice, or merged (<<); write each once", node.start_mark
            )
        return found


def read_contract(text: str | bytes) -> Any:
    """The content of a YAML document; InputError for what is none, and for names that are there twice."""
    try:
        given = text.encode() if isinstance(text, str) else text
        read_yaml(given)  # without aliases, depth and numbers that exhaust what loads them
        return yaml.load(given, _Once)  # noqa: S506 - a SafeLoader
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"the contract cannot be read: {error}") from error


def scopes_of(content: Any, class_names: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of each clause in a contract's content."""
    top = _mapping(content, "the contract", {"contract", "per", *PROMISES, "segments", "classes"})
    if type(top.get("contract")) is not int or top["contract"] != FORMAT:
        raise InputError(f"a contract begins with 'contract: {FORMAT}', got {shown(top.get('contract'))}")
    per = top.get("per", _PER)
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
        told = ", ".join(map(shown, unknown[:_TOLD])) + (" and more" if unknown[_TOLD:] else "")
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
    """Of the fields of clauses, what ``scopes_of`` reads without class names."""
    found: dict[str, Any] = {"contract": FORMAT}
    for one in clauses:
        place, kind = found, one["kind"]
        if one["segment"]:
            place = found.setdefault("segments", {}).setdefault(one["segment"], {})
        elif one["predicted"] is not None:
            place = found.setdefault("classes", {}).setdefault(str(one["predicted"]), {})
        place[kind] = {PROMISES[kind]: one["promise"], "per": as_duration(one["per"])}
        if kind != "calibration":
            place[kind]["above"] = one["above"]
    return found


def written(clauses: Iterable[Fields], class_names: Sequence[str]) -> str:
    """The same for people: classes by their names where these are of one class each, else by their ids."""
    facts = clause_facts(clauses)
    if "classes" in facts:
        facts["classes"] = {_class_key(int(k), class_names): v for k, v in facts["classes"].items()}
    lines = [f"contract: {facts.pop('contract')}"]
    scopes = {name: facts.pop(name) for name in ("segments", "classes") if name in facts}
    lines += _lines(facts, "")
    for name, entries in scopes.items():
        lines.append(f"{name}:")
        for key, entry in entries.items():
            lines += [f"  {_scalar(key)}:", *_lines(entry, "    ")]
    return "\n".join(lines) + "\n"


def _lines(entry: Mapping[str, Mapping[str, Any]], indent: str) -> list[str]:
    """A clause a line: where it begins, what it promises, and over which time."""
    lines = []
    for kind, fields in entry.items():
        held = [name for name in ("above", *PROMISES.values(), "per") if name in fields]
        told = ", ".join(f"{name}: {_value(fields[name])}" for name in held)
        lines.append(f"{indent}{kind}: {{{told}}}")
    return lines


def _value(value: float | str) -> str:
    """As YAML reads it again: 1e-05 would be a text, 1.0e-05 is a number."""
    text: str = yaml.safe_dump(value)
    return text.split("\n", 1)[0]


def _scalar(key: str | int) -> str:
    """A key as YAML reads it again, in quotes where it would be something else than a text."""
    text: str = yaml.safe_dump({key: 0}, allow_unicode=True, width=10**6)
    return text[: text.rindex(": 0")]


def _class_key(predicted: int, class_names: Sequence[str]) -> str | int:
    named = class_names[predicted] if predicted < len(class_names) else None
    if named is None or list(class_names).count(named) > 1 or len(named) > _LONGEST_KEY or _BREAKS & {*named}:
        return predicted
    return named
