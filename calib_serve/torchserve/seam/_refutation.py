"""The refutation of a place in a handler, by what it replies while chosen scores pass there.

In place of the scores that pass go those of chosen probabilities, for two requests. A place is refused where

- nothing of the reply follows the scores, or nothing that follows them could be compared with a row later;
- two requests with the same scores are answered otherwise: other scores, or a state, take part;
- a number that follows them is neither linear in the probabilities nor a function of them that people show;
- a label names another class than the likeliest: by a threshold of the handler's own, costs, a choice;
- in a batch, rows or replies are those of other requests.

What is not refused is not proved: rare requests may be answered otherwise, so each later reply is compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.core.errors import ModelError
from calib_serve.scores import (
    LABELS,
    Form,
    FoundScores,
    Leaf,
    Outputs,
    Rounded,
    as_json,
    class_count,
    from_probs,
    leaves,
    to_probs,
)
from calib_serve.torchserve.declared import DECLARED
from calib_serve.torchserve.seam._host import Answer
from calib_serve.torchserve.seam._recorder import PlaceRecorder
from calib_serve.torchserve.seam._requests import Request
from calib_serve.torchserve.shown import Path, Readings, chosen_rows, read_shown

Ask = Callable[[Sequence[Request]], Answer]

DECLARE = "or let the handler say which row is whose: scores = calibrated(scores, rows=[...])"

_CLOSE, _CLOSE_OF_HALVES = 2e-3, 2e-2
_SUREST, _TORN = 0.9995, 0.02
"""The likeliest class's probability beyond usual thresholds; how much it is ahead where two are torn."""


class NotPassed(ModelError):
    """A request was answered, and no scores passed."""

    def __init__(self) -> None:
        super().__init__(
            "a request that was answered before is answered again without its scores (a cache), so that it "
            "cannot be asked twice; give different requests with --probe-data, or turn that off"
        )


class NotFollowed(ModelError):
    """The reply is the same whatever scores pass."""


class NotAnswered(ModelError):
    """The handler did not answer each request of a batch."""


class NotOneRow(ModelError):
    """Other rows of scores passed than one a request."""


class NotOneOwned(ModelError):
    """By the handler's declaration the request at ``at`` in the batch has none of the rows, or several."""

    def __init__(self, at: int, rows: int) -> None:
        super().__init__(
            f"it has {rows} rows of scores, by the rows that its handler declares, and a label is of one; "
            "leave it out"
        )
        self.at = at


@dataclass(frozen=True)
class Seen:
    """The scores that passed for a batch, one row (K,) a request, and the replies as a client reads them.

    ``in_order``: whether the rows passed one after another, not on threads of their own.
    """

    rows: Floats
    replies: list[Any]
    in_order: bool = True


@dataclass(frozen=True, eq=False)
class Place:
    """A place in a handler: ``ask`` it, and its scores are in ``recorder``, or are replaced by it.

    ``classes`` columns of the ``kind`` pass as ``form`` says. ``half``: they have three digits.
    """

    name: str
    ask: Ask
    recorder: PlaceRecorder
    form: Form
    kind: Outputs
    columns: int
    half: bool = False

    @property
    def close(self) -> float:
        """The difference within which two numbers are equal."""
        return _CLOSE_OF_HALVES if self.half else _CLOSE

    @property
    def classes(self) -> int:
        """The number K of classes, or L of labels."""
        return class_count(self.kind, self.columns)

    def see(self, requests: Sequence[Request], *, served: bool = False) -> Seen:
        """Ask the requests; ModelError where not one row a request passes, or the handler fails.

        ``served``: what passes goes on as it is served, of the same probabilities, uncalibrated.
        """
        got = self._asked(requests, self._as_served if served else None)
        if got.failure:
            raise NotAnswered(got.failure)
        found = [self._scores(one).values for one in self.recorder.returned]
        if not found:
            raise NotPassed
        rows = np.concatenate(found)
        if self.name == DECLARED:
            rows = rows[self._owned([len(one) for one in found], len(requests))]
        if len(rows) != len(requests):
            at_once = "a request" if len(requests) == 1 else f"{len(requests)} requests"
            raise NotOneRow(
                f"{len(rows)} rows of scores pass in {len(found)} calls for {at_once}: what the reply makes "
                "of them is made behind this place (windows, augmented inputs, padding); name with --seam "
                "the place where one row a request passes, such as a method that returns their average, "
                f"{DECLARE}"
            )
        in_order = len(found) == 1 or not self.recorder.elsewhere
        return Seen(rows, [as_json(reply) for reply in got.replies], in_order or self.name == DECLARED)

    def reply_to(self, request: Request, probs: Floats, *, more: float = 0.0) -> Any:
        """The reply to a request whose scores are those of probabilities (K,); None if the handler fails.

        ``more``: what is added to all logits, which changes no probability.
        """

        def put(returned: Any) -> Any:
            found = self._scores(returned)
            values = found.values.copy()
            at = list(self._owners([len(values)])).index(0)
            values[at] = from_probs(probs[None], values[at : at + 1], self.kind)[0] + more
            return self.form.put(returned, values, found.shape)

        got = self._asked([request], put)
        if not got.failure and not self.recorder.returned:
            raise NotPassed
        return None if got.failure else as_json(got.replies[0])

    def _asked(self, requests: Sequence[Request], put: Callable[[Any], Any] | None) -> Answer:
        self.recorder.clear()
        self.recorder.put = put
        try:
            return self.ask(requests)
        finally:
            self.recorder.put = None

    def _as_served(self, returned: Any) -> Any:
        found = self._scores(returned)
        values = from_probs(to_probs(found.values, self.kind), found.values, self.kind)
        return self.form.put(returned, values, found.shape)

    def _owners(self, sizes: Sequence[int]) -> Iterator[Any]:
        """Yield the request of each row of the last calls, as the handler declares it, else one a row."""
        at = 0
        for size, rows in zip(sizes, self.recorder.owners[-len(sizes) :], strict=True):
            declared = None if self.name != DECLARED or rows is None else list(rows)
            if declared is not None and len(declared) != size:
                raise ModelError(f"rows= declares {len(declared)} rows, and {size} rows of scores pass")
            yield from range(at, at + size) if declared is None else declared
            at += size

    def _owned(self, sizes: Sequence[int], requests: int) -> list[int]:
        """The position of each request's row, as the handler declares it."""
        owners = list(self._owners(sizes))
        for i in range(requests):
            if owners.count(i) != 1:
                raise NotOneOwned(i, owners.count(i))
        return [owners.index(i) for i in range(requests)]

    def _scores(self, returned: Any) -> FoundScores:
        return self.form.scores(returned, max(2, self.columns))


@dataclass(frozen=True)
class Alone:
    """A place, ``requests`` that differ, and what was seen of each alone: a row (K,) of scores, a reply."""

    place: Place
    requests: Sequence[Request]
    rows: Floats
    replies: Sequence[Any]

    def first(self, most: int) -> Alone:
        """These of ``most`` so many requests."""
        return Alone(self.place, self.requests[:most], self.rows[:most], self.replies[:most])

    def apart(self, rows: Floats) -> Floats:
        """How far each request's row is from each of ``rows`` (m, K): (n, m)."""
        return np.asarray(np.abs(self.rows[:, None] - rows[None]).max(axis=2))


def read_place(alone: Alone, names: Sequence[str] = (), others: Sequence[str] = ()) -> Readings:
    """Find what replies show of the scores at a place; ModelError where they are made of others.

    ``names`` of the classes; ``others``: networks that answer the requests, too.
    """
    place = alone.place
    # The two that differ most: numbers that follow the scores then move by more than their rounding.
    apart = alone.apart(alone.rows)
    i, j = map(int, np.unravel_index(int(apart.argmax()), apart.shape))
    tried = _Tried(place, alone.requests[i], _chosen(place, alone.rows), names)
    if not tried.moved:
        _refuse_elsewhere(alone, tried)
        raise NotFollowed("the reply does not follow the scores that pass here")
    if i != j:
        tried.refuse_other_request(alone.requests[j], others)
    elif others:
        raise ModelError(
            f"another network answers, too ({', '.join(others)}), and one request does not show which of "
            "them makes the reply: give different ones with --probe-data, or name the place with --seam"
        )
    tried.refuse_other_labels()
    tried.refuse_unknown_numbers()
    _refuse_elsewhere(alone, tried)
    tried.refuse_energies()
    shown = tried.shown
    if not (shown.numbers or shown.keys or shown.labels) and place.name != DECLARED:
        raise ModelError(
            "the reply shows nothing of what passes here by which it could be told from another row's, no "
            f"number and no name of each class; name another place with --seam, {DECLARE}"
        )
    if others and (still := tried.still(alone.replies)):
        raise ModelError(
            f"{still} does not follow the scores that pass here, and another network answers, too "
            f"({', '.join(others)}): name with --seam the place of the scores that the labels are of"
        )
    for request in alone.requests:
        with suppress(NotPassed):
            own = place.see([request], served=True)
            if against := contradiction(shown, own.replies[0], to_probs(own.rows, place.kind)[0]):
                raise ModelError(f"{against}: {_others(others)}; {ANOTHER_PLACE}")
    return shown


ANOTHER_PLACE = f"name with --seam the place of the scores that the reply is made of, {DECLARE}"


def contradiction(shown: Readings, reply: Any, p: Floats) -> str:
    """Say in words what a reply shows against the probabilities (K,) of its row; empty where nothing does."""
    reason, top = shown.compare(reply, p).reason, int(p.argmax())
    if reason in ("", "nothing"):
        return ""
    row = f"its row, which says {p[top]:.4g} for class {top}"
    return f"the reply {reply!r:.150} shows another {reason} than {row}"


def place_name(path: Path) -> str:
    """Name the place of a reply at a path, as ``leaves`` does."""
    name = "reply"
    for step in path:
        key = f", number {str(step)[1:]}" if str(step).startswith("#") else f".{step}"
        name += key if isinstance(step, str) else f"[{step}]"
    return name


class _Tried:
    """One request's replies to ``chosen`` probabilities, what they show, and the leaves that follow.

    What differs between replies to the same scores, as a clock, is not looked at.
    """

    def __init__(
        self, place: Place, request: Request, chosen: Sequence[Floats], names: Sequence[str]
    ) -> None:
        self.place, self.request, self.chosen = place, request, chosen
        again = [place.reply_to(request, chosen[0])]
        made = [(place.reply_to(request, p), p) for p in chosen]
        again += [made[0][0], place.reply_to(request, chosen[0])]
        self.asked = [(reply, p) for reply, p in made if reply is not None]
        if None in again:
            raise ModelError("the handler answers a request once, and not again")
        self.shown = read_shown(self.asked, names, half=place.half)
        self._leaves = [leaves(reply) for reply, _ in self.asked]
        self._restless = _differing([leaves(reply) for reply in again])
        self.moved = _differing(self._leaves) - self._restless
        read = [*(one.path for one in self.shown.numbers), *(one.path for one in self.shown.keys)]
        self._read = tuple(map(place_name, [*read, *(one.path for one in self.shown.labels)]))
        self._unread = self._but_read(self.moved)

    def _but_read(self, names: set[str]) -> list[str]:
        """Sort the leaves that are not read as something of the scores."""
        inside = tuple(f"{one}{mark}" for one in self._read for mark in "[.")
        return sorted(leaf for leaf in names - {*self._read} if not leaf.startswith(inside))

    def still(self, replies: Sequence[Any]) -> str:
        """Name a leaf that differs between requests and does not follow the scores; empty where none does."""
        found = _differing([leaves(reply) for reply in replies]) - self.moved - self._restless
        return next(iter(self._but_read(found)), "")

    def refuse_other_request(self, request: Request, others: Sequence[str]) -> None:
        """Raise ModelError where another request with the same scores is answered otherwise."""
        differ: dict[str, list[bool]] = {}
        for own, (_, p) in list(zip(self._leaves, self.asked, strict=True))[::2]:
            for leaf, other in leaves(self.place.reply_to(request, p)).items():
                if leaf not in self.moved or leaf not in own:
                    continue
                one = own[leaf]
                if isinstance(one, Rounded) and isinstance(other, Rounded) and one.step < 1:
                    if not _near(one, other, self.place.close):
                        raise ModelError(
                            f"{leaf} is {one.value:.4g} and {other.value:.4g} for two requests with the same "
                            f"scores here: {_others(others)}; {ANOTHER_PLACE}"
                        )
                else:
                    differ.setdefault(leaf, []).append(one != other)
        for leaf, found in sorted(differ.items()):
            # A text that tells of its request differs for all scores.
            if any(found) and not all(found):
                raise ModelError(
                    f"{leaf} names another class for two requests with the same scores here: "
                    f"{_others(others)}; {ANOTHER_PLACE}"
                )

    def refuse_other_labels(self) -> None:
        """Raise ModelError where a label names another class than the likeliest."""
        if self.place.kind in LABELS:
            return
        why = (
            "the handler decides by a rule of its own (a threshold, costs, some of the classes), and "
            f"receipts would name other classes; name with --seam a place behind that, {DECLARE}"
        )
        for reply, p in self.asked:
            if against := contradiction(self.shown, reply, p):
                raise ModelError(f"{against}: {why}")
        for leaf in self._unread:
            of_top: dict[object, set[object]] = {}
            of_level: dict[object, set[object]] = {}
            for one, (_, p) in zip(self._leaves, self.asked, strict=True):
                if (label := self._label(one.get(leaf))) is not None:
                    of_top.setdefault(int(p.argmax()), set()).add(label)
                    of_level.setdefault(round(float(p.max()), 6), set()).add(label)
            # A group of the class that is named, or a flag of how sure it is.
            if not any(all(len(one) == 1 for one in of.values()) for of in (of_top, of_level)):
                raise ModelError(f"{leaf} does not follow the likeliest class: {why}")

    def _label(self, one: Leaf | None) -> object:
        """A value that may name a class, a text or a whole number; else None."""
        if isinstance(one, Rounded):
            return int(one.value) if np.isfinite(one.value) and one.step >= 1 else None
        flag = one in ("True", "False") and self.place.classes > 2
        return None if flag else one

    def refuse_unknown_numbers(self) -> None:
        """Raise ModelError for a number that is neither linear in the probabilities nor read of them."""
        # Of each of four classes as the likeliest two rows of one order, and those between them.
        rows = self.chosen[: 3 * 4]
        at = {id(p): one for one, (_, p) in zip(self._leaves, self.asked, strict=True)}
        for one, other in zip(rows[::3], rows[2::3], strict=True):
            middle = (one + other) / 2
            between = self.place.reply_to(self.request, middle) if self._unread else None
            found = [at.get(id(one)), leaves(between), at.get(id(other))]
            for leaf in self._unread if between is not None else ():
                numbers = [n for reply in found if isinstance(n := (reply or {}).get(leaf), Rounded)]
                if len(numbers) < len(found):
                    continue
                values = np.array([n.value for n in numbers])
                near = self.place.close * max(1.0, np.abs(values).max()) + min(n.step for n in numbers)
                if np.isfinite(values).all() and abs(values[1] - (values[0] + values[2]) / 2) > near:
                    raise ModelError(
                        f"{leaf} is {values[1]:.4g} where the scores that pass here give the probabilities "
                        f"{', '.join(f'{p:.3g}' for p in -np.sort(-middle)[:3])}, ...: the handler makes "
                        "another number of them (a temperature of its own, some of the classes, another "
                        "function), which would not be calibrated; name with --seam a place behind that"
                    )

    def refuse_energies(self) -> None:
        """Raise ModelError for a number of the logits' size alone, which calibrated ones do not have."""
        if self.place.kind != "logits":
            return
        more = self.place.reply_to(self.request, self.asked[0][1], more=3.0)
        for leaf in sorted(_differing([self._leaves[0], leaves(more)]) - self.moved - self._restless):
            raise ModelError(
                f"{leaf} is a number of the logits' size (an energy), which calibrated ones do not have"
            )


def _refuse_elsewhere(alone: Alone, tried: _Tried) -> None:
    """Raise ModelError where replies show the confidence, by a number that does not follow the scores."""
    probs = to_probs(alone.rows, alone.place.kind)
    shown = read_shown(list(zip(alone.replies, probs, strict=True)), half=alone.place.half)
    sure = [one.path for one in shown.numbers if one.function == "ranked" and not one.index]
    if any(not any(leaf.startswith(place_name(path)) for leaf in tried.moved) for path in sure):
        raise ModelError(
            "the reply shows the confidence, and does not follow the scores that pass here: the handler "
            "makes it in another place; name that place with --seam"
        )


def _chosen(place: Place, rows: Floats) -> list[Floats]:
    """Choose probabilities (K,): some classes as the likeliest, beyond any threshold, and torn of two."""
    several = place.kind in LABELS
    likely = to_probs(rows, place.kind).argmax(axis=1).tolist()
    chosen = chosen_rows(place.classes, likely, of_labels=several)
    if several:
        return [*chosen, *(np.maximum(one, other) for one, other in zip(chosen, chosen[4:], strict=False))]
    tops = [int(p.argmax()) for p in chosen[::3]]
    for (at, top), ahead in itertools.product(enumerate(tops), (1, 2)):
        second = tops[(at + ahead) % len(tops)]
        rest = np.geomspace(1.0, 0.31, place.classes)
        rest[[top, second]] = 0.0
        rest *= 1 / max(rest.sum(), 1e-9)
        sure, torn = (1 - _SUREST) * rest / 2, 0.1 * rest
        left = 1.0 - torn.sum()
        torn[second], torn[top] = (1 - _TORN) * left / 2, (1 + _TORN) * left / 2
        sure[second] = 0.0 if second == top else 1 - _SUREST - sure.sum()
        sure[top] = 1 - sure[np.arange(len(sure)) != top].sum()
        chosen += [sure, torn] if second != top else [sure]
    return chosen


def _others(others: Sequence[str]) -> str:
    passed = f" (of {', '.join(others)})" if others else ""
    return f"other scores, a filter or an earlier request take part in it{passed}"


def _differing(replies: Sequence[dict[str, Leaf]]) -> set[str]:
    """The leaves that are not in all replies, or differ by more than a float's rounding."""

    def differ(leaf: str) -> bool:
        first, *rest = (reply.get(leaf) for reply in replies)
        if isinstance(first, Rounded):
            near = 1e-6 * max(1.0, abs(first.value))
            return not all(isinstance(one, Rounded) and abs(one.value - first.value) <= near for one in rest)
        return any(one != first for one in rest)

    return {leaf for leaf in set().union(*replies) if differ(leaf)}


def _near(one: Rounded, other: Rounded, close: float) -> bool:
    """Whether two numbers may be the same, as far as they are rounded."""
    near = close * max(1.0, abs(one.value), abs(other.value)) + min(one.step, other.step)
    return one.value == other.value or abs(one.value - other.value) < near


def read_batches(alone: Alone, shown: Readings) -> list[Seen]:
    """Ask all requests together, in order and in reverse; return rows and replies, each with its request.

    Rows of several threads are told apart by what passed alone; which receipt each gets is compared as it is
    served. Raises ModelError where rows or replies are another request's, or cannot be told apart.
    """
    place, requests = alone.place, alone.requests
    # Two requests of the same scores cannot be told apart, in whatever order they come.
    least = float((alone.apart(alone.rows) + np.diag(np.full(len(requests), np.inf))).min())
    if len(requests) < 2 or least < 1e-6 * (1 + np.abs(alone.rows).max()):
        raise ModelError(
            "it was tried with one request, or with some of the same scores, so that a batch shows nothing; "
            "give different ones with --probe-data"
        )
    found = []
    for order in (range(len(requests)), range(len(requests) - 1, -1, -1)):
        seen = place.see([requests[k] for k in order], served=True)
        apart = alone.apart(seen.rows)
        if not seen.in_order:
            of = apart[order].argmin(axis=1)
            seen, apart = replace(seen, rows=seen.rows[of]), apart[:, of]
        probs = to_probs(seen.rows, place.kind)
        for at, (k, nearest) in enumerate(zip(order, apart.argmin(axis=0).tolist(), strict=True)):
            if nearest != k or apart[k, at] > least / 2:
                whose = f"those of the request at {order.index(nearest) + 1}" if nearest != k else "others"
                raise ModelError(
                    f"in a batch of {len(requests)}, the scores at row {at + 1} are {whose}: the handler "
                    "changes the order of its batch, or its scores, and which row is whose cannot be told; "
                    f"ask it one at a time (--batch-size 1), {DECLARE}"
                )
            if against := contradiction(shown, seen.replies[at], probs[at]):
                raise ModelError(f"in a batch, {against}: it is the reply to another request")
        found.append(seen)
    return found
