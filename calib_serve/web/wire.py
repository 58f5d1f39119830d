"""The models of the watch app's requests and answers, for pydantic and OpenAPI.

Bodies are validated item by item, so that a wrong one spoils no other: their models are for the item
and for the schema, never for a whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from calib_serve.core.arrays import finite
from calib_serve.core.errors import Reason
from calib_serve.core.names import By
from calib_serve.monitor import ClauseState, ShadowState
from calib_serve.receipts import LONGEST_ID, LONGEST_SEGMENT, MOST_ITEMS

Logits = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]] | None,
    Field(description="what the output calibration was applied to; kept among the samples, if any"),
]

OwnId = Annotated[
    str, Field(max_length=LONGEST_ID, description="your own of the prediction; its label may name it")
]

Known = Annotated[float | None, AfterValidator(finite)]
"""A number, null where it is not known: JSON has no NaN and no infinity."""

Replaces = Annotated[bool, Field(description="whether it, or each of a batch, takes another label's place")]

IdBound = Annotated[bool, Field(description="whether the label may come by the prediction's id")]

SampleRate = Annotated[
    float, Field(ge=0, le=1, description="share of predictions whose logits are kept here; 0: send none")
]

_ERRORS = {
    400: "the body is not JSON, or no list of items",
    401: "no token, or an unknown one",
    403: "a token without the scope that this needs, or a page of another site",
    404: "no open incident of that number, or no such model version",
    409: "the Idempotency-Key was used for another batch; nothing was counted",
    413: f"more than {MOST_ITEMS:,} items, or more than 4 MiB",
    415: "neither JSON nor NDJSON, or encoded",
    429: "too many batches are waiting; send it again",
    503: "the ledger cannot keep the batch, or it is not known whether it did; send it again",
}


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _OfVersion(_Given):
    model: Annotated[str, Field(min_length=1, max_length=255)]
    version: Annotated[str, Field(min_length=1, max_length=255)]


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ShadowIn(_Given):
    """A shadow's prediction for the same input."""

    predicted: Annotated[int, Field(ge=0, lt=2**32, description="class id")]
    confidence: Annotated[float, Field(ge=0, le=1, description="its probability")]
    tag: Annotated[
        str, Field(pattern="^[0-9a-f]{8}$", description="first 8 hex digits of its artifact's SHA-256")
    ]


class PredictionIn(_OfVersion):
    """One served prediction."""

    predicted: Annotated[
        int,
        Field(ge=0, lt=2**32, description="class id; of a multi-label model 2 l + 1 if label l is, else 2 l"),
    ]
    confidence: Annotated[float, Field(description="its probability, in [0, 1]")]
    segment: Annotated[str, Field(max_length=LONGEST_SEGMENT)] = ""
    group: Annotated[
        str,
        Field(max_length=255, description="what predictions share whose outcomes depend on one another"),
    ] = ""
    logits: Logits = None
    id: OwnId = ""
    shadow: ShadowIn | None = None


class SignedIn(_Given):
    """One served prediction that was signed where it was made, with a key of the same keyring."""

    receipt: Annotated[str, Field(min_length=1)]
    id: OwnId = ""
    logits: Logits = None


class PredictionsIn(BaseModel):
    """A batch of predictions."""

    items: Annotated[list[PredictionIn | SignedIn], Field(max_length=MOST_ITEMS)]


class ServedIn(_OfVersion):
    """Predictions of one class and segment that were signed where they were made, added up by confidence."""

    predicted: Annotated[int, Field(ge=0, lt=2**32, description="class id, as of a prediction")]
    segment: Annotated[str, Field(max_length=1000, description="of at most 63 characters")] = ""
    low: Annotated[float, Field(ge=0, le=1, description="the lowest of their confidences")]
    high: Annotated[float, Field(ge=0, le=1, description="the highest, in the same of 15 bins")]
    count: Annotated[int, Field(ge=1, lt=2**53, description="how many predictions")]
    confidence: Annotated[float, Field(ge=0, allow_inf_nan=False, description="the sum of their confidences")]


class SumsIn(_Given):
    """Predictions that were made about one time, added up; sent under an Idempotency-Key."""

    time: Annotated[float, Field(ge=0, allow_inf_nan=False, description="when, seconds since 1970")]
    items: Annotated[list[ServedIn], Field(max_length=MOST_ITEMS)]


class LabelIn(BaseModel):
    """The true class of one prediction, which its receipt names, or its id."""

    receipt: str = ""
    id: OwnId = ""
    model: Annotated[str, Field(description="of the prediction, where those of two models have one id")] = ""
    label: Annotated[
        bool | int | str,
        Field(description="class id or class name; of a multi-label model 0, 1, false, true, or a name"),
    ]
    by: Annotated[
        By | None, Field(description="what a text is, where it may be the name of one class and another's id")
    ] = None
    segment: Annotated[str, Field(max_length=LONGEST_SEGMENT)] = ""
    replaces: Replaces = False


class LabelsIn(BaseModel):
    """A batch of labels."""

    items: Annotated[list[LabelIn], Field(max_length=MOST_ITEMS)]
    replaces: Replaces = False


class ReceiptOut(_Told):
    """A prediction that was counted."""

    receipt: Annotated[str, Field(description="send it back with the label")]
    label_wanted: Annotated[bool, Field(description="whether the label policy asks for the label")] = True
    id_bound: IdBound = True


class OutcomeOut(_Told):
    """The outcome of an item: counted, or why not."""

    accepted: bool
    held: Annotated[bool, Field(description="accepted, and counted when its version is told here")] = False
    corrected: Annotated[bool, Field(description="accepted in the place of another label")] = False
    reason: Reason | None = None
    message: str = ""
    id_bound: IdBound = True


class PredictionsOut(BaseModel):
    """One answer a prediction, in order."""

    items: Annotated[
        list[ReceiptOut | OutcomeOut],
        Field(description="a receipt for each that came without one; accepted or why not for the others"),
    ]
    sample_rate: SampleRate


class SumsOut(BaseModel):
    """One answer an item, in order."""

    items: list[OutcomeOut]
    sample_rate: SampleRate


class LabelsOut(BaseModel):
    """How many labels were counted, and one answer each, in order."""

    accepted: int
    refused: int
    items: list[OutcomeOut]


class IncidentOut(BaseModel):
    """A drift of one model version; times in seconds since 1970, what is not known is null."""

    model_config = ConfigDict(extra="allow")

    id: int
    model: str
    version: str
    opened: float
    onset: float | None
    direction: str
    gap: float | None
    alarms: int
    closed: float | None
    closed_by: str


class IncidentsOut(BaseModel):
    """The latest incidents, oldest first."""

    items: list[IncidentOut]


class CloseIn(_Given):
    """Who closes an incident, and why."""

    by: Annotated[str, Field(min_length=1, max_length=100)]
    note: Annotated[str, Field(max_length=1000)] = ""


class VersionIn(_OfVersion):
    """A model version to watch: what its labels may be, and its contract if it has one."""

    classes: Annotated[int, Field(ge=1, le=10_000_000, description="how many; of labels, how many of these")]
    class_names: Annotated[list[str] | None, Field(description="in the order of their ids")] = None
    multilabel: Annotated[bool | None, Field(description="whether each class is a label of its own")] = None
    contract: Annotated[
        dict[str, Any] | None, Field(description="its promises, as the artifact has them")
    ] = None


class VersionOut(BaseModel):
    """The version that is watched."""

    model: str
    version: str
    classes: int


class LedgerOut(BaseModel):
    """The ledger's database: SQLite or PostgreSQL, its bytes, and how far its slowest standby is behind.

    ``durability``: where what was acknowledged is stored for sure.
    """

    database: str
    bytes: int
    behind_seconds: float | None
    durability: str


class HealthOut(BaseModel):
    """Whether batches can be counted, what each check found: ok, or why not; the ledger, if it answers."""

    status: Literal["ready", "degraded", "failing"]
    checks: dict[str, str]
    ledger: LedgerOut | None = None


class ErrorOut(BaseModel):
    """Why nothing of the request was done."""

    detail: str


def answers(model: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entry of answers: ``model`` at 200, and these errors."""
    told: dict[int | str, dict[str, Any]] = {200: {"model": model}}
    return told | {status: {"model": ErrorOut, "description": _ERRORS[status]} for status in statuses}


def not_text(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entry of errors of a route that answers by text: they are JSON all the same."""
    content = {"application/json": {"schema": ErrorOut.model_json_schema()}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}


def body(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a body that is validated item by item, not as a whole."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema)}}}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    parts = schema.pop("$defs", {})

    def inline(told: Any) -> Any:
        if isinstance(told, list):
            return [inline(one) for one in told]
        if not isinstance(told, dict):
            return told
        if "$ref" in told:
            return inline(parts[told["$ref"].rpartition("/")[2]])
        return {name: inline(one) for name, one in told.items()}

    return dict(inline(schema))


class BurnOut(_Told):
    """How fast a window spent the error budget: 1 spends it in the clause's time; and at least, with 95 %."""

    rate: Known
    low: Known


class ClauseOut(_Told):
    """A clause of the contract and how it stands: kept, broken or unknown; what is not known is null."""

    clause: Annotated[str, Field(description="its name")]
    says: Annotated[str, Field(description="the promise in words")]
    promise: float
    above: Annotated[float, Field(description="the confidence from which it is made")]
    per_seconds: Annotated[float, Field(description="the time over which its error budget is spent")]
    segment: str
    predicted: Annotated[int | None, Field(description="the class id that it is made of")]
    state: Literal["kept", "broken", "unknown"]
    said_at: Annotated[float | None, Field(description="since when, seconds since 1970")]
    why: Annotated[str, Field(description="what is missing, where the state is unknown")]
    labels: float
    value: Known
    low: Known
    high: Known
    budget_left: Known
    runs_out_seconds: Known
    lasts: Annotated[bool, Field(description="whether the budget lasts at the present rate")]
    burn: Annotated[dict[str, BurnOut], Field(description="by window")]

    @classmethod
    def of(cls, one: ClauseState, class_names: Sequence[str] | None) -> ClauseOut:
        """The answer for a clause's state."""
        clause, told = one.clause, dict(vars(one))
        told |= {name: getattr(clause, name) for name in ("promise", "above", "segment", "predicted")}
        told |= {"clause": clause.name, "says": clause.says(class_names or ()), "per_seconds": clause.per}
        runs_out = told.pop("runs_out")
        burn = {window: BurnOut(**vars(each)) for window, each in told.pop("burn").items()}
        return cls(**told, runs_out_seconds=runs_out, lasts=runs_out == math.inf, burn=burn)


class ContractOut(BaseModel):
    """The clauses of a version's contract; none where it has none."""

    model: str
    version: str
    clauses: list[ClauseOut]


class ShadowOut(_Told):
    """A shadow of the served version: better, no worse, worse or unknown; what is not known is null."""

    tag: str
    verdict: Literal["better", "no worse", "worse", "unknown"]
    says: str
    labels: float
    gain: Annotated[Known, Field(description="nats a prediction by which its log score is better")]
    low: Known
    high: Known
    accuracy_difference: Annotated[
        Known, Field(description="share of right predictions less the served one's")
    ]
    log_evidence: Annotated[dict[str, Known], Field(description="natural log, by statement")]
    since: Known

    @classmethod
    def of(cls, one: ShadowState) -> ShadowOut:
        """The answer for a shadow's state."""
        return cls(**vars(one), says=one.says())


class ShadowsOut(BaseModel):
    """The shadows of a version, by the tags of their artifacts."""

    model: str
    version: str
    shadows: list[ShadowOut]
