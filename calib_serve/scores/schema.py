"""What scores are and where they lie in a table, as said and read: a file that travels with the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole, write_whole
from calib_serve.core.names import shown
from calib_serve.scores.documents import read_yaml
from calib_serve.scores.scales import Scaled

OF_ANSWERS = "answers:"
"""What ``outputs`` begins with where scores are answers of a language model; the file of words follows."""


@dataclass(frozen=True)
class Schema:
    """Kind, classes and columns of scores; what is None or empty is not said.

    Args:
        outputs: Kind or scale of the scores, such as "logits" or "percent".
        class_names: Names of the classes in order; of one column the other class's first, then the event's.
        columns: Columns or the array of the scores, in the order of the classes.
        labels: Column or array of the labels.
        groups: Column or array that says which rows belong together.
        sample_weight: Column or array of weights.
        by: Column or array of each row's source, by which it is calibrated.
        missing: Scores that stand for none, as texts; "none" where no score does.
        ignore_label: Labels that stand for none, as texts.

    Raises:
        InputError: For an entry of another type, and for an unknown kind.

    >>> Schema.of({"outputs": "percent", "class_names": ["cat", "dog"]}).as_dict()
    {'outputs': 'percent', 'class_names': ['cat', 'dog']}
    """

    outputs: str | None = None
    class_names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    labels: str | None = None
    groups: str | None = None
    sample_weight: str | None = None
    by: str | None = None
    missing: tuple[str, ...] = ()
    ignore_label: tuple[str, ...] = ()

    @classmethod
    def of(cls, known: object) -> Schema:
        """Make a schema of a mapping.

        Args:
            known: Mapping of the entries, as ``as_dict`` gives it.

        Raises:
            InputError: For an unknown entry, or one of another type.
        """
        own = {one.name: str(one.type) for one in fields(cls)}
        if not isinstance(known, Mapping):
            raise InputError(f"a schema is a mapping of {', '.join(own)}, got {shown(known)}")
        if strange := [name for name in known if name not in own]:
            raise InputError(f"a schema has the entries {', '.join(own)}, and no {shown(strange[0])}")
        for name, value in known.items():
            several = "tuple" in own[name]
            texts = value if isinstance(value, list) and several else [value]
            if isinstance(value, list) != several or not all(isinstance(text, str) for text in texts):
                raise InputError(f"{name} in a schema is a {'list of texts' if several else 'text'}")
        if not str(known.get("outputs", OF_ANSWERS)).startswith(OF_ANSWERS):
            Scaled.parse(known["outputs"])
        entries: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in known.items()}
        return cls(**entries)

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Read a schema's file.

        Args:
            path: YAML file, as ``save`` writes it.

        Raises:
            InputError: Where it is none; it names the file.
        """
        try:
            return cls.of(read_yaml(read_whole(Path(path))))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the schema {path}: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """What it says, as plain values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items() if v}

    def save(self, path: str | Path) -> None:
        """Write it as YAML.

        Args:
            path: File to write.
        """
        write_whole(Path(path), yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True).encode())

    def under(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """What is said now, and of all else what the schema says.

        Args:
            said: Entries by name; None and () are not said.
        """
        own = {one.name: getattr(self, one.name) or None for one in fields(self)}
        given = {name: value for name, value in said.items() if value is not None and len(value) > 0}
        return {**own, **given}
