"""A user's own ids of predictions, by which labels may name them.

An id is bound to its receipt in the ledger, for as long as labels of its prediction are accepted. Each source
(the name of the token that sent the prediction) has ids of its own: who guesses another's finds nothing and
takes nothing. Of each (source, model, id) the first binding stays. A hash of the id is kept, as it may name a
person.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import func, select

from calib_serve.core.errors import Refused
from calib_serve.core.names import shown
from calib_serve.ledger.ledger import Ledger
from calib_serve.ledger.rows import CHUNK
from calib_serve.ledger.schema import PREDICTION_ID
from calib_serve.receipts import Fate, nonce_of

ReceiptsById = Mapping[str, Mapping[str, Sequence[str]]]
"""Receipts by model, by id."""

_ROW = PREDICTION_ID.c


class Binding(NamedTuple):
    """An id, and the prediction that it names from now on.

    Args:
        model: Name of the prediction's model.
        id: The user's own name of the prediction.
        receipt: Its receipt.
    """

    model: str
    id: str
    receipt: str


def receipt_of(found: Mapping[str, Sequence[str]], *, id: str, model: object = None) -> str:
    """The receipt that a label by ``id`` means, of ``model`` if it names one.

    ``found``: the receipts of the id by model, one from each source. Refused where there is none, or those of
    more than one prediction.

    >>> receipt_of({"m": ["AgA"]}, id="order-17")
    'AgA'
    """
    if model is not None and not isinstance(model, str):
        raise Refused("malformed", "a model is called by a text")
    if model is None and len(found) > 1:
        raise Refused(
            "malformed", f'id {shown(id)} is of predictions of {len(found)} models; name one by "model"'
        )
    receipts = next(iter(found.values()), ()) if model is None else found.get(model, ())
    if not receipts:
        raise Refused(
            "unknown_id",
            f"no prediction of id {shown(id)} is known here: it has not come yet, came without its id, is so "
            "old that its labels are not accepted any more, or another token sent it and yours has not the "
            "scope ids",
        )
    if not all(_same(receipts[0], one) for one in receipts[1:]):
        raise Refused(
            "malformed",
            f"id {shown(id)} is of predictions that several tokens sent; label it by its receipt, or by the "
            "token that sent it",
        )
    return receipts[0]


def _hashed(id: str) -> str:
    # 16 bytes: that two of a billion ids meet has a chance below 1e-20.
    return hashlib.blake2b(id.encode(), digest_size=16, person=b"prediction id").hexdigest()


class PredictionIds:
    """The ids in a ledger; ``fates`` counts their outcomes since this object was made.

    Args:
        ledger: Ledger that keeps them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.fates: Counter[Fate] = Counter()

    def bind(self, bindings: Sequence[Binding], *, now: float, source: str = "") -> list[bool]:
        """Bind ids to predictions, durable on return; whether each names its prediction now.

        Args:
            bindings: Ids and their predictions.
            now: Seconds since 1970.
            source: Name of the sender of the predictions.

        Raises:
            LedgerError: Where that cannot be kept.
        """
        rows = {(one.model, _hashed(one.id)): one.receipt for one in reversed(bindings)}
        told = [
            {"model": model, "id_hash": name, "source": source, "receipt": receipt, "bound_at": now}
            for (model, name), receipt in sorted(rows.items())  # sorted: no two batches wait for each other
        ]
        try:
            with self._ledger.transaction() as connection:
                made = self._ledger.database.insert(PREDICTION_ID).on_conflict_do_nothing()
                connection.execute(made, told)
                self._ledger.hold_forgetting(connection)
                kept = self.find([one.id for one in bindings], source=source)
        except BaseException:
            self.fates["failed"] += len(bindings)
            raise
        bound = [_same(one.receipt, of[one.model][0]) for one, of in zip(bindings, kept, strict=True)]
        self.fates["bound"] += sum(bound)
        self.fates["conflict"] += len(bound) - sum(bound)
        return bound

    def find(self, ids: Sequence[str], *, source: str | None = None) -> list[dict[str, tuple[str, ...]]]:
        """Find the receipts of each id by model; empty where it is not known.

        The database leaves out rows of other sources, so that an id of theirs takes as long as one that
        nobody has.

        Args:
            ids: The user's own names of predictions.
            source: Name of the sender of these; None: any.
        """
        names = [_hashed(one) for one in ids]
        found: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in names}
        with self._ledger.database.reading() as connection:
            for at in range(0, len(names), CHUNK):
                asked = select(PREDICTION_ID).where(_ROW.id_hash.in_(names[at : at + CHUNK]))
                if source is not None:
                    asked = asked.where(_ROW.source == source)
                for row in connection.execute(asked):
                    found[row.id_hash][row.model] = (*found[row.id_hash].get(row.model, ()), row.receipt)
        return [found[name] for name in names]

    def count(self) -> int:
        """The number of ids in the ledger."""
        with self._ledger.database.reading() as connection:
            return int(connection.scalar(select(func.count()).select_from(PREDICTION_ID)) or 0)


def _same(one: str, other: str) -> bool:
    """Whether two receipts are of one prediction: signed again with a newer key, its nonce stays."""
    return one == other or nonce_of(one) == nonce_of(other)
