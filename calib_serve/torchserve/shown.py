"""The content of a reply that is made of one row of scores: read in a trial, compared at each reply.

A trial asks a handler with scores of ``chosen_rows``, so that it is known which place of its reply shows
which function of the probabilities, and which names the likeliest class. What was read there, ``Readings``,
says of a later reply whether it is of the row that a receipt is to be signed for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from calib_serve.core.arrays import Floats
from calib_serve.scores import Rounded, as_json, leaf_of, log_probs, value_at

Path = tuple[str | int, ...]

CLOSE, CLOSE_OF_HALVES = 1e-4, 2e-2
"""Beyond the digits shown: rounding of a softmax in float32, and of scores with three digits."""

_COARSEST = 0.05  # step of a number, to its scale: a whole number is no probability
_CHOSEN = ((0.90273, 1), (0.97134, 2), (0.52381, 1))
"""Of a likeliest class: probabilities with digits enough to show rounding, and how far the next one is."""


def _entropy(p: Floats) -> Floats:
    return np.array([-(p * log_probs(p)).sum()])


def _logs(p: Floats) -> Floats:
    return np.asarray(log_probs(p), np.float64)


FUNCTIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "ranked": lambda p: -np.sort(-p),
    "probability": lambda p: p,
    "rest": lambda p: 1 - -np.sort(-p),
    "log": _logs,
    "ranked log": lambda p: -np.sort(-_logs(p)),
    "odds": lambda p: _logs(p) - _logs(1 - p),
    "margin": lambda p: -np.diff(-np.sort(-p)[:2]),
    "log margin": lambda p: -np.diff(-np.sort(-_logs(p))[:2]),
    "log in bits": lambda p: _logs(p) / np.log(2),
    "perplexity": lambda p: np.exp(_entropy(p)),
    "sum of squares": lambda p: np.array([(p**2).sum()]),
    "gini": lambda p: np.array([1 - (p**2).sum()]),
    "entropy": _entropy,
    "entropy in bits": lambda p: _entropy(p) / np.log(2),
    "share of entropy": lambda p: _entropy(p) / np.log(len(p)),
    "certainty": lambda p: 1 - _entropy(p) / np.log(len(p)),
}
"""Functions of a row's probabilities (K,) that replies show, each a vector; the first that fits counts."""

_SCALES = (1.0, 100.0, -1.0)


class _Row(dict[str, Floats]):
    """Probabilities ``p`` (K,) and, once each, the ``FUNCTIONS`` of them."""

    def __init__(self, p: Floats) -> None:
        super().__init__()
        self.p = p

    def __missing__(self, name: str) -> Floats:
        return self.setdefault(name, FUNCTIONS[name](self.p))


class Match(NamedTuple):
    """The result of a comparison: the ``reason`` against it, or ""; whether ``numbers`` were compared.

    Reasons: "class" and "number" that are shown are another row's; "nothing" shown could be compared; "rows":
    whose they are is unknown.
    """

    reason: str = ""
    numbers: bool = False


@dataclass(frozen=True)
class NumberReading:
    """The number at ``path`` is ``scale`` times ``function(p)[index]``; without an index, a list of all.

    ``step``: unit that it is rounded to.
    """

    path: Path
    function: str
    step: float
    index: int | None = None
    scale: float = 1.0

    def holds(self, reply: Any, row: _Row, close: float) -> bool | None:
        """Whether the reply shows it of the row; None where it has no number there."""
        wanted, shown = row[self.function], value_at(reply, self.path)
        if self.index is None:
            listed = _is_vector(shown, len(row.p))
            return _near(shown, self.scale * wanted, self.step, close) if listed else None
        if type(shown) not in (int, float):  # else the digits, which are known, need not be read
            leaf = leaf_of(reply, self.path)
            if not isinstance(leaf, Rounded):
                return None
            shown = leaf.value
        one = self.scale * float(wanted[self.index])
        return bool(abs(shown - one) <= self.step + close * max(1.0, abs(one)))


@dataclass(frozen=True)
class KeysReading:
    """Each key of the mapping at ``path`` names a class, and its number is ``scale`` times a probability."""

    path: Path
    classes: Mapping[str, int]
    step: float
    scale: float = 1.0

    def holds(self, reply: Any, row: _Row, close: float) -> bool | None:
        """As a ``NumberReading``'s; a mapping without a known class tells nothing."""
        found = _numeric(value_at(reply, self.path))
        known = {self.classes[key]: one for key, one in found.items() if key in self.classes}
        return _near([*known.values()], self.scale * row.p[[*known]], self.step, close) if known else None


@dataclass(frozen=True)
class LabelReading:
    """The label at ``path`` names the class of this ``rank``, 0 the likeliest."""

    path: Path
    classes: Mapping[str, int]
    rank: int = 0

    def holds(self, reply: Any, row: _Row, close: float) -> bool | None:
        """Whether the class named has that rank's probability; None where no known class is named."""
        shown = value_at(reply, self.path)
        k = self.classes.get(str(shown)) if type(shown) in (int, str) else None
        if k is None:
            k = self.classes.get(_label_text(leaf_of(reply, self.path)))
        if k is None:
            return None
        # Two classes whose probabilities are nearer may change places by rounding.
        return abs(float(row.p[k]) - float(row["ranked"][self.rank])) <= max(1e-6, close / 100)


@dataclass(frozen=True)
class Readings:
    """The places of a reply that show numbers of its row, mappings from classes to numbers, and labels.

    ``half``: whether scores have the three digits of a float of 16 bits. ``each``: path of the list that has
    an item for each row of a request; None: there is none.
    """

    numbers: tuple[NumberReading, ...] = ()
    keys: tuple[KeysReading, ...] = ()
    labels: tuple[LabelReading, ...] = ()
    half: bool = False
    each: Path | None = None

    def compare(self, reply: Any, *rows: Floats) -> Match:
        """Compare the reply to one request with the probabilities (K,) of its row, or of all, a part each."""
        parts = self._parts(as_json(reply), len(rows))
        if parts is None:
            return Match("rows")
        if len(rows) == 1:
            return self._compare(parts[0], _Row(rows[0]))
        found = [self._compare(part, _Row(p)) for part, p in zip(parts, rows, strict=True)]
        against = {one.reason for one in found}
        reason = next((one for one in ("class", "number", "nothing") if one in against), "")
        return Match(reason, not reason and all(one.numbers for one in found))

    def _parts(self, reply: Any, rows: int) -> list[Any] | None:
        """The parts of a reply to one request that are of one row each; None where they are not as many."""
        if self.each is not None:
            items = value_at(reply, self.each)
            fits = isinstance(items, list) and len(items) == rows
            return [_with_item(reply, self.each, item) for item in items] if fits else None
        if rows == 1:
            return [reply]
        # KServe's protocols list their parts by these names.
        held = reply.get("predictions", reply.get("outputs")) if isinstance(reply, dict) else reply
        return held if isinstance(held, list) and len(held) == rows else None

    def _compare(self, reply: Any, row: _Row) -> Match:
        close = CLOSE_OF_HALVES if self.half else CLOSE
        labels = [one.holds(reply, row, close) for one in self.labels]
        if False in labels:
            return Match("class")
        numbers = [one.holds(reply, row, close) for one in self.numbers]
        numbers += [one.holds(reply, row, close) for one in self.keys]
        if False in numbers:
            return Match("number")
        return Match("" if True in labels or True in numbers else "nothing", True in numbers)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, held: Mapping[str, Any]) -> Readings:
        """Read what ``as_dict`` gave, as JSON holds it."""

        def read(kind: Any, name: str) -> tuple[Any, ...]:
            return tuple(kind(**{**one, "path": tuple(one["path"])}) for one in held[name])

        each = None if held["each"] is None else tuple(held["each"])
        return cls(
            read(NumberReading, "numbers"),
            read(KeysReading, "keys"),
            read(LabelReading, "labels"),
            bool(held["half"]),
            each,
        )


def _with_item(reply: Any, path: Path, item: Any) -> Any:
    """A reply with one item in the list at the path."""
    if not path:
        return [item]
    return {**reply, path[0]: _with_item(reply[path[0]], path[1:], item)}


def read_shown(
    asked: Sequence[tuple[Any, Floats]], names: Sequence[str] = (), *, half: bool = False
) -> Readings:
    """Find what replies show of the probabilities that they were made from.

    ``asked``: replies as parsed JSON, each with its row's probabilities (K,): of several classes as the
    likeliest, sure and unsure. ``names`` of the classes, where they are known.
    """
    close = CLOSE_OF_HALVES if half else CLOSE
    paths = list(dict.fromkeys(path for reply, p in asked for path in _paths(reply, len(p))))
    keys = [found for path in paths if (found := _read_keys(path, asked, names, close))]
    inside = {one.path for one in keys}
    rest = [path for path in paths if path[:-1] not in inside]
    labels = [label for path in rest if (label := _read_label(path, asked, names))]
    named = {one.path for one in labels}
    rows, numbers = [(reply, _Row(p)) for reply, p in asked], dict[Path, NumberReading]()
    for path in rest:
        # A list comes before its items: one that is read whole is not read once more by them.
        held = numbers.get(path[:-1]) if path else None
        if path not in named and held is None and (one := _read_number(path, rows, close)):
            numbers[path] = one
    each = _list_of_rows([*numbers, *inside, *named], [reply for reply, _ in asked])
    return Readings(tuple(numbers.values()), tuple(keys), tuple(labels), half, each)


def _list_of_rows(paths: Sequence[Path], replies: Sequence[Any]) -> Path | None:
    """Find the list, of one item in replies to one row, in which all paths lie; None where there is none."""
    found = {tuple(itertools.takewhile(lambda step: isinstance(step, str), path)) for path in paths}
    if len(found) != 1:
        return None
    (each,) = found
    listed = [value_at(reply, each) for reply in replies]
    return each if all(isinstance(one, list) and len(one) == 1 for one in listed) else None


def chosen_rows(classes: int, likely: Sequence[int] = (), *, of_labels: bool = False) -> list[Floats]:
    """Choose probabilities (K,) for a trial: some classes as the likeliest, sure twice, and unsure.

    ``likely``: classes to be among them. ``of_labels``: each class is a label of its own, so that they need
    not sum to 1.
    """
    most = 12  # as each costs runs of the model
    spread = np.linspace(0, classes - 1, min(classes, most)).round().astype(int).tolist()
    some = list(dict.fromkeys([*likely, *spread]))[:most]
    rows = []
    for at, top in enumerate(some):
        for sure, ahead in _CHOSEN:
            row = np.geomspace(1.0, 0.31, classes)
            row[top] = 0.0
            row[some[(at + ahead) % len(some)]] *= 4
            row *= (1 - sure) / row.sum()
            row[top] = sure
            rows.append(row if of_labels else row / row.sum())
    return rows


def _paths(reply: Any, classes: int, path: Path = ()) -> Iterator[Path]:
    """Yield the places of a reply: leaves, numbers in texts, lists of K numbers, mappings to numbers."""
    if isinstance(reply, Mapping):
        if len(_numeric(reply)) > 1:
            yield path
        for key, one in reply.items():
            yield from _paths(one, classes, (*path, key))
    elif isinstance(reply, list):
        if _is_vector(reply, classes):
            yield path
        for i, one in enumerate(reply):
            yield from _paths(one, classes, (*path, i))
    else:
        yield from _leaf_paths(reply, path)


def _leaf_paths(value: Any, path: Path) -> Iterator[Path]:
    """Yield the place of a leaf, and those of the numbers inside of a text."""
    yield path
    for i in itertools.count(1):
        if leaf_of(value, (f"#{i}",)) is None:
            return
        yield (*path, f"#{i}")


def _read_number(path: Path, asked: Sequence[tuple[Any, _Row]], close: float) -> NumberReading | None:
    """Find the function that the place shows in every reply; None where it is constant, or shows none."""
    lists = [pair for pair in asked if _is_vector(value_at(pair[0], path), len(pair[1].p))]
    if lists:
        step = min(_steps(one for reply, _ in lists for one in value_at(reply, path)))
        made = (NumberReading(path, name, step, None, scale) for name in FUNCTIONS for scale in _SCALES)
        return next((one for one in made if all(one.holds(*pair, close) for pair in lists)), None)
    leaves = [leaf for reply, _ in asked if isinstance(leaf := leaf_of(reply, path), Rounded)]
    if len({leaf.value for leaf in leaves}) < 2:
        return None
    step = min(leaf.step for leaf in leaves)
    made = (
        NumberReading(path, name, step, i, scale)
        for name in FUNCTIONS
        for scale in _SCALES
        for i in range(len(asked[0][1][name]))
        if step <= _COARSEST * abs(scale)
    )
    return next((one for one in made if _always(one.holds(*pair, close) for pair in asked)), None)


def _always(found: Iterable[bool | None]) -> bool:
    """Whether no reply contradicts; some have nothing there, as text with fewer numbers."""
    return all(one is not False for one in found)


def _read_keys(
    path: Path, asked: Sequence[tuple[Any, Floats]], names: Sequence[str], close: float
) -> KeysReading | None:
    """Find the class of each key of a mapping; None where some key has none."""
    some = [(_numeric(value_at(reply, path)), p) for reply, p in asked]
    some = [(found, p) for found, p in some if len(found) > 1]
    step = min(_steps(one for found, _ in some for one in found.values()), default=0.0)
    for scale in _SCALES[:2]:
        may_be: dict[str, set[int]] = {}
        for found, p in some:
            for key, one in found.items():
                near = np.abs(one - scale * p) <= step + close * np.maximum(1.0, scale * p)
                may_be[key] = may_be.get(key, {*range(len(p))}) & {*np.flatnonzero(near).tolist()}
        if step <= _COARSEST * scale and may_be and all(may_be.values()):
            return KeysReading(path, _named(may_be, names, len(some[0][1])), step, scale)
    return None


def _read_label(path: Path, asked: Sequence[tuple[Any, Floats]], names: Sequence[str]) -> LabelReading | None:
    """Find the rank of the class that a label names where that is sure; None where it names none."""
    texts = [(_label_text(leaf_of(reply, path)), p) for reply, p in asked]
    for rank in range(min(5, len(asked[0][1]))):
        # Of a likeliest class replies below 0.8 tell nothing yet, but a threshold of the handler's own.
        some = [(text, p) for text, p in texts if rank or p.max() >= 0.8]
        may_be: dict[str, set[int]] = {}
        for text, p in some:
            k = {int(np.argsort(-p, kind="stable")[rank])}
            may_be[text] = may_be.get(text, k) & k
        classes = [k for found in may_be.values() for k in found]
        if (
            len(may_be) > 1
            and "" not in may_be
            and all(may_be.values())
            and len(set(classes)) == len(classes)
        ):
            return LabelReading(path, _named(may_be, names, len(asked[0][1])), rank)
    return None


def _named(may_be: Mapping[str, set[int]], names: Sequence[str], classes: int) -> dict[str, int]:
    """The class of each label: by the names or ids of all classes where those fit, else as was seen."""
    for all_ in (list(names), [str(k) for k in range(classes)]):
        table = {name: k for k, name in enumerate(all_)}
        if len(table) == classes and all(table.get(text) in found for text, found in may_be.items()):
            return table
    return {text: min(found) for text, found in may_be.items() if len(found) == 1}


def _label_text(leaf: Any) -> str:
    if isinstance(leaf, Rounded):
        return str(int(leaf.value)) if leaf.step >= 1 else ""  # 2.0 is a number, and no class
    return leaf or ""


def _near(shown: Sequence[float], wanted: Floats, step: float, close: float) -> bool:
    if len(shown) < 64:  # numbers that a loop compares faster than numpy
        pairs = zip(shown, wanted.tolist(), strict=True)
        return all(abs(one - of) <= step + close * max(1.0, abs(of)) for one, of in pairs)
    return bool((np.abs(np.subtract(shown, wanted)) <= step + close * np.maximum(1.0, np.abs(wanted))).all())


def _steps(numbers: Iterable[float]) -> Iterator[float]:
    return (leaf.step for one in numbers if isinstance(leaf := leaf_of(one, ()), Rounded))


def _is_vector(value: Any, classes: int) -> bool:
    return isinstance(value, list) and len(value) == classes > 1 and {*map(type, value)} <= {int, float}


def _numeric(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {k: v for k, v in value.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
