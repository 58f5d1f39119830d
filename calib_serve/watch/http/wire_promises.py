"""What the watch app answers of contracts and shadows, as pydantic and OpenAPI say it."""

from __future__ import annotations

from typing import Literal

from calib_serve.errors import MissingDependency

try:
    from pydantic import BaseModel, ConfigDict
except ImportError as error:
    raise MissingDependency("pydantic", "watch") from error

__all__ = ["ClauseOut", "ContractOut", "ShadowOut", "ShadowsOut"]


class ClauseOut(BaseModel):
    """A clause of the contract and how it stands: kept, broken or unknown; what is not known is null."""

    model_config = ConfigDict(extra="allow")

    clause: str
    says: str
    promise: float
    state: Literal["kept", "broken", "unknown"]
    labels: float
    value: float | None
    low: float | None
    high: float | None
    budget_left: float | None
    runs_out_seconds: float | None
    burn: dict[str, dict[str, float | None]]


class ContractOut(BaseModel):
    """The clauses of a version's contract; none where it has none."""

    model: str
    version: str
    clauses: list[ClauseOut]


class ShadowOut(BaseModel):
    """A shadow of the served version: better, no worse, worse or unknown; what is not known is null."""

    model_config = ConfigDict(extra="allow")

    tag: str
    verdict: Literal["better", "no worse", "worse", "unknown"]
    says: str
    labels: float
    gain: float | None
    low: float | None
    high: float | None


class ShadowsOut(BaseModel):
    """The shadows of a version, by the tags of their artifacts."""

    model: str
    version: str
    shadows: list[ShadowOut]
