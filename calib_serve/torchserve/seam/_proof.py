"""The proof that a handler's reply follows from the scores at a place, and shows them unchanged.

The handler is asked again and again, and in place of the scores that pass go others: those of another
request, and scores of probabilities that are chosen. Of a reply that is calibrated where its scores pass,

- something follows the scores;
- a number that follows them is the same for the same scores, whatever the request: no other network takes
  part in it;
- a number that follows them is linear in the probabilities, or one of the functions of them that people
  show (logarithms, odds, entropies): not one of a temperature of the handler's own, or of some classes;
- a label is that of the likeliest class, not of the likeliest among some of them.

So the reply that comes of calibrated scores shows what they say. All else is refused, with what was seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
from calib_serve.torchserve.seam._host import Answer
from calib_serve.torchserve.seam._recorder import PlaceRecorder
from calib_serve.torchserve.seam._requests import Request, varied

Ask = Callable[[Sequence[Request]], Answer]

_CLOSE, _CLOSE_OF_HALVES = 2e-3, 2e-2
_MOST_CLASSES = 12  # that are tried one by one as the likeliest
_STEEPNESS = ((0.05, 0.4), (0.5, 0.8))
"""Of a class's probability to the next one's: pairs of sure ones, and of unsure ones, in one order."""


class NotPassed(ModelError):
    """A request was answered, and no scores passed."""

    def __init__(self) -> None:
        super().__init__(
            "a request that was answered before is answered again without its scores (a cache), so that it "
            "cannot be asked twice; give different requests with --probe-data, or turn that off"
        )


class NotOneRow(ModelError):
    """Other ``rows`` of scores passed than one a request, in so many ``calls``."""

    def __init__(self, rows: Floats, requests: int, calls: int) -> None:
        at_once = "a request" if requests == 1 else f"{requests} requests"
        super().__init__(
            f"{len(rows)} rows of scores pass in {calls} calls for {at_once}: what the "
            "reply makes of them is made behind this place (windows, augmented inputs, sentences); name with "
            "--seam the place where one row a request passes, such as a method that returns their average"
        )
        self.rows = rows

    def padding(self, place: Place, request: Request, other: Request) -> bool:
        """Whether all rows but the first are the same for another request, as rows of padding are."""
        try:
            place.see([other])
            return False
        except NotOneRow as error:
            mine, others = self.rows, error.rows
        same = mine.shape == others.shape and len(mine) > 1 and request != other
        return same and bool(np.allclose(mine[1:], others[1:]) and not np.allclose(mine[0], others[0]))


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

    ``classes`` columns of the ``kind`` pass as ``form`` says. ``padded``: of the rows that pass, the first
    are the requests', the others are of nobody. ``half``: they have three digits. ``fresh``: seeds of
    requests that were not asked yet.
    """

    name: str
    ask: Ask
    recorder: PlaceRecorder
    form: Form
    kind: Outputs
    columns: int
    padded: bool = False
    half: bool = False
    fresh: Iterator[int] = field(default_factory=itertools.count)

    @property
    def close(self) -> float:
        """The difference within which two numbers are equal."""
        return _CLOSE_OF_HALVES if self.half else _CLOSE

    @property
    def classes(self) -> int:
        """The number K of classes, or L of labels."""
        return class_count(self.kind, self.columns)

    def see(self, requests: Sequence[Request]) -> Seen:
        """Ask the requests unchanged; ModelError where not one row a request passes, or the handler fails."""
        self.recorder.clear()
        got = self.ask(requests)
        if got.failure:
            raise ModelError(got.failure)
        found = [self._scores(one).values for one in self.recorder.returned]
        if not found:
            raise NotPassed
        rows = np.concatenate(found)
        rows = rows[: len(requests)] if self.padded else rows
        if len(rows) != len(requests):
            raise NotOneRow(rows, len(requests), len(found))
        in_order = len(found) == 1 or not self.recorder.elsewhere
        return Seen(rows, [as_json(reply) for reply in got.replies], in_order)

    def with_row(self, request: Request, row: Floats) -> dict[str, Leaf] | None:
        """Ask one request with ``row`` (K,) in place of its own scores; None if the handler fails on it."""
        return self._with(request, lambda _: row)

    def with_probs(self, request: Request, probs: Floats) -> dict[str, Leaf] | None:
        """Ask one request with scores of these probabilities (K,), as they pass once calibrated."""
        return self._with(request, lambda own: from_probs(probs[None], own[:1], self.kind)[0])

    def _with(self, request: Request, made: Callable[[Floats], Floats]) -> dict[str, Leaf] | None:
        def put(returned: Any) -> Any:
            found = self._scores(returned)
            values = found.values.copy()
            values[0] = made(values)
            return self.form.put(returned, values, found.shape)

        self.recorder.clear()
        self.recorder.put = put
        try:
            # Other scores than its own pass, so any request will do that is not answered from a cache.
            for one in (request, *(varied(request, next(self.fresh)) for _ in range(2))):
                got = self.ask([one or request])
                if got.failure:
                    return None
                if self.recorder.returned:
                    return leaves(as_json(got.replies[0]))
        finally:
            self.recorder.put = None
        raise NotPassed

    def _scores(self, returned: Any) -> FoundScores:
        return self.form.scores(returned, max(2, self.columns))


def prove_reply(
    place: Place,
    requests: Sequence[Request],
    seen: Seen,
    others: Sequence[str] = (),
    *,
    sure: bool = True,
) -> None:
    """Raise ModelError where a reply does not follow from the scores at ``place``, as the module says.

    ``requests`` that differ, and what was ``seen`` of each alone; ``others``: places that they passed too.
    ``sure``: what passes are scores; else the reply has to show a number of them, or name each class.
    """
    # The two that differ most: numbers that follow the scores then move by more than their rounding.
    apart = np.abs(seen.rows[:, None] - seen.rows[None]).max(axis=2)
    i, j = map(int, np.unravel_index(int(apart.argmax()), apart.shape))
    watched = _Watched(place, requests[i], seen.rows[i])
    other = watched.ask_row(seen.rows[j])
    mixtures = _mixtures(place, seen.rows[i])
    chosen = [tuple(watched.ask(p) for p in three) for three in mixtures]
    named = _Named(watched, place, _classes_to_try(place, seen.rows))
    _not_elsewhere(place, watched, seen)
    if not watched.moved:
        raise ModelError("the reply does not follow the scores that pass here")
    if i != j and other is not None:
        _same_for_same(place, watched, other, place.with_row(requests[j], seen.rows[j]) or {}, others)
        named.check_other(requests[j], others)
    for replies, three in zip(chosen, mixtures, strict=True):
        _as_probabilities(place, watched, replies, np.stack(three))
    _not_of_size(place, watched, seen.rows[i], chosen)
    named.check()
    if not (sure or watched.proved or named.each_has_its_own()):
        raise ModelError("the reply shows no number of what passes here, nor names each class")


def prove_batches(place: Place, requests: Sequence[Request], alone: Seen) -> list[Seen]:
    """Ask all requests together, in order and in reverse; return rows and replies, each with its request.

    Rows of several threads are told apart by what passed alone; which receipt each gets is for the calibrated
    handler to prove. Raises ModelError where rows or replies are another request's, or cannot be told apart.
    """
    # Two requests of the same scores cannot be told apart, in whatever order they come.
    apart = np.abs(alone.rows[:, None] - alone.rows[None]).max(axis=2)
    least = float((apart + np.diag(np.full(len(apart), np.inf))).min())
    if len(requests) < 2 or least < 1e-6 * (1 + np.abs(alone.rows).max()):
        raise ModelError(
            "the requests that it was tried with have the same scores, so that a batch shows nothing; "
            "give different ones with --probe-data"
        )
    with suppress(NotPassed):
        if not np.allclose(place.see(requests[:1]).rows[0], alone.rows[0]):
            raise ModelError(
                "the scores of a request are others each time that it is asked (dropout that is left on): in "
                "a batch, which row is whose cannot be told"
            )
    found = []
    for order in (range(len(requests)), range(len(requests) - 1, -1, -1)):
        seen = place.see([requests[k] for k in order])
        if not seen.in_order:
            apart = np.abs(alone.rows[:, None] - seen.rows[None]).max(axis=2)
            seen = replace(seen, rows=seen.rows[[int(apart[k].argmin()) for k in order]])
        for at, k in enumerate(order):
            apart = np.abs(alone.rows - seen.rows[at]).max(axis=1)
            nearest = int(apart.argmin())
            if nearest != k:
                raise ModelError(
                    f"in a batch of {len(requests)}, the scores at row {at + 1} are those of the request at "
                    f"{list(order).index(nearest) + 1}: the handler changes the order of its batch, and a "
                    "row would get the receipt and the label of another request"
                )
            if apart[k] > least / 2:
                raise ModelError(
                    f"in a batch, the scores of a request are others than alone, by {apart[k]:.3g} where two "
                    f"requests differ by {least:.3g}: which row is whose cannot be told"
                )
            _check_own_reply(alone.replies, seen.replies[at], k)
        found.append(seen)
    return found


class _Watched:
    """One request's replies to other scores, and the leaves that follow the scores.

    ``row``: its own scores, for which it is asked twice; what differs between these is not looked at.
    ``proved``: whether a number was seen that is linear in the probabilities.
    """

    def __init__(self, place: Place, request: Request, row: Floats) -> None:
        self.place, self.request, self._row = place, request, row
        # What differs for the same scores is a clock or a running number: it proves nothing.
        own, again = place.with_row(request, row), place.with_row(request, row)
        if own is None or again is None:
            raise ModelError("the handler answers a request once, and not again")
        self.own = {leaf: one for leaf, one in own.items() if not _differ(one, again.get(leaf))}
        self.restless = set(own) - set(self.own)
        self.moved: set[str] = set()
        self.proved = False

    def ask(self, probs: Floats) -> dict[str, Leaf] | None:
        """Ask the request with scores of these probabilities."""
        return self._note(self.place.with_probs(self.request, probs))

    def ask_row(self, row: Floats) -> dict[str, Leaf] | None:
        """Ask the request with these scores."""
        return self._note(self.place.with_row(self.request, row))

    def _note(self, reply: dict[str, Leaf] | None) -> dict[str, Leaf] | None:
        if reply is None:
            return None
        found = {leaf: one for leaf, one in reply.items() if leaf not in self.restless}
        both = self.own.keys() & found.keys()
        self.moved |= self.own.keys() ^ found.keys()
        self.moved |= {leaf for leaf in both if _differ(self.own[leaf], found[leaf])}
        return found

    def refuse(self, leaf: str, why: str) -> None:
        """Raise ModelError, unless the leaf changes without its scores, as a clock does."""
        now = self.place.with_row(self.request, self._row)
        if leaf not in self.own or (now and not _differ(self.own[leaf], now.get(leaf))):
            raise ModelError(why)


def _same_for_same(
    place: Place,
    watched: _Watched,
    here: Mapping[str, Leaf],
    there: Mapping[str, Leaf],
    others: Sequence[str],
) -> None:
    """Raise ModelError where a number of two requests' replies to the same scores differs."""
    for leaf in sorted(watched.moved & here.keys() & there.keys()):
        one, other = here[leaf], there[leaf]
        if isinstance(one, Rounded) and isinstance(other, Rounded) and not _near(one, other, place.close):
            watched.refuse(
                leaf,
                f"{leaf} is {one.value:.4g} and {other.value:.4g} for two requests with the same scores "
                f"here: other scores take part in it{_passed(others)}; name with --seam the place where "
                "they have met, such as a method of the handler that returns their average",
            )


def _not_elsewhere(place: Place, watched: _Watched, seen: Seen) -> None:
    """Raise ModelError where each reply shows a confidence that does not follow the scores.

    Of labels it shows two of their probabilities, as one may be another number by chance.
    """
    still = watched.own.keys() - watched.moved
    probs = to_probs(seen.rows, place.kind)
    least = min(2, place.classes) if place.kind in LABELS else 1
    wanted = probs if place.kind in LABELS else probs.max(axis=1, keepdims=True)
    for scale in (1.0, 100.0):
        shown = [
            sum(
                isinstance(one, Rounded)
                and one.value != round(one.value)
                and bool((np.abs(one.value - scale * p) < scale * _CLOSE).any())
                for leaf, one in leaves(reply).items()
                if leaf in still
            )
            for reply, p in zip(seen.replies, wanted, strict=True)
        ]
        if min(shown) >= least:
            raise ModelError(
                "the reply shows the confidence, and does not follow the scores that pass here: the handler "
                "makes it in another place; name that place with --seam"
            )


def _as_probabilities(
    place: Place,
    watched: _Watched,
    replies: tuple[Mapping[str, Leaf] | None, ...],
    probs: Floats,
) -> None:
    """Check that numbers are linear in the probabilities (3, K), whose second row is the others' mean."""
    whole = [reply for reply in replies if reply is not None]
    if len(whole) < len(replies):
        return
    known = None
    for leaf in sorted(set.intersection(*(set(reply) for reply in whole)) & watched.moved):
        numbers = [n for reply in whole if isinstance(n := reply[leaf], Rounded)]
        if len(numbers) < len(whole):
            continue
        values = np.array([n.value for n in numbers])
        step = min(n.step for n in numbers)
        near = place.close * max(1.0, np.abs(values).max()) + step
        if not np.isfinite(values).all() or abs(values[1] - (values[0] + values[2]) / 2) <= near:
            watched.proved |= abs(values[2] - values[0]) > 2 * near
            continue
        known = _known(probs) if known is None else known
        if not (np.abs(known - values).max(axis=1) <= near).any():
            watched.refuse(
                leaf,
                f"{leaf} is {values[1]:.4g} where the scores that pass here give the probabilities "
                f"{', '.join(f'{p:.3g}' for p in np.sort(probs[1])[::-1][:3])}, ...: the handler makes "
                "another number of them (a temperature of its own, some of the classes, another function), "
                "which would not be calibrated; name with --seam a place behind that",
            )


def _not_of_size(
    place: Place,
    watched: _Watched,
    row: Floats,
    chosen: Sequence[tuple[Mapping[str, Leaf] | None, ...]],
) -> None:
    """Raise ModelError for numbers of the logits' size, such as energies, which calibration removes."""
    if place.kind != "logits":
        return
    # A constant added to all logits changes no probability, but an energy.
    moved = watched.ask_row(row + 3.0) or {}
    replies = [reply for three in chosen for reply in three if reply is not None]
    for leaf in sorted(moved.keys() & watched.own.keys()):
        one, other = watched.own[leaf], moved[leaf]
        if not (isinstance(one, Rounded) and isinstance(other, Rounded)) or _near(one, other, place.close):
            continue
        numbers = [n for reply in replies if isinstance(n := reply.get(leaf), Rounded)]
        if len(numbers) > 1 and all(_near(numbers[0], n, place.close) for n in numbers):
            watched.refuse(
                leaf,
                f"{leaf} is a number of the logits' size (an energy), which calibrated ones do not have: it "
                f"would always be {numbers[0].value:.4g}",
            )


class _Named:
    """The labels that a reply names where each of some classes is the likeliest, and which is second."""

    def __init__(self, watched: _Watched, place: Place, classes: Sequence[int]) -> None:
        self._watched, self._k = watched, place.classes
        self._known: dict[tuple[int, int], dict[str, object]] = {}
        self._alone = {k: self._ask(k, classes[(at + 1) % len(classes)]) for at, k in enumerate(classes)}
        self._one_of_three = place.kind not in LABELS and len(classes) > 2

    def check(self) -> None:
        """Raise ModelError where a label follows the second class though another is the likeliest."""
        if not self._one_of_three:
            return
        for leaf in sorted({leaf for reply in self._alone.values() for leaf in reply}):
            labels = {k: reply[leaf] for k, reply in self._alone.items() if leaf in reply}
            first = next(iter(labels))
            second = next((k for k in labels if labels[k] != labels[first]), None)
            if second is None:
                continue
            for k in labels.keys() - {first, second}:
                if all(self._ask(k, j).get(leaf) == labels[j] for j in (first, second)):
                    raise ModelError(
                        f"{leaf} names {labels[first]!r} where class {k} is the likeliest and class "
                        f"{first} the next: the handler offers some of the classes only, and receipts would "
                        "name others"
                    )

    def each_has_its_own(self) -> bool:
        """Whether a leaf has another label for each class."""
        replies = list(self._alone.values())
        found = ([reply.get(leaf) for reply in replies] for leaf in replies[0])
        return any(len(set(labels)) == len(replies) and None not in labels for labels in found)

    def check_other(self, request: Request, others: Sequence[str]) -> None:
        """Raise ModelError where another request with the same scores gets another label.

        A text that tells of its request differs for all scores; one that other scores take part in, for some.
        """
        place, watched = self._watched.place, self._watched
        differ: dict[str, list[bool]] = {}
        for k, sure in itertools.product(list(self._alone)[:3], (0.4, 0.9, 0.9999)):
            probs = self._probs(k, next(one for one in self._alone if one != k), sure=sure)
            mine, other = _labels(watched.ask(probs)), _labels(place.with_probs(request, probs))
            for leaf in mine.keys() & other.keys() & watched.moved:
                differ.setdefault(leaf, []).append(mine[leaf] != other[leaf])
        for leaf, found in sorted(differ.items()):
            if any(found) and not all(found):
                watched.refuse(
                    leaf,
                    f"{leaf} names another class for two requests with the same scores here: other scores "
                    f"take part in it{_passed(others)}; name with --seam the place where they have met",
                )

    def _ask(self, top: int, second: int) -> dict[str, object]:
        if (top, second) not in self._known:
            self._known[top, second] = _labels(self._watched.ask(self._probs(top, second)))
        return self._known[top, second]

    def _probs(self, top: int, second: int, *, sure: float = 0.9) -> Floats:
        next_ = 0.8 * min(sure, 1 - sure)
        probs = np.full(self._k, (1 - sure - next_) / self._k)
        probs[second], probs[top] = next_, sure
        return np.asarray(probs / probs.sum())


def _passed(others: Sequence[str]) -> str:
    return f" ({', '.join(others)} are passed too)" if others else ""


def _labels(reply: Mapping[str, Leaf] | None) -> dict[str, object]:
    return {leaf: _label(one) for leaf, one in (reply or {}).items() if _label(one) is not None}


def _label(one: Leaf) -> object:
    """A value that may name a class, a text or a whole number; else None."""
    if isinstance(one, Rounded):
        return int(one.value) if np.isfinite(one.value) and one.value == round(one.value) else None
    return one


def _classes_to_try(place: Place, rows: Floats) -> list[int]:
    """Pick some classes: the likeliest for the seen requests, and others."""
    likely = list(dict.fromkeys(rows.argmax(axis=1).tolist())) if place.columns > 1 else []
    # Not all of a thousand classes: each costs a run of the model.
    spread = np.linspace(0, place.classes - 1, min(place.classes, _MOST_CLASSES)).round().astype(int).tolist()
    return list(dict.fromkeys([*likely, *spread]))[:_MOST_CLASSES]


def _mixtures(place: Place, row: Floats) -> list[tuple[Floats, Floats, Floats]]:
    """Make probabilities (K,) in the order of the row's, and the mean of two: sure ones, and unsure ones."""
    own = to_probs(row[None], place.kind)[0]
    rank = np.empty(len(own), int)
    rank[np.argsort(-own, kind="stable")] = np.arange(len(own))
    found = []
    for steepness in _STEEPNESS:
        if place.kind in LABELS:  # each on its side of one half
            spread = 1 - 0.3 * rank / len(own)
            ends = [0.5 + np.where(own > 0.5, 0.5, -0.5) * (1 - r) * spread for r in steepness]
        else:
            ends = [np.maximum(np.power(r, rank.astype(np.float64)), 1e-12) for r in steepness]
            ends = [end / end.sum() for end in ends]
        found.append((ends[0], (ends[0] + ends[1]) / 2, ends[1]))
    return found


def _known(probs: Floats) -> Floats:
    """Compute common functions of probabilities (n, K) that are not linear in them, (functions, n)."""

    def functions(p: Floats) -> Iterator[float]:
        logs = np.log(np.clip(p, 1e-300, 1))
        odds = logs - np.log(np.clip(1 - p, 1e-300, 1))
        entropy = -(p * logs).sum()
        top, next_ = np.sort(logs)[::-1][:2]
        yield from (*logs, *-logs, *(logs / np.log(2)), *odds)
        yield from (entropy, entropy / np.log(2), entropy / np.log(len(p)), 1 - entropy / np.log(len(p)))
        yield from (np.exp(entropy), top - next_, 1 - (p**2).sum(), (p**2).sum())

    return np.array([list(functions(p)) for p in probs]).T


def _differ(one: Leaf, other: Leaf | None) -> bool:
    """Whether two leaves differ, by more than a float's rounding."""
    if isinstance(one, Rounded) and isinstance(other, Rounded):
        return abs(one.value - other.value) > 1e-6 * max(1.0, abs(one.value))
    return one != other


def _near(one: Rounded, other: Rounded, close: float) -> bool:
    """Whether two numbers may be the same, as far as they are rounded."""
    near = close * max(1.0, abs(one.value), abs(other.value)) + min(one.step, other.step)
    return one.value == other.value or abs(one.value - other.value) < near


def _check_own_reply(alone: Sequence[Any], reply: Any, own: int) -> None:
    """Raise ModelError where a reply of a batch is nearer to another request's reply than to its own."""
    shown = leaves(reply)

    def apart(other: Any) -> float:
        parts = leaves(other)
        pairs = [(one, parts[leaf]) for leaf, one in shown.items() if leaf in parts]
        return sum(
            abs(one.value - two.value)
            if isinstance(one, Rounded) and isinstance(two, Rounded)
            else one != two
            for one, two in pairs
        ) + len(shown.keys() ^ parts.keys())

    # Replies round, so that the nearest is looked for and not an equal one.
    distances = [apart(other) for other in alone]
    nearest = int(np.argmin(distances))
    if distances[nearest] < distances[own] / 2 and distances[own] > _CLOSE:
        raise ModelError(
            f"in a batch, a request is answered {reply!r:.100}, which is what another one is answered alone"
        )
