"""Replies of many kinds, read in a trial: the reply of another row is told from that of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from calib_serve.core.arrays import Floats
from calib_serve.torchserve.shown import Readings, chosen_rows, read_shown

NAMES = ("cat", "dog", "emu", "fox", "gnu")
Reply = Callable[[Floats], Any]


def top(p: Floats, n: int) -> list[int]:
    return np.argsort(-p, kind="stable")[:n].tolist()


REPLIES: dict[str, Reply] = {
    "a class and its confidence": lambda p: {"class": int(p.argmax()), "score": float(p.max())},
    "a name and a rounded confidence": lambda p: {
        "label": NAMES[p.argmax()],
        "score": round(float(p.max()), 2),
    },
    "names to probabilities": lambda p: {NAMES[k]: float(p[k]) for k in top(p, 3)},
    "ids to probabilities": lambda p: {str(k): float(p[k]) for k in top(p, 3)},
    "all probabilities": lambda p: p.tolist(),
    "all in percent": lambda p: {"percent": (100 * p).round(1).tolist()},
    "a list of the likeliest": lambda p: {
        "top": [{"class": NAMES[k], "probability": float(p[k])} for k in top(p, 3)]
    },
    "a text": lambda p: f"{NAMES[p.argmax()]}: {100 * p.max():.1f} %",
    "the text of a JSON object": lambda p: json.dumps({"class": int(p.argmax()), "score": float(p.max())}),
    "whole percents": lambda p: {"name": NAMES[p.argmax()], "percent": round(100 * float(p.max()))},
    "logarithms": lambda p: {"class": int(p.argmax()), "log": float(np.log(p.max()))},
    "an entropy": lambda p: {"unsure": float(-(p * np.log(p)).sum())},
    "one of the probabilities": lambda p: {"p_cat": float(p[0])},
    "beside a number that never moves": lambda p: {
        "version": 3,
        "threshold": 0.5,
        "label": NAMES[p.argmax()],
        "p": float(p.max()),
    },
}


def shown_by(reply: Reply, classes: int = 5) -> Readings:
    return read_shown([(as_sent(reply(p)), p) for p in chosen_rows(classes)])


def as_sent(reply: Any) -> Any:
    return json.loads(reply) if isinstance(reply, str) and reply.startswith("{") else reply


@pytest.mark.parametrize("kind", REPLIES)
def test_a_reply_matches_its_own_row_and_no_other(kind: str) -> None:
    reply, rng = REPLIES[kind], np.random.default_rng(0)
    shown = Readings.from_dict(json.loads(json.dumps(shown_by(reply).as_dict())))
    rows = rng.dirichlet(np.ones(5), 200)
    assert all(shown.compare(reply(p), p) == ("", True) for p in rows)
    others = [shown.compare(reply(p), q).reason for p, q in zip(rows, np.roll(rows, 1, axis=0), strict=True)]
    # Whole percents may agree by chance.
    assert np.mean([reason in ("class", "number") for reason in others]) > 0.97


def test_a_label_alone_is_compared_by_its_class() -> None:
    shown = shown_by(lambda p: {"label": NAMES[p.argmax()]})
    p = np.array([0.1, 0.6, 0.1, 0.1, 0.1])
    assert shown.compare({"label": "dog"}, p) == ("", False)
    assert shown.compare({"label": "emu"}, p) == ("class", False)


@pytest.mark.parametrize("cut", [0.3, 0.7])
def test_a_label_by_a_threshold_of_the_handlers_own_is_not_the_likeliest_class(cut: float) -> None:
    def reply(p: Floats) -> Any:
        return {"label": "spam" if p[1] > cut else "ham", "p": float(p[1])}

    shown, between = shown_by(reply, 2), np.array([1 - (cut + 0.5) / 2, (cut + 0.5) / 2])
    assert shown.compare(reply(between), between).reason == "class"
    assert shown.compare(reply(np.array([0.1, 0.9])), np.array([0.1, 0.9])) == ("", True)


def test_a_flag_of_the_confidence_is_no_label() -> None:
    shown = shown_by(lambda p: {"class": int(p.argmax()), "sure": bool(p.max() > 0.95)})
    assert len(shown.labels) == 1


def test_a_reply_that_shows_nothing_of_its_row_cannot_be_compared() -> None:
    shown = shown_by(lambda p: {"status": "ok"})
    assert shown.compare({"status": "ok"}, np.full(5, 0.2)).reason == "nothing"
    assert (
        shown_by(lambda p: {"age": float(p @ np.arange(5))}).compare({}, np.full(5, 0.2)).reason == "nothing"
    )


def test_names_of_all_classes_reach_beyond_those_that_were_tried() -> None:
    names = tuple(f"n{k:04}" for k in range(1000))

    def reply(p: Floats) -> Any:
        return {names[k]: float(p[k]) for k in top(p, 5)}

    shown = read_shown([(reply(p), p) for p in chosen_rows(1000)], names)
    p = np.random.default_rng(1).dirichlet(np.full(1000, 0.01))
    assert shown.compare(reply(p), p) == ("", True)
    assert shown.compare(reply(p), np.roll(p, 1)).reason == "number"


def test_classes_of_equal_probability_may_change_places() -> None:
    shown = shown_by(REPLIES["a class and its confidence"])
    p = np.array([0.4, 0.4, 0.1, 0.05, 0.05])
    assert shown.compare({"class": 1, "score": 0.4}, p) == ("", True)


def test_labels_that_are_independent_are_compared_by_their_numbers() -> None:
    rows = chosen_rows(4, of_labels=True)
    shown = read_shown([({NAMES[k]: float(p[k]) for k in range(4)}, p) for p in rows])
    p = np.array([0.9, 0.8, 0.1, 0.3])
    assert shown.compare(dict(zip(NAMES, p.tolist(), strict=False)), p) == ("", True)
    assert shown.compare(dict(zip(NAMES, p.tolist(), strict=False)), p[::-1]).reason == "number"
