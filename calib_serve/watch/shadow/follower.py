"""Feeds the tests of shadows with labels, and keeps them in the ledger, by version and tag."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from functools import partial

from calib_serve.errors import InputError
from calib_serve.watch.anew import note_anew
from calib_serve.watch.ledger import Ledger, Noted, Version
from calib_serve.watch.shadow.paired import ShadowTest
from calib_serve.watch.shadow.state import ShadowState

__all__ = ["MOST_TAGS", "ShadowFollower", "shadow_key", "shadow_states"]

log = logging.getLogger(__name__)

MOST_TAGS = 8
"""Shadows of one version whose tests are kept: those that had a label last."""


class ShadowFollower:
    """Follows a ``DriftFeed``: each label counts once in the test of the shadow that its receipt names."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def feed(self, version: Version, rows: Sequence[Noted], *, now: float) -> None:
        """See ``feed.Follower``."""
        by_tag: dict[str, list[Noted]] = {}
        for row in rows:
            if row.shadow is not None:
                by_tag.setdefault(row.shadow.tag, []).append(row)
        if not by_tag:
            return
        tests = _kept(self._ledger, version, partial(note_anew, self._ledger, version, now=now))
        for tag, of_tag in by_tag.items():
            tests[tag] = tests.pop(tag, ShadowTest()).fed(of_tag)  # the latest one is the last
        for tag in list(tests)[:-MOST_TAGS]:
            log.warning("%s %s: the test of shadow %s is dropped, there are others", *version, tag)
            del tests[tag]
        told = json.dumps({tag: test.as_dict() for tag, test in tests.items()})
        self._ledger.store(shadow_key(version), told.encode())


def shadow_states(ledger: Ledger, version: Version) -> list[ShadowState]:
    """What is known of each shadow of a version, by tag; LedgerError where the ledger cannot be read."""
    return [
        test.state(tag) for tag, test in sorted(_kept(ledger, version, partial(_logged, version)).items())
    ]


def _kept(ledger: Ledger, version: Version, anew: Callable[[str, object], None]) -> dict[str, ShadowTest]:
    """By tag, the one whose label came last at the end; of those that are damaged ``anew`` is told."""
    text = ledger.load(shadow_key(version))
    try:
        told = dict({} if text is None else json.loads(text).items())
    except (ValueError, AttributeError, RecursionError) as error:
        anew("the tests of all shadows", error)
        return {}
    found = {}
    for tag, one in told.items():
        try:
            found[str(tag)] = ShadowTest.of(one)
        except InputError as error:
            anew(f"the test of shadow {tag}", error)
    return found


def _logged(version: Version, what: str, why: object) -> None:
    log.warning("%s %s: %s begins anew with the next labels: %s", *version, what, why)


def shadow_key(version: Version) -> str:
    """Where a version's tests lie in the ledger."""
    model, name = version
    return f"watch/shadow/{len(model)}/{model}/{name}"
