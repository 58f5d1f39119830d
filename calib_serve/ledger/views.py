"""The views of a ledger: their columns, for people and other tools that read them."""

from __future__ import annotations

from calib_serve.ledger.schema import COLUMNS

VIEWS = {
    "labels": (
        *("model", "version", "receipt", "predicted_at", "arrived_at", "predicted", "confidence", "correct"),
        *("inclusion", "segment", "source", "group_id", "revoked", "label", "history"),
    ),
    "sums": ("model", "version", "kind", "name", "start", "width", "bin", *COLUMNS.values()),
    "incidents": (
        *("id", "model", "version", "opened", "onset", "direction", "alarms", "labels", "excess"),
        *("closed", "closed_by", "note"),
    ),
}
"""The columns of each view.

Times are seconds since 1970. ``receipt`` is the nonce in hex, ``label`` the true class (of a multi-label
model 2 l + 1 if label l is true, else 2 l), ``history`` the labels that it corrected, as JSON; a span of
``width`` 0 is all time, and bin b of 15 holds (b / 15, (b + 1) / 15].
"""


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
        for (view, columns), table in zip(VIEWS.items(), ("label", "tally", "incident"), strict=True)
    ]
