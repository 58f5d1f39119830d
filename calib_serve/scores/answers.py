"""Answers of language models as scores: which texts say each class, and how probable each class was.

A server that returns log-probabilities lists the likeliest tokens at each place of the answer that it gave.
The probability of a class is the sum over the listed ways to one of its words. What is not listed, and words
that are only begun, may be of several classes: that part is known by its bounds alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from calib_serve.core.errors import InputError
from calib_serve.core.files import read_whole
from calib_serve.core.names import check_names, shown
from calib_serve.scores.documents import read_yaml
from calib_serve.scores.kinds import SUM_OF_HALF, Floats, to_logits
from calib_serve.scores.raw_scores import RawScores
from calib_serve.scores.recognition import CellNames
from calib_serve.scores.rows import is_json, objects_of, open_lines

AnswerForm = Literal["logprobs", "votes"]

_ENTRIES = ("form", "classes")
_BEGINS = "*"
_UNREADABLE = "\ufffd".encode()
"""What servers show for a part of a letter; some also give it as a token's bytes (vLLM 0.33)."""


class ClassAnswer(NamedTuple):
    """What one answer says of its classes.

    Args:
        shares: Probability of each class (K,) that is sure.
        open: Probability that each class may have besides (K,).
        unknown: Probability that nobody knows the class of; at most the sum of ``open``.
        text: The answer.
        goes_on: Whether it began with a word of a class, and went on to another text.
    """

    shares: Floats
    open: Floats
    unknown: float
    text: str = ""
    goes_on: bool = False

    @property
    def probs(self) -> Floats:
        """Probabilities of the classes (K,), given that the answer is of one; what is open is spread evenly.

        Each class gets an equal part of what it may have, as if another part were of no class; NaN where
        nothing of the answer is sure to be of one.

        >>> ClassAnswer(np.array([0.6, 0.2]), np.array([0.0, 0.0]), 0.0).probs.round(3).tolist()
        [0.75, 0.25]
        """
        found = self.shares + self.open / (len(self.shares) + 1) * self.shares.any()
        with np.errstate(invalid="ignore"):
            return np.asarray(found / found.sum())

    @property
    def logits(self) -> Floats:
        """The logits that calibrations act on (K,)."""
        return np.asarray(to_logits(self.probs[None], "probabilities")[0])

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the greatest probability that the likeliest class may have, given one of the classes.

        >>> ClassAnswer(np.array([0.6, 0.2]), np.array([0.2, 0.2]), 0.2).bounds  # .6 / 1, and .8 / 1
        (0.6, 0.8)
        """
        top = int(self.probs.argmax())
        sure, total = float(self.shares[top]), float(self.shares.sum())
        if not total:
            return math.nan, math.nan
        more = float(self.open[top])
        return sure / (total + self.unknown), (sure + more) / (total + more)

    @property
    def outside(self) -> float:
        """How much of the probability is surely of none of the classes."""
        return max(0.0, 1 - float(self.shares.sum()) - self.unknown)


@dataclass(frozen=True)
class LabelWords:
    """The words by which answers say each class.

    White space before a word counts for nothing, all else as it is written. A word is followed by the end, or
    by no letter or digit; ``word*`` may go on in any way.

    Args:
        classes: The words of each class by its name, in the order of the classes.
        form: What an answer holds: "logprobs" of its tokens; "votes", several answers to one question.

    Raises:
        InputError: Where a word is of two classes, or an entry is missing or of another form.

    >>> words = LabelWords({"spam": ["spam", "Spam"], "ham": ["ham"]})
    >>> words.class_of(" Spam, surely"), words.class_of("hamster")
    (0, None)
    """

    classes: Mapping[str, Sequence[str]]
    form: AnswerForm = "logprobs"
    _words: dict[bytes, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.form not in get_args(AnswerForm):
            forms = ", ".join(get_args(AnswerForm))
            raise InputError(f"the form of answers is one of {forms}, got {shown(self.form)}")
        if not isinstance(self.classes, Mapping) or len(self.classes) < 2:
            raise InputError("classes are two or more names, each with a list of the words that say it")
        check_names(self.names)
        for k, (name, words) in enumerate(self.classes.items()):
            if not isinstance(words, (list, tuple)) or not words or not all(map(_is_text, words)):
                raise InputError(
                    f"the words of {shown(name)} are a list of texts, got {shown(words)}; quote words such "
                    'as "yes" and "1", which YAML reads as other things'
                )
            for word in words:
                text = word.removesuffix(_BEGINS).lstrip().encode()
                if not text:
                    raise InputError(f"a word of {shown(name)} is empty")
                if self._words.setdefault(text, k) != k:
                    raise InputError(
                        f"{word!r} is a word of two classes, {self.names[self._words[text]]} and {name}"
                    )

    @classmethod
    def load(cls, path: str | Path) -> LabelWords:
        """Read the words from a file.

        Args:
            path: YAML file with ``classes``, and ``form`` where the answers hold no log-probabilities.

        Raises:
            InputError: Where it is none; it names the file.
        """
        try:
            known = read_yaml(read_whole(Path(path)))
            if not isinstance(known, Mapping) or "classes" not in known or not {*known} <= {*_ENTRIES}:
                raise InputError(f"it is a mapping of {', '.join(_ENTRIES)}, of which classes is needed")
            return cls(**known)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the words {path}: {error}") from error

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes (K,)."""
        return tuple(self.classes)

    @cached_property
    def _open_ended(self) -> frozenset[bytes]:
        words = (w for of_class in self.classes.values() for w in of_class if w.endswith(_BEGINS))
        return frozenset(w.removesuffix(_BEGINS).lstrip().encode() for w in words)

    def class_of(self, text: str) -> int | None:
        """The class that a whole text says; None for none.

        Args:
            text: An answer.
        """
        return self._begun(_bare(text.encode()))

    def _begun(self, text: bytes) -> int | None:
        """The class of the longest word that ``text`` begins with."""
        fitting = [w for w in self._words if text.startswith(w) and self._ends(w, text)]
        return self._words.get(max(fitting, key=len, default=b""))

    def _ends(self, word: bytes, text: bytes) -> bool:
        rest = text[len(word) :].decode("utf-8", "replace")
        return not rest[:1].isalnum() or word in self._open_ended

    def _reading(self, so_far: bytes) -> tuple[int | None, list[int]]:
        """The class that a text says however it goes on, else None and the classes that it may say yet."""
        text = _bare(so_far)
        if _UNREADABLE in text:  # a part of a letter, of no word where all words are ASCII
            return None, [*range(len(self.names))] if not b"".join(self._words).isascii() else []
        k = self._begun(text)
        longer = {of for word, of in self._words.items() if len(word) > len(text) and word.startswith(text)}
        if longer <= {k}:
            return k, []
        return None, sorted(longer | ({k} if k is not None else set()))

    def read(self, response: Mapping[str, Any]) -> ClassAnswer:
        """Read a server's response.

        Args:
            response: Parsed JSON: a chat completion or completion of OpenAI's form, or llama.cpp's own.

        Raises:
            InputError: Where it does not hold what the form needs.
        """
        try:
            return self._read(response)
        except InputError:
            raise
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            raise InputError(f"the response is of another form than OpenAI's: {error}") from error

    def _read(self, response: Mapping[str, Any]) -> ClassAnswer:
        choices = _choices(response)
        if self.form == "votes":
            return self._votes([_text(one) for one in choices])
        if len(choices) != 1:
            raise InputError(f"the response holds {len(choices)} answers, which are votes; read one by one")
        places = [*_places(choices[0])]
        _check_spelt(places, choices[0])
        return self.sum_up(places)

    def sum_up(self, places: Iterable[TokenPlace]) -> ClassAnswer:
        """Add up the probability of each class over the listed tokens.

        Args:
            places: The listed tokens at each place of the answer, and the one that was taken.
        """
        shares, may, unknown = np.zeros(len(self.names)), np.zeros(len(self.names)), 0.0
        text, mass, said = b"", 1.0, None
        places = [*places]
        for at, place in enumerate(places):
            rest = mass * max(0.0, 1 - sum(p for _, p in place.listed))
            may += rest
            unknown += rest
            follows = None
            for i, (token, p) in enumerate(place.listed):
                k, candidates = self._reading(text + token)
                followed = i == place.taken and at + 1 < len(places)
                if not token and not followed:  # the end: what is begun is the whole
                    k, candidates = self._begun(_bare(text)), []
                said = k if i == place.taken else said
                if k is not None:
                    shares[k] += mass * p
                elif candidates and followed:
                    follows = p
                elif candidates:
                    may[candidates] += mass * p
                    unknown += mass * p
            text += place.listed[place.taken][0]
            if follows is None:
                break
            mass *= follows
        whole = _spelt(places)
        return ClassAnswer(shares, may, unknown, whole, said is not None and self.class_of(whole) != said)

    def _votes(self, texts: Sequence[str]) -> ClassAnswer:
        """Read votes as the mean of a Dirichlet distribution with half a vote for each class before them."""
        found = [k for k in map(self.class_of, texts) if k is not None]
        counts = np.bincount(found, minlength=len(self.names)) + (0.5 if found else 0.0)
        shares = counts * (len(found) / len(texts) / (counts.sum() or 1))
        return ClassAnswer(shares, np.zeros(len(counts)), 0.0, " | ".join(texts))


def _is_text(word: object) -> bool:
    return isinstance(word, str) and word.encode("utf-8", "replace").decode() == word


def _bare(text: bytes) -> bytes:
    """A text without the white space before it, which is of any script."""
    return text.decode("utf-8", "surrogateescape").lstrip().encode("utf-8", "surrogateescape")


class TokenPlace(NamedTuple):
    """The listed tokens at a place of an answer, bytes with probabilities; ``taken``: which it went on by."""

    listed: list[tuple[bytes, float]]
    taken: int


def _choices(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "completion_probabilities" in response:  # llama.cpp's own
        return [response]
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        said = response.get("error") or ", ".join(map(str, response))
        said = said.get("message", said) if isinstance(said, Mapping) else said
        raise InputError(f"it is no completion, which has choices; it says {shown(said)}")
    if any("delta" in one for one in choices):
        raise InputError("it is a part of a stream: put its parts together, or ask without stream")
    return choices


def _text(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    if not isinstance(text, str):
        raise InputError("an answer has no text: it calls a tool, or was refused or filtered")
    return text


def _spelt(places: Iterable[TokenPlace]) -> str:
    return b"".join(place.listed[place.taken][0] for place in places).decode("utf-8", "replace")


def _check_spelt(places: Sequence[TokenPlace], choice: Mapping[str, Any]) -> None:
    """Raise InputError where the tokens spell another text than the answer, up to one that is unreadable.

    They are then no texts (mlx_lm 0.32), or also those of a text before the answer, as of reasoning.
    """
    message = choice.get("message")
    held: Mapping[str, Any] = message if isinstance(message, Mapping) else {}
    text = held.get("content") if held else choice.get("text", choice.get("content"))
    if not str(text or "").strip() and (held.get("reasoning") or held.get("reasoning_content")):
        raise InputError("it holds no answer, and its tokens are those of its reasoning; ask for more tokens")
    if not isinstance(text, str):
        return
    text, spelt = text.strip(), _spelt(places).lstrip()
    readable = spelt.find("\ufffd")
    until = len(text) if readable < 0 else min(readable, len(text))
    if spelt[:until] != text[:until]:
        raise InputError(f"its tokens spell {shown(spelt)}, and its text is {shown(text)}")


def _places(choice: Mapping[str, Any]) -> Iterator[TokenPlace]:
    held = choice.get("logprobs") or {}
    entries = held.get("content") if isinstance(held, Mapping) else None
    entries = entries or choice.get("completion_probabilities")
    if entries:
        yield from map(_place, entries)
    elif isinstance(held, Mapping) and held.get("tokens"):
        yield from _of_completions(held)
    else:
        raise InputError("it holds no log-probabilities: ask for logprobs and top_logprobs")


def _place(entry: Mapping[str, Any]) -> TokenPlace:
    if "prob" in entry or "probs" in entry:
        raise InputError(
            "its probabilities are those that tokens were drawn by, after temperature and cuts: ask "
            "llama.cpp without post_sampling_probs"
        )
    listed = [_token(one) for one in entry.get("top_logprobs") or ()]
    own = _token(entry)
    same = [
        i for i, one in enumerate(listed) if one[0] == own[0] and math.isclose(one[1], own[1], abs_tol=1e-6)
    ]
    return _checked(listed if same else [*listed, own], same[0] if same else len(listed))


def _of_completions(held: Mapping[str, Any]) -> Iterator[TokenPlace]:
    tokens, own, tops = held["tokens"], held.get("token_logprobs"), held.get("top_logprobs")
    if not tops or not own:
        raise InputError("it lists no alternatives of its tokens: ask for logprobs of 1 or more")
    if own[0] is None:
        raise InputError("it begins with its prompt (echo): ask without, or score each class by itself")
    for token, value, top in zip(tokens, own, tops, strict=True):
        alternatives = [{"token": text, "logprob": one} for text, one in (top or {}).items()]
        yield _place({"token": token, "logprob": value, "top_logprobs": alternatives})


def _token(entry: Mapping[str, Any]) -> tuple[bytes, float]:
    """The bytes of a token and its log-probability."""
    text, held, value = entry.get("token"), entry.get("bytes"), entry.get("logprob")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value > 1e-5:
        raise InputError(f"the log-probability of {shown(text)} is a number up to 0, got {shown(value)}")
    if isinstance(held, list):
        return bytes(held), float(value)
    if "id" in entry and held is None:
        raise InputError(
            f"its token {shown(text)} is a piece of a vocabulary, and no text, as mlx_lm lists them: use "
            "votes"
        )
    text = held if isinstance(held, str) else text  # mistral.rs 0.9 has a token's number and its text there
    if not isinstance(text, str) or text.startswith("token_id:"):
        raise InputError(f"a token is a text, got {shown(text)}; ask for texts, not for ids")
    if text.startswith("bytes:\\x"):  # OpenAI's completions have a part of a letter so
        return bytes.fromhex(text[6:].replace("\\x", "")), float(value)
    return text.encode(), float(value)


def _checked(listed: list[tuple[bytes, float]], taken: int) -> TokenPlace:
    found = [(token, math.exp(min(value, 0.0))) for token, value in listed]
    if (total := sum(p for _, p in found)) > 1 + SUM_OF_HALF:
        raise InputError(f"the listed probabilities add up to {total:.4f}: they are of no distribution")
    return TokenPlace(found, taken)


def read_answers(rows: Iterable[Mapping[str, Any]], words: LabelWords) -> list[ClassAnswer]:
    """Read the answers of JSON lines.

    Args:
        rows: A response each; or an object that holds it as ``response``, as it came or in a ``body``, as
            batches return them.
        words: The words of the classes.

    Raises:
        InputError: Where one cannot be read; it names the row.
    """
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(words.read(_response(row)))
        except InputError as error:
            raise InputError(f"row {number}: {error}") from error
    return found


def _response(row: Mapping[str, Any]) -> Mapping[str, Any]:
    held = row.get("response", row)
    held = held.get("body", held) if isinstance(held, Mapping) else held
    if not isinstance(held, Mapping):
        raise InputError(f"its response is {shown(held)}, and no object: the request may have failed")
    return held


def answers_in(path: Path, words: LabelWords, beside: Mapping[str, str]) -> RawScores:
    """Read JSON lines of answers as probabilities of their classes; InputError, by row, where they are none.

    ``beside``: entries of a row that hold its label, by default "label", its weight, group and source.
    """
    if not is_json(path):
        raise InputError(f"answers are read from JSON lines (.jsonl), got {path.name!r}")
    with open_lines(path) as lines:
        rows = [*objects_of(lines)]
    if not rows:
        raise InputError("it holds no answers")
    found = read_answers(rows, words)
    bounds = np.array([one.bounds for one in found])
    # A response as it came has an id of its own.
    ids = ("custom_id",) if "choices" in rows[0] else ("custom_id", "id")
    names = {"label": "label"} if "label" in rows[0] else {}
    if of_rows := next((name for name in ids if name in rows[0]), None):
        names["id"] = of_rows
    return RawScores(
        np.array([one.probs for one in found]),
        {what: _entries(rows, name) for what, name in {**names, **beside}.items()},
        class_names=words.names,
        bounds=bounds,
        remarks=tuple(_remarks(found, bounds, words)),
        place=CellNames(1),
    )


def _entries(rows: Sequence[Mapping[str, Any]], name: str) -> NDArray[Any]:
    if lacks := next((number for number, row in enumerate(rows, 1) if name not in row), None):
        raise InputError(f"row {lacks} has no {name!r} beside its answer")
    found = np.empty(len(rows), object)
    found[:] = [row[name] for row in rows]
    return found


def _remarks(answers: Sequence[ClassAnswer], bounds: Floats, words: LabelWords) -> Iterator[str]:
    """Say what of the answers is of no class, and what of their probability is not known."""
    outside = np.array([one.outside for one in answers])
    if outside.max() > 0:
        yield (
            f"{100 * outside.mean():.2g} % of the answers' probability is of none of the classes, in "
            f"{int((outside > 0.5).sum())} of {len(answers)} most of it"
        )
    width = bounds[:, 1] - bounds[:, 0]
    if (width > 0).any():
        yield (
            f"tokens that are not listed leave the confidence open by {100 * np.nanmean(width):.2g} points "
            f"on average, {100 * np.nanmax(width):.2g} at most"
        )
    if words.form == "logprobs" and (other := sum(one.goes_on for one in answers)):
        yield (
            f"in {other} of {len(answers)} answers a word goes on to a text of another class or none: list "
            "longer words"
        )
