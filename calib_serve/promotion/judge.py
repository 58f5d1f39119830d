"""What labels say of a promotion: whether to make it, and whether to take it back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from calib_serve.artifact import Contract
from calib_serve.receipts import shadow_tag
from calib_serve.watch.contracts import contract_states
from calib_serve.watch.ledger import Ledger, Version
from calib_serve.watch.maturity import Maturity
from calib_serve.watch.shadow import ShadowState, shadow_states

__all__ = ["Judged", "broken_promises", "judged"]


@dataclass(frozen=True)
class Judged:
    """``verdict`` of the shadow's test, whether it is enough to ``promote``, why, and the numbers of it."""

    promote: bool
    verdict: str
    reason: str
    numbers: Mapping[str, Any]


def judged(ledger: Ledger, served: Version, fingerprint: str, *, unless_worse: bool = False) -> Judged:
    """Whether the artifact of this ``fingerprint`` may be served instead of ``served``, whose shadow it was.

    "better" is enough, and with ``unless_worse`` also "no worse". Raises LedgerError where the ledger cannot
    be read.
    """
    tag = shadow_tag(fingerprint).hex()
    state = next((one for one in shadow_states(ledger, served) if one.tag == tag), None)
    if state is None:
        return Judged(
            False,
            "unknown",
            f"No label says anything of shadow {tag} of {served[1]}: serve it as a shadow first.",
            {"tag": tag, "labels": 0},
        )
    enough = state.verdict == "better" or (unless_worse and state.verdict == "no worse")
    return Judged(enough, state.verdict, state.says(), _numbers(state))


def broken_promises(
    ledger: Ledger, version: Version, contract: Contract | None, *, before: Version, now: float
) -> list[str]:
    """What the contract of ``version`` promises and is broken, and was not by the version ``before``."""
    if contract is None:
        return []

    def broken(of: Version) -> dict[str, str]:
        # The state is said of what was fed, which was mature: the windows beside it are not asked for here.
        states = contract_states(ledger, of, contract, maturity=Maturity(0.0, given=True), now=now)
        return {
            one.clause.id: f"{one.clause.name}: {one.low:.4f} to {one.high:.4f} after {one.labels:.0f} labels"
            for one in states
            if one.state == "broken"
        }

    earlier = broken(before)
    return [told for clause, told in broken(version).items() if clause not in earlier]


def _numbers(state: ShadowState) -> dict[str, Any]:
    told = asdict(state)
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in told.items()
    }
