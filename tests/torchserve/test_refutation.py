"""A place whose scores the reply is not made of is refused with the reason; of the others the reply is read.

Each handler here is a function of a batch of inputs, written as people write them.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib_serve.core.errors import ModelError
from calib_serve.scores import Outputs, sigmoid, softmax
from calib_serve.scores.form import Form
from calib_serve.torchserve.seam._host import Answer
from calib_serve.torchserve.seam._recorder import PlaceRecorder
from calib_serve.torchserve.seam._refutation import Alone, NotOneRow, Place, read_batches, read_place
from calib_serve.torchserve.seam._requests import Request
from calib_serve.torchserve.shown import Readings

Floats = np.ndarray
Net = Callable[[Floats], Floats]
D, K = 6, 5
RNG = np.random.default_rng(3)
W, V = RNG.normal(size=(2, D, K))
X = RNG.normal(size=(4, D))
REQUESTS = [Request(json.dumps(row.tolist()).encode(), "application/json") for row in X]
NAMES = ["ash", "beech", "cedar", "doum", "elm"]


def place(
    replies: Callable[[Floats, Net], list[Any]], *, kind: Outputs = "logits", columns: int = K, **more: Any
) -> Place:
    """Of a handler that makes ``replies`` of inputs (n, D), by a network whose scores pass."""
    recorder = PlaceRecorder()
    of = W[:, :columns]

    def network(x: Floats) -> Floats:
        made: Floats = recorder(lambda: _as(kind, x @ of), (), {})
        assert np.isfinite(made).all()
        if "prob" in kind:  # what is put in their place are scores, too
            assert (made >= 0).all()
            np.testing.assert_allclose(made.sum(axis=1) if kind == "probabilities" else 1, 1)
        return made

    def ask(requests: Any) -> Answer:
        try:
            got = replies(np.array([one.payload for one in requests]), network)
        except ZeroDivisionError as error:
            return Answer(error=str(error), statuses=(500,))
        return Answer(got, statuses=(None,) * len(requests))

    return Place("model", ask, recorder, Form(), kind, columns, **more)


def _as(kind: Outputs, z: Floats) -> Floats:
    if kind == "probabilities":
        return softmax(z)
    return sigmoid(z) if kind in ("label_probabilities", "probability") else z


def prove(one: Place, *beside: str) -> tuple[Alone, Readings]:
    parts = [one.see([request]) for request in REQUESTS]
    rows = np.concatenate([p.rows for p in parts])
    alone = Alone(one, REQUESTS, rows, [r for p in parts for r in p.replies])
    return alone, read_place(alone, NAMES, beside)


def each(reply: Callable[[Floats], Any]) -> Callable[[Floats, Net], list[Any]]:
    """A handler that makes each reply of a row of scores."""
    return lambda x, network: [reply(row) for row in network(x)]


def named(p: Floats) -> dict[str, Any]:
    return {"species": NAMES[int(p.argmax())], "score": float(p.max())}


def cached(kept: dict[str, Any]) -> Callable[[Floats, Net], list[Any]]:
    def replies(x: Floats, network: Net) -> list[Any]:
        key = repr(x.tolist())
        if key not in kept:
            kept[key] = [named(softmax(z)) for z in network(x)]
        return kept[key]  # type: ignore[no-any-return]

    return replies


def some(z: Floats) -> Floats:
    """Probabilities of three of the classes."""
    return softmax(np.where(np.arange(K) < 3, z, -1e9))


def unknown(z: Floats) -> dict[str, Any]:
    p = softmax(z)
    return named(p) if p.max() > 0.6 else {"species": "unknown", "score": round(float(p.max()), 2)}


def all_of(z: Floats) -> dict[str, Any]:
    """All that people show of probabilities and is not linear in them."""
    p = softmax(z)
    logs, entropy = np.log(p), float(-(p * np.log(p)).sum())
    return {
        "logs": [*logs, *-logs, *np.log2(p), *(logs - np.log1p(-p))],
        "entropies": [entropy, entropy / np.log(2), entropy / np.log(K), 1 - entropy / np.log(K)],
        "others": [np.exp(entropy), float(np.diff(np.sort(logs))[-1]), 1 - (p**2).sum(), (p**2).sum()],
    }


def smoothed(kept: list[Floats]) -> Callable[[Floats, Net], list[Any]]:
    def replies(x: Floats, network: Net) -> list[Any]:
        for p in softmax(network(x)):
            kept.append((kept[-1] + p) / 2)
        return [named(p) for p in kept[-len(x) :]]

    return replies


NOTHING = "shows nothing of what passes here"
ticks, left = itertools.count(), itertools.count(-3)
slow = itertools.count()

GOOD: dict[str, Callable[[Floats, Net], list[Any]]] = {
    "names and scores": each(lambda z: named(softmax(z))),
    "all by name": each(lambda z: dict(zip(NAMES, softmax(z).tolist(), strict=True))),
    "the first three, by name": each(
        lambda z: {NAMES[k]: float(softmax(z)[k]) for k in np.argsort(-z, kind="stable")[:3]}
    ),
    "a list of the first three": each(
        lambda z: [[NAMES[k], round(float(softmax(z)[k]), 3)] for k in np.argsort(-z, kind="stable")[:3]]
    ),
    "percent in a text": each(lambda z: f"{NAMES[int(z.argmax())]}: {100 * softmax(z).max():.1f} %"),
    "whole percent": each(lambda z: round(100 * float(softmax(z).max()))),
    "a class": each(lambda z: int(z.argmax())),
    "a name": each(lambda z: NAMES[int(z.argmax())]),
    "the scores": each(lambda z: z.tolist()),
    "log-probabilities": each(lambda z: np.log(softmax(z)).tolist()),
    "entropy and margin": each(
        lambda z: {
            "bits": float(-(softmax(z) * np.log2(softmax(z))).sum()),
            "margin": float(np.diff(np.sort(softmax(z)))[-1]),
        }
    ),
    "unknown below a bound": each(unknown),
    "another number of the input": lambda x, network: [
        {**named(softmax(z)), "length": float(row.sum())} for z, row in zip(network(x), x, strict=True)
    ],
    "a clock": each(lambda z: {**named(softmax(z)), "at": time.time(), "n": next(ticks)}),
    "a clock that is seldom another": each(lambda z: {**named(softmax(z)), "at": 1.5 * (next(slow) // 4)}),
    "all that is known": each(lambda z: {k: list(map(float, v)) for k, v in all_of(z).items()}),
    "a number or a text": each(lambda z: float(p) if (p := softmax(z).max()) > 0.6 else "unsure"),
    "none where two are the same": each(lambda z: 1 // int(len(set(z.round(9))) == K) * float(softmax(z)[0])),
    "a bound that one request meets": each(lambda z: {**named(softmax(z)), "of": softmax(X @ W)[0].max()}),
    "another network beside": lambda x, network: [
        {**named(softmax(z)), "quality": q}
        for z, q in zip(network(x), sigmoid(x @ V[:, 0]).tolist(), strict=True)
    ],
}  # fmt: skip

BAD: dict[str, tuple[Callable[[Floats, Net], list[Any]], str]] = {
    "its own temperature": (each(lambda z: named(softmax(z / 1.5))), "a temperature of its own"),
    "three of the classes": (each(lambda z: named(some(z))), "some of the classes"),
    "three of the classes, by name": (
        each(lambda z: NAMES[int(some(z).argmax())]),
        "does not follow the likeliest class: .*some of the classes",
    ),
    "three of the classes, by number": (
        each(lambda z: {"id": int(some(z).argmax()), "p": softmax(z)[0]}),
        "does not follow the likeliest class: .*some of the classes",
    ),
    "a sigmoid of scores of which one is true": (each(lambda z: float(sigmoid(z).max())), "another function"),
    "an average with another network": (
        lambda x, network: [named(softmax(z)) for z in (network(x) + x @ V) / 2],
        "score",
    ),
    "probabilities averaged with another's": (
        lambda x, network: [named(p) for p in (softmax(network(x)) + softmax(x @ V)) / 2],
        "other scores, a filter or an earlier request take part",
    ),
    "a class by two networks": (
        lambda x, network: [NAMES[int(z.argmax())] for z in network(x) + x @ V],
        "does not follow the likeliest class",
    ),
    "another network's": (
        lambda x, network: [named(softmax(z)) for z in network(x) * 0 + x @ V],
        "does not follow",
    ),
    "the same network's, by another way": (
        lambda x, network: [
            {**named(softmax(z)), "n": int(n.argmax())} for z, n in zip(x @ W, network(x), strict=True)
        ],
        "in another place",
    ),
    "an energy": (
        each(lambda z: {**named(softmax(z)), "energy": float(np.log(np.exp(z).sum()))}),
        "of the logits' size",
    ),
    "a group of classes": (each(lambda z: "tree" if z.argmax() < 3 else "bush"), NOTHING),
    "prices of classes": (
        each(lambda z: {"price": [2.5, 3.25, 1.5, 9.75, 4.5][int(z.argmax())]}),
        NOTHING,
    ),
    "an expected value": (
        each(lambda z: {"stars": float((np.arange(1, 6) * softmax(z)).sum())}),
        NOTHING,
    ),
    "a class by a threshold": (
        each(lambda z: {"defect": NAMES[1] if softmax(z)[1] > 0.3 else NAMES[int(z.argmax())]}),
        "a rule of its own",
    ),
    "a class by a high threshold": (
        each(lambda z: {"id": int(z.argmax()) if softmax(z).max() > 0.99 or z.argmax() != 2 else 0}),
        "does not follow the likeliest class",
    ),
    "a class by costs": (
        each(lambda z: NAMES[int((softmax(z) * [1, 1, 5, 1, 1]).argmax())]),
        "a rule of its own",
    ),
    "scores smoothed over requests": (smoothed([np.full(K, 1 / K)]), "an earlier request take part"),
    "a class that the request leaves out": (
        lambda x, network: [
            named(softmax(np.where(np.arange(K) == 3 * (row[0] < 0), -1e9, z)))
            for z, row in zip(network(x), x, strict=True)
        ],
        "a filter or an earlier request take part",
    ),
    "a larger network's where two are torn": (
        lambda x, network: [
            named(softmax(row @ V) if np.diff(np.sort(p))[-1] < 0.05 else p)
            for p, row in zip(softmax(network(x)), x, strict=True)
        ],
        "other scores, a filter",
    ),
    "a running number": (each(lambda z: {"n": next(ticks), "species": "ash"}), "does not follow"),
    "a cache": (cached({}), "answered again without its scores .a cache., .*turn that off"),
    "an answer once": (
        each(lambda z: 1 / (next(left) < 1) * float(softmax(z).max())),
        "answers a request once",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_reply_that_shows_what_the_scores_say_is_read(name: str) -> None:
    prove(place(GOOD[name]))


@pytest.mark.parametrize("name", BAD)
def test_another_reply_is_refused_with_what_was_seen(name: str) -> None:
    handler, why = BAD[name]
    with pytest.raises(ModelError, match=why):
        prove(place(handler))


def test_what_follows_no_scores_is_of_another_network_where_there_is_one() -> None:
    one = place(GOOD["another network beside"])
    with pytest.raises(
        ModelError, match=r"reply.quality does not follow.* answers, too \(Gate\): name with --s"
    ):
        prove(one, "Gate")
    assert prove(place(GOOD["names and scores"]), "Gate")[1].labels[0].classes["elm"] == 4


@given(t=st.floats(0.2, 0.8) | st.floats(1.25, 5), rounded=st.sampled_from([2, 3, 4, 17]))
def test_no_temperature_of_a_handlers_own_is_let_through(t: float, rounded: int) -> None:
    with pytest.raises(ModelError, match="a temperature of its own"):
        prove(place(each(lambda z: {"p": [round(float(p), rounded) for p in softmax(z / t)]})))


@pytest.mark.parametrize(
    ("kind", "columns", "reply"),
    [
        ("probabilities", K, named),
        ("logit", 1, lambda z: float(sigmoid(z)[0])),
        ("logit", 1, lambda z: [bool(z[0] > 0), float(max(sigmoid(z)[0], 1 - sigmoid(z)[0]))]),
        ("probability", 1, lambda p: {"label": "spam" if p[0] > 0.5 else "ham", "p": round(float(p[0]), 3)}),
        ("label_logits", K, lambda z: dict(zip(NAMES, sigmoid(z).tolist(), strict=True))),
    ],
)  # fmt: skip
def test_every_kind_of_scores_can_be_proved(kind: Outputs, columns: int, reply: Callable[[Any], Any]) -> None:
    prove(place(each(reply), kind=kind, columns=columns))
    with pytest.raises(ModelError, match="another function"):
        prove(
            place(
                each(lambda z: (np.abs(z) ** 1.5 * np.sign(z)).tolist()),
                kind=kind,
                columns=columns,
            )
        )


def test_scores_of_16_bits_are_compared_as_such() -> None:
    def rounded(z: Floats) -> list[float]:
        return [float(p) * (1 + 4e-3 * (-1) ** k) + 4e-3 * p**2 for k, p in enumerate(softmax(z))]

    prove(place(each(rounded), half=True))


# --- batches ---------------------------------------------------------------------------------------------


def sorted_batch(x: Floats, network: Net) -> list[Any]:
    order = np.argsort(-np.abs(x).sum(axis=1), kind="stable")
    p, back = softmax(network(x[order])), np.empty((len(x), K))
    back[order] = p
    return [named(row) for row in back]


def test_a_batch_in_its_order_is_proved() -> None:
    one = place(GOOD["names and scores"])
    together = read_batches(*prove(one))
    assert np.allclose(together[1].rows[::-1], together[0].rows)


def test_a_handler_that_sorts_its_batch_is_found_out() -> None:
    one = place(sorted_batch)
    with pytest.raises(ModelError, match="changes the order of its batch"):
        read_batches(*prove(one))


def test_replies_in_another_order_than_their_requests_are_found_out() -> None:
    one = place(lambda x, network: [named(p) for p in softmax(network(x))][::-1])
    with pytest.raises(
        ModelError,
        match=r"in a batch, the reply .* shows another class than its row, .* the reply to another request",
    ):
        read_batches(*prove(one))


def test_requests_with_the_same_scores_prove_nothing() -> None:
    one = place(GOOD["names and scores"])
    seen = one.see([REQUESTS[0]])
    twice = Alone(one, REQUESTS[:1] * 2, np.repeat(seen.rows, 2, axis=0), seen.replies * 2)
    with pytest.raises(ModelError, match="--probe-data"):
        read_batches(twice, Readings())


def test_several_windows_a_request_are_refused() -> None:
    windows = place(
        lambda x, network: [
            named(p) for p in softmax(network(np.vstack([x, x + 1, x - 1]))).reshape(3, -1, K).mean(axis=0)
        ]
    )
    with pytest.raises(NotOneRow, match="windows"):
        windows.see(REQUESTS[:1])
    with pytest.raises(NotOneRow, match="6 rows of scores pass in 1 calls for 2 requests"):
        windows.see(REQUESTS[:2])
