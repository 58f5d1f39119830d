"""The bond of a reply and its receipt: whose row of scores is whose, and whether the reply shows it.

No trial proves a handler: batches by length, a cascade, a filter in the request, a state over frames part
rows and replies when they come. So a worker looks at every reply, and signs for what its client saw.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Union

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import ModelError
from calib_serve.scores import Form, Outputs, from_probs
from calib_serve.torchserve._predictions import Failure, Row
from calib_serve.torchserve.shown import Match, Readings

Rows = Sequence[Union[Row, Failure]]
Calibrate = Callable[[NDArray[Any]], tuple[list[Union[Row, Failure]], NDArray[np.float64]]]


REASONS = ("class", "number", "nothing", "rows")
"""Why a reply has no receipt: it shows another class or number than its row, or nothing that can be compared,
or it is unknown whose the row is."""


class _Call(NamedTuple):
    """A call: its place in the batch, if known; its rows, and whose they are, if said.

    ``is_part``: whether it is of a micro-batch.
    """

    place: int | None
    rows: Rows
    owners: list[int | None] | None
    is_part: bool


class Passing:
    """A wrapper of each inference of a handler; keeps the rows since ``begin``.

    A failure of the calibration changes nothing: what was returned goes on as it is, and ``failed`` says why.
    ``calibrate`` makes rows and probabilities of scores of ``classes``, which lie in what passes as ``form``
    says; ``order``: the place of a call in the batch, where a handler makes several in threads of its own.
    """

    def __init__(
        self,
        calibrate: Calibrate,
        *,
        classes: int,
        form: Form,
        outputs: Outputs,
        order: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._calibrate, self._classes, self._order = calibrate, classes, order
        self._form, self._outputs = form, outputs
        self.begin()

    def begin(self) -> None:
        """Begin a new batch."""
        self._calls: list[_Call] = []
        self.failed: Exception | None = None

    def __call__(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``call``, calibrated."""
        return self._passed(call(*args, **kwargs), None)

    def declared(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of ``call``, calibrated; ``rows`` among ``kwargs`` says whose each row is."""
        return self._passed(call(*args), kwargs["rows"])

    def _passed(self, returned: Any, owners: Sequence[int | None] | None) -> Any:
        try:
            owned = None if owners is None else list(owners)  # a handler may go on to change it
            found = self._form.scores(returned, self._classes)
            rows, probs = self._calibrate(found.values)
            result = self._form.put(returned, from_probs(probs, found.values, self._outputs), found.shape)
        except Exception as error:  # fails open, and is counted
            self.failed = error
            return returned
        part = self._order()
        place = part
        if place is None and threading.current_thread() is threading.main_thread():
            place = len(self._calls)
        self._calls.append(_Call(place, rows, owned, part is not None))
        return result

    @property
    def reached(self) -> bool:
        """Whether scores passed since ``begin``."""
        return bool(self._calls) or self.failed is not None

    @property
    def are_declared(self) -> bool:
        """Whether the handler said whose each row is."""
        return any(call.owners is not None for call in self._calls)

    @property
    def passed(self) -> int:
        """Number of rows since ``begin``."""
        return sum(len(call.rows) for call in self._calls)

    def owned(self, asked: int, counts: Callable[[int], Sequence[int] | None]) -> list[Rows] | None:
        """The rows of each of ``asked`` items that the handler was asked; None where that is unknown.

        ``counts``: from the number of rows to how many each item has, by the protocol of the requests. Raises
        ModelError where the handler says whose rows are, and these are not as many, or of no item.
        """
        if self.are_declared:
            return self._by_owners(asked)
        if len(self._calls) > 1 and any(call.place is None for call in self._calls):
            return None  # on several threads, in any order
        calls = sorted(self._calls, key=lambda call: call.place or 0)
        sizes, rest = counts(self.passed), iter([row for call in calls for row in call.rows])
        return None if sizes is None else [[next(rest) for _ in range(n)] for n in sizes]

    def _by_owners(self, asked: int) -> list[Rows]:
        own: list[list[Row | Failure]] = [[] for _ in range(asked)]
        for call in self._calls:
            owners = [None if at is None else operator.index(at) for at in call.owners or []]
            if len(owners) != len(call.rows) or call.is_part:
                whole = "; in a micro-batch leave rows= out" if call.is_part else ""
                raise ModelError(f"rows= names the requests of {len(owners)} of {len(call.rows)} rows{whole}")
            for row, at in zip(call.rows, owners, strict=True):
                if at is not None and not 0 <= at < asked:
                    raise ModelError(f"rows= names the request {at}, and the batch has {asked}, from 0 on")
                if at is not None:
                    own[at].append(row)
        return [*own]


class Bond:
    """Compares each reply with the rows that its receipts would be for, by what replies show."""

    def __init__(self, shown: Readings) -> None:
        self._shown, self._doubted = shown, False

    def reasons(self, own: Sequence[Rows], replies: Any, *, declared: bool) -> list[str]:
        """Why the rows of each item get no receipt; "" where they do.

        Where rows are ``declared``, a reply that shows nothing of its row does not speak against it.
        """
        if not isinstance(replies, list) or len(replies) != len(own):
            return ["rows"] * len(own)
        found = [self._match(reply, rows, declared) for reply, rows in zip(replies, own, strict=True)]
        if len(own) > 1 and (any(one.reason for one in found) or (self._doubted and not declared)):
            # Labels agree by chance, and more so where one class is frequent.
            found = [one if one.reason or one.numbers else Match("rows") for one in found]
        self._doubted |= len(own) > 1 and any(one.reason in ("class", "number") for one in found)
        return [one.reason for one in found]

    def _match(self, reply: Any, rows: Rows, declared: bool) -> Match:
        probs = [row.probs for row in rows if not isinstance(row, Failure)]
        if not probs or len(probs) < len(rows):
            return Match("", numbers=True)  # there is nothing to sign
        found = self._shown.compare(reply, *probs)
        return Match() if declared and found.reason == "nothing" else found


class UnmatchedShare:
    """Whether more than ``most`` of the latest replies went out without a receipt.

    Their labels are missing, which hides a gap of about that size: 0.02 is the tolerance of the alerts.

    >>> share = UnmatchedShare()
    >>> share.update([False] * 100 + [True] * 11), share.update([False] * 500)
    (False, True)
    """

    most = 0.02

    def __init__(self) -> None:
        self._latest = deque([False] * 500)  # of which ten single ones are no trouble yet
        self._unmatched = 0

    def update(self, unmatched: Iterable[bool]) -> bool:
        """Whether all is well after these replies, the latest last."""
        for one in unmatched:
            self._latest.append(one)
            self._unmatched += one - self._latest.popleft()
        return self._unmatched <= self.most * len(self._latest)
