"""YAML of users and of packed files, which may be written to deceive."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

_LONG_NUMBER = re.compile(r"[-+0-9a-fA-FxobXOB_:.]{1000}")


class _Once(yaml.SafeLoader):
    """A YAML loader that refuses merged mappings and a key given twice, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.tag for key, _ in node.value]
        found = super().construct_mapping(node, deep=deep)
        if len(found) != len(keys) or "tag:yaml.org,2002:merge" in keys:
            raise yaml.constructor.ConstructorError(
                None, None, "a name is there twice, or merged (<<); write each once", node.start_mark
            )
        return found


def read_yaml(text: bytes) -> Any:
    """Parse a YAML document; ValueError if invalid, or built to exhaust memory or time.

    >>> read_yaml(b"a: [1, 2.5]")
    {'a': [1, 2.5]}
    """
    try:
        _refuse_tricks(text)
        return yaml.load(text, _Once)  # noqa: S506 - a SafeLoader
    # Invalid values of tags such as !!bool and !!timestamp raise errors of many types.
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not YAML: {str(error) or type(error).__name__}") from error


def _refuse_tricks(text: bytes) -> None:
    """Refuse aliases, which expand to gigabytes, and deep nesting and long numbers, which take hours."""
    depth = 0
    # The parser of libyaml is quicker and overflows the stack on deep files.
    for count, event in enumerate(yaml.parse(text, yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("it has YAML aliases; write out what they stand for")
        if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.match(event.value):
            raise ValueError(f"it has a number of {len(event.value)} characters")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > 50:
            raise ValueError("it is nested deeper than 50")
        if count > 100_000:  # each takes about ten microseconds
            raise ValueError("it holds more than 100,000 values")
