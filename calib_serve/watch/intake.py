"""Intake of labels: each one is verified and counted once.

receipt -> signature and age -> a model we know -> a label that was wanted, in its range -> the ledger.
An invalid item is refused alone; the rest of its batch is counted.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from calib_serve.errors import InputError, Reason, Refused
from calib_serve.names import By, Naming, shown
from calib_serve.receipts import DAY, Keyring, Label, LiveKeyring
from calib_serve.watch.ids import LONGEST_ID, ReceiptIds, is_id, receipt_of
from calib_serve.watch.journal import LabelJournal
from calib_serve.watch.ledger import Entry, Fate, Ledger, Version
from calib_serve.watch.slices import LONGEST_SEGMENT, Slices, is_segment

__all__ = ["Classes", "Intake", "Outcome", "decide", "decision_names"]

_AHEAD = 1.0  # seconds by which clocks of hosts are apart at most when all is well


_EXPLICIT = '; a number is an id, and {"label": text, "by": "id"} or "name" says it (calib-serve label --by)'


@dataclass(frozen=True)
class Classes:
    """What a label of one model version may be: an id in [0, count), or one of ``names``.

    ``pairs``: each two of them are a label of a multi-label model, not true and true (``decisions``).

    >>> Classes(2, ("cat", "dog")).find("dog")
    1
    >>> Classes.of_labels(2, ("cat", "dog")).find(True, predicted=2)
    3
    """

    count: int
    names: tuple[str, ...] = ()
    pairs: bool = False
    _naming: Naming = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_naming", Naming(self.count, self.names))

    @classmethod
    def of_labels(cls, labels: int, names: Sequence[str] = ()) -> Classes:
        """Of a multi-label model with so many labels."""
        return cls(2 * labels, decision_names(labels, names), pairs=True)

    def find(self, label: object, predicted: int = 0, by: By | None = None) -> int:
        """The class id of an id or a name, or Refused.

        A number is an id. A text is a name, else the digits of an id; refused where it is the name of one
        class and the id of another, unless ``by`` says which. Where classes are pairs, ``predicted`` says
        which label it is about: then 0 and 1, false and true, and the two names are taken.
        """
        if self.pairs:
            return self._of_pair(label, predicted - predicted % 2, by)
        if isinstance(label, str):
            try:
                return self._naming.find(label, by)
            except InputError as error:
                raise Refused("bad_label", f"{error}{_EXPLICIT if by is None else ''}") from error
        if (
            isinstance(label, int)
            and not isinstance(label, bool)
            and by != "name"
            and 0 <= label < self.count
        ):
            return label
        raise Refused("bad_label", f"{self._naming.says()}, got {shown(label)}")

    def _of_pair(self, label: object, no: int, by: By | None) -> int:
        names = self.names[no : no + 2]
        found = set()
        if isinstance(label, str):
            found = {i for i, name in enumerate(names) if name == label and by != "id"}
            texts = {"false": 0, "true": 1, "0": 0, "1": 1}
            found |= {texts[label.lower()]} if by != "name" and label.lower() in texts else set()
        elif isinstance(label, int) and label in (0, 1) and by != "name":
            found = {int(label)}
        if len(found) == 1 and names:  # the name "false" may be meant as no, or as the label of that name
            return no + found.pop()
        told = ", ".join(map(shown, names))
        raise Refused(
            "bad_label", f"a label is 0 or 1, false or true, or one of ({told}), got {shown(label)}"
        )


@dataclass(frozen=True)
class Outcome:
    """What became of one item: counted, or refused for ``reason``."""

    accepted: bool
    reason: Reason | None = None
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        if self.accepted:
            return {"accepted": True}
        return {"accepted": False, "reason": self.reason, "message": self.message}


class Intake:
    """Takes labels for the model versions in ``models`` and counts each of them once.

    ``ttl``: seconds after its prediction for which a label is accepted. ``slices``: in which slices of
    its version each label counts. ``detect``: whether labels wait for a drift detector (``DriftFeed``).
    ``journal``: where labels are written before they are counted. ``ids``: the receipts of labels that name
    their prediction by the user's own id.
    ``on_counted`` is called with what is counted but of single labels, for samples.
    ``refused`` counts refusals by reason since this object was made; ``ahead``: by how many seconds the last
    receipt that was dated ahead of the clock was so, and when it came, by ``time.monotonic``.
    """

    def __init__(
        self,
        keyring: Keyring | LiveKeyring,
        ledger: Ledger,
        *,
        models: Mapping[Version, Classes],
        ttl: float = 30 * DAY,
        clock: Callable[[], float] = time.time,
        on_counted: Callable[[Sequence[Label]], None] | None = None,
        slices: Slices | None = None,
        detect: bool = True,
        journal: LabelJournal | None = None,
        ids: ReceiptIds | None = None,
    ) -> None:
        self.keyring, self.ledger, self.models = keyring, ledger, dict(models)
        self.refused: Counter[Reason] = Counter()
        self.ahead = (0.0, -math.inf)
        self._ttl, self._clock, self._on_counted, self._detect = ttl, clock, on_counted, detect
        self._journal, self._ids = journal, ids
        self._slices = slices or Slices({version: one.count for version, one in models.items()})

    def know(self, models: Mapping[Version, Classes], slices: Slices) -> None:
        """Take labels of these versions from now on, and count them in these slices."""
        self.models, self._slices = dict(models), slices

    def take(self, items: Sequence[object], *, source: str | Sequence[str] = "") -> list[Outcome]:
        """Count every item that is right; one outcome an item, in order.

        An item is a mapping ``{"receipt": token, "label": see Classes}``; it may have ``by``, "id" or "name",
        and ``segment``. Without a receipt it has ``id``, the user's own of the prediction, and ``model`` if
        predictions of two models have that id. ``source``: who sent them, or who sent each; "" where that is
        not known. Raises LedgerError when the ledger cannot keep them, or ids cannot be looked up: send all
        again, and each is counted once.
        """
        now, found = self._clock(), self._found(items)
        checked = [self._check(item, now, found) for item in items]
        senders = [source] * len(items) if isinstance(source, str) else source
        entries = [
            Entry(one, now, self._slices.of_label(one.receipt, segment=_segment(item), source=who), who)
            for item, one, who in zip(items, checked, senders, strict=True)
            if isinstance(one, Label)
        ]
        with self._journal.writing() if self._journal else contextlib.nullcontext():
            fates = self._accept(entries)
        counted = [one.label for one, fate in zip(entries, fates, strict=True) if fate == "counted"]
        whole = [one for one in counted if not self.models[one.receipt.model, one.receipt.version].pairs]
        if whole and self._on_counted:
            self._on_counted(whole)
        news = iter(fates)
        outcomes = [_OUTCOMES[next(news)] if isinstance(one, Label) else one for one in checked]
        self.refused.update(o.reason for o in outcomes if o.reason)
        return outcomes

    def _accept(self, entries: Sequence[Entry]) -> list[Fate]:
        count = functools.partial(self.ledger.accept, entries, detect=self._detect)
        return self._journal.count(entries, lambda mark: count(mark=mark)) if self._journal else count()

    def _found(self, items: Sequence[object]) -> dict[str, dict[str, str]]:
        """The receipts, by model, of each id that an item names."""
        ids = {item["id"]: None for item in items if _names_id(item) and is_id(item["id"])}
        if not ids or self._ids is None:
            return {}
        return dict(zip(ids, self._ids.find(list(ids)), strict=True))

    def _check(self, item: object, now: float, found: Mapping[str, Mapping[str, str]]) -> Label | Outcome:
        try:
            return self._label(item, now, found)
        except Refused as refusal:
            self._note_ahead(refusal.ahead)
            return Outcome(False, refusal.reason, str(refusal))

    def _note_ahead(self, seconds: float) -> None:
        if seconds > _AHEAD:
            self.ahead = (seconds, time.monotonic())

    def _label(self, item: object, now: float, found: Mapping[str, Mapping[str, str]]) -> Label:
        """The label of an item, or Refused; ``found``: receipts of ids."""
        if not isinstance(item, Mapping) or not item.keys() & {"receipt", "id"} or "label" not in item:
            raise Refused(
                "malformed",
                'an item is {"receipt": "...", "label": class id or name}, or has "id" for "receipt"',
            )
        if "segment" in item and not is_segment(item["segment"]):
            raise Refused("malformed", f"a segment is a text of at most {LONGEST_SEGMENT} characters")
        if item.get("by") not in (None, "id", "name"):
            raise Refused("malformed", 'what a label is "by" is "id" or "name"')
        token = self._receipt(item, found) if _names_id(item) else item["receipt"]
        receipt = self.keyring.verify(token, now=now, ttl=self._ttl)
        self._note_ahead(receipt.time - now)
        classes = self.models.get((receipt.model, receipt.version))
        if classes is None:
            raise Refused("unknown_version", f"no model {receipt.model!r} version {receipt.version!r} here")
        if not receipt.wanted:
            raise Refused("not_wanted", "no label was asked for: counting it would bend what is estimated")
        return Label(receipt, classes.find(item["label"], receipt.predicted, item.get("by")))

    def _receipt(self, item: Mapping[str, Any], found: Mapping[str, Mapping[str, str]]) -> str:
        if not is_id(item["id"]):
            raise Refused("malformed", f"an id is a text of 1 to {LONGEST_ID} characters")
        if self._ids is None:
            raise Refused("unknown_id", "no ids of predictions are kept here; send the receipt")
        return receipt_of(found[item["id"]], id=item["id"], model=item.get("model") or None)


def _names_id(item: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether an item names its prediction by an id: where it has a receipt, that counts alone."""
    return isinstance(item, Mapping) and "id" in item and item.get("receipt") in (None, "")


def _segment(item: object) -> str:
    return str(item.get("segment", "")) if isinstance(item, Mapping) else ""


_OUTCOMES: dict[str, Outcome] = {
    "counted": Outcome(True),
    "duplicate": Outcome(False, "duplicate", "a label for this receipt was counted before"),
    "forgotten": Outcome(
        False, "forgotten", "the receipt is so old that the ledger may have forgotten whether it was counted"
    ),
}


def decide(
    probs: NDArray[np.floating[Any]], threshold: float = 0.5
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """What is decided of each label (n, L), as a class below 2 L, and with which confidence (n, L).

    A label is decided to be true where its probability in ``probs`` (n, L) is ``threshold`` or more.

    >>> [found.tolist() for found in decide(np.array([[0.125, 0.75]]))]
    [[[0, 3]], [[0.875, 0.75]]]
    """
    yes = probs >= threshold
    return 2 * np.arange(probs.shape[1]) + yes, np.where(yes, probs, 1 - probs).astype(np.float64)


def decision_names(labels: int, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the 2 L classes of L labels; ``names`` (L,) of the labels, or none.

    >>> decision_names(1, ["cat"]), decision_names(1)
    (('not cat', 'cat'), ('not label 0', 'label 0'))
    """
    called = names or [f"label {k}" for k in range(labels)]
    return tuple(text for name in called for text in (f"not {name}", name))
