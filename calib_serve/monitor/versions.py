"""The model versions that a watch knows, from its start or registered while it runs.

A version is told by its artifact, or by facts: the number of its classes, their names. While it runs a watch
follows a file, and takes what is told over HTTP, which all that share its ledger learn. Predictions
and labels of a version that nobody told of are held for a day, and counted when it is told.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calib_serve.artifact import Artifact, Contract, json_or_yaml
from calib_serve.core.bins import Bins
from calib_serve.core.errors import CalibServeError, InputError
from calib_serve.core.files import FollowedFile, read_whole
from calib_serve.ledger import Ledger
from calib_serve.receipts import Classes, Version

log = logging.getLogger(__name__)

_FACTS = ("classes", "class_names", "multilabel", "contract")


@dataclass(frozen=True)
class Watched:
    """A model version to watch.

    Args:
        classes: Its classes.
        reference: Bins of its calibration set; None where it is watched without its artifact.
        contract: Its promises; None without any.
    """

    classes: Classes
    reference: Bins | None = None
    contract: Contract | None = None

    def unlike(self, other: Watched) -> list[str]:
        """Name the facts in which the two differ."""
        return [
            name
            for name, mine, theirs in (
                ("classes", self.classes.count, other.classes.count),
                ("class_names", self.classes.names, other.classes.names),
                ("contract", self.contract, other.contract),
            )
            if mine != theirs
        ]

    @classmethod
    def of(cls, what: Artifact | str | Path | int) -> Watched:
        """Make one from an artifact, an artifact's folder, or the number of classes."""
        if isinstance(what, int):
            return cls(Classes(what))
        artifact = what if isinstance(what, Artifact) else Artifact.load(what)
        made = Classes.of_labels if artifact.is_multilabel else Classes
        classes = made(artifact.classes, artifact.class_names)
        return cls(classes, artifact.reference, artifact.contract)

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Watched:
        """Read ``classes``, and optional ``class_names``, ``multilabel``, ``contract``; or an ``artifact``.

        InputError where they are none, ArtifactError for an artifact that cannot be used.

        >>> Watched.of_facts({"classes": 2, "class_names": ["cat", "dog"]}).classes.names
        ('cat', 'dog')
        """
        if "artifact" in facts:
            return cls.of(str(facts["artifact"]))
        try:
            made = Classes.of_labels if facts.get("multilabel") else Classes
            classes = made(int(facts["classes"]), tuple(map(str, facts.get("class_names", ()))))
            contract = Contract.of(facts["contract"]) if "contract" in facts else None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise InputError(f"of a version its classes are told, or its artifact: {error!r}") from error
        if classes.count < 1 or len(facts.get("class_names") or ()) not in (0, int(facts["classes"])):
            raise InputError(f"a version has classes, and a name for each or none, got {facts['classes']}")
        return cls(classes, contract=contract)


class FollowedVersions(FollowedFile[dict[Version, Watched]]):
    """The versions in the file ``path``, looked at again whenever ``changed`` is called.

    It is a list of ``{"name", "version"}`` with what ``Watched.of_facts`` takes, in JSON or YAML. What cannot
    be read leaves what was read before, is logged once, and said by ``trouble``. The first time it is raised:
    InputError, or ArtifactError.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, _read)


def _read(path: Path) -> dict[Version, Watched]:
    try:
        return read_versions(json_or_yaml(read_whole(path)))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(
            f"the list of versions {path} cannot be read: {error!r}; it should hold name, version and "
            "classes or artifact of each"
        ) from error


def read_versions(listed: Iterable[Mapping[str, Any]]) -> dict[Version, Watched]:
    """Read ``{"name", "version"}`` with what ``Watched.of_facts`` takes.

    Raises InputError for a version that is not in quotes and for an unknown field, KeyError or TypeError for
    an entry that is none.
    """
    found = {}
    for one in listed:
        model, version = one["name"], one["version"]
        if not (isinstance(model, str) and isinstance(version, str)):
            raise InputError(
                f"name and version are text, in quotes, got {model!r} {version!r}: 1.10 reads as 1.1"
            )
        known = {"name", "version", *(("artifact",) if "artifact" in one else _FACTS)}
        if unknown := sorted(map(str, set(one) - known)):  # such as class_name: its labels went without names
            raise InputError(f"{model} {version} has {unknown[0]!r}, which is none of {sorted(known)}")
        found[model, version] = Watched.of_facts(one)
    return found


class KnownVersions:
    """The versions that are ``given`` at the start, followed, or registered in the ledger, by that rank."""

    def __init__(
        self, ledger: Ledger, given: Mapping[Version, Watched], follow: FollowedVersions | None
    ) -> None:
        self._ledger, self.given, self._follow = ledger, dict(given), follow
        self._facts, self._registered = dict[Version, str](), dict[Version, Watched]()

    def by_now(self) -> dict[Version, Watched]:
        """All versions, looked at again."""
        facts = self._ledger.versions()
        if facts != self._facts:  # read once: one that cannot be used is logged once
            self._facts, self._registered = facts, _read_facts(facts)
        followed = {} if self._follow is None else self._follow.changed()
        return {**self._registered, **followed, **self.given}

    def register(self, version: Version, facts: Mapping[str, Any]) -> None:
        """Register a version in the ledger, for all on it; InputError where it is known by other facts."""
        told, known = Watched.of_facts(facts), {**self._followed(), **self.given}.get(version)
        other = [] if known is None else [name for name in known.unlike(told) if name in facts]
        if other:
            model, name = version
            raise InputError(
                f"{model} {name} is given here with other {other[0]}: change what this was started with"
            )
        self._ledger.register_version(version, json.dumps(dict(facts)))

    def _followed(self) -> dict[Version, Watched]:
        return {} if self._follow is None else self._follow.current()

    def check(self) -> None:
        """Raise InputError where the followed list cannot be read, or says other facts than what is given."""
        if self._follow is not None and (why := self._follow.trouble()):
            raise InputError(why)
        followed = self._followed()
        for (model, version), own in self.given.items():
            if other := own.unlike(followed.get((model, version), own)):
                raise InputError(
                    f"{model} {version} is followed with other {other[0]} than this was started with, and "
                    "the latter count: give it once"
                )


def _read_facts(kept: Mapping[Version, str]) -> dict[Version, Watched]:
    """The versions registered in a ledger; one that cannot be read is left out, and logged."""
    found = {}
    for version, facts in kept.items():
        try:
            found[version] = Watched.of_facts(json.loads(facts))
        except (CalibServeError, ValueError) as error:
            log.error("what was told of %s %s cannot be used: %s", *version, error)
    return found
