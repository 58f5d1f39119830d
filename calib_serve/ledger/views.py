"""The views of a ledger: their columns, for other tools that read them."""

from __future__ import annotations

from calib_serve.ledger.schema import COLUMNS
from calib_serve.receipts import SUMS

MEANINGS = {
    "labels": {
        "model": ("text", "The model of the prediction."),
        "version": ("text", "Its version."),
        "receipt": ("text", "The nonce of the prediction's receipt, in hex: no other prediction has it."),
        "predicted_at": ("number", "When the prediction was made, seconds since 1970."),
        "arrived_at": ("number", "When its label came, seconds since 1970."),
        "predicted": (
            "count",
            "The predicted class; of a multi-label model 2 l + 1 if label l is, else 2 l.",
        ),
        "confidence": ("number", "Its probability, as it was served."),
        "correct": ("yes or no", "Whether the label says that the prediction was right."),
        "inclusion": (
            "number",
            "The chance with which the label was asked for: its weight is one over this.",
        ),
        "segment": ("text", "The segment that it counts in."),
        "source": ("text", "Who sent the label; empty where that is not known."),
        "group_id": ("count", "A hash of the group whose outcomes hang together; 0: of none."),
        "revoked": ("yes or no", "Whether it was taken out of the sums again."),
        "label": ("count", "The true class; of a multi-label model 2 l + 1 if label l is true, else 2 l."),
        "history": ("text", "The labels before it, which it corrected, as JSON; empty: it is the first."),
    },
    "sums": {
        "model": ("text", "The model."),
        "version": ("text", "Its version."),
        "kind": (
            "text",
            "How predictions are sliced: segment, class, truth (of wrong ones), group, source or clause.",
        ),
        "name": ("text", "The slice; the segments of a version, the empty one too, make up all of it."),
        "start": ("number", "Where the span of prediction time begins, seconds since 1970."),
        "width": ("number", "Its seconds; 0: over all time."),
        "bin": ("count", "The bin of confidence: number b of 15 holds (b / 15, (b + 1) / 15]."),
        **{COLUMNS[one.name]: ("number", one.help) for one in SUMS if one.name in COLUMNS},
    },
    "incidents": {
        "id": ("count", "Its number."),
        "model": ("text", "The model."),
        "version": ("text", "Its version."),
        "opened": ("number", "When its first alarm was raised, seconds since 1970."),
        "onset": ("number", "When the change began, by its estimate."),
        "direction": ("text", "Which way calibration went."),
        "alarms": ("count", "How many alarms it has."),
        "labels": ("count", "Labels since the onset."),
        "excess": ("number", "Their sum of confidence less correct."),
        "closed": ("number", "When it was closed; empty: it is open."),
        "closed_by": ("text", "Who closed it: recovery, or a person."),
        "note": ("text", "What they said."),
    },
}
"""The columns of each view: their kinds, and what they mean."""


def create_views(*, lite: bool) -> list[str]:
    """The SQL that makes the views, in SQLite or PostgreSQL."""
    made = {
        "receipt": "lower(hex(label.receipt))" if lite else "encode(label.receipt, 'hex')",
        "model": "version.model",
        "version": "version.version",
        "correct": "label.predicted = label.label",
        "segment": "coalesce(label.segment, '')",
    }
    return [
        f"create view {view} as select "  # noqa: S608 - our own names
        + ", ".join(f"{made.get(name, f'{table}.{name}')} as {name}" for name in columns)
        + f" from {table} join version on version.id = {table}.version_id"
        for (view, columns), table in zip(MEANINGS.items(), ("label", "tally", "incident"), strict=True)
    ]
