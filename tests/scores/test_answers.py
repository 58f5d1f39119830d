"""Answers of language models: whatever is listed, a class has its probability inside the bounds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import calib_serve
from hypothesis import given, settings
from hypothesis import strategies as st

from calib_serve.artifact import Artifact, ProbTable
from calib_serve.core.errors import InputError
from calib_serve.metrics import judge
from calib_serve.report import compare
from calib_serve.scores import LabelWords, Scores
from calib_serve.scores.answers import TokenPlace, read_answers

pytestmark = pytest.mark.unit

WORDS = LabelWords({"yes": ["yes", "Yes"], "no": ["no"], "one": ["1"], "ten": ["10"]})
TOKENS = (b"yes", b" yes", b"Ye", b"s", b"no", b"n", b"o", b"t", b"1", b"0", b" ", b"maybe", b"")
RECORDED = Path(__file__).parent / "answers"


def chat(*places: dict[str, float], **more: Any) -> dict[str, Any]:
    """A chat completion whose first listed token was taken at each place."""
    content = []
    for listed in places:
        top = [{"token": t, "logprob": math.log(p) if p else -9999.0} for t, p in listed.items()]
        content.append({**top[0], "top_logprobs": top})
    text = "".join(next(iter(one)) for one in places)
    choice = {"message": {"content": text}, "logprobs": {"content": content}, **more}
    return {"choices": [choice]}


def test_a_class_has_the_sum_over_its_spellings() -> None:
    answer = WORDS.read(chat({"yes": 0.5, " Yes": 0.2, "no": 0.1, "maybe": 0.2}))
    assert answer.shares == pytest.approx([0.7, 0.1, 0, 0])
    assert answer.unknown == pytest.approx(0)
    assert answer.probs == pytest.approx([7 / 8, 1 / 8, 0, 0])
    assert answer.bounds == pytest.approx((7 / 8, 7 / 8))


def test_what_is_not_listed_is_open_for_each_class() -> None:
    answer = WORDS.read(chat({"yes": 0.6, "no": 0.2}))
    assert answer.open == pytest.approx([0.2] * 4)
    assert answer.bounds == pytest.approx((0.6 / 1.0, 0.8 / 1.0))


def test_a_word_that_begins_another_waits_for_the_next_token() -> None:
    alone = WORDS.read(chat({"1": 0.9, "no": 0.1}))
    assert alone.shares == pytest.approx([0, 0.1, 0, 0])
    assert alone.open == pytest.approx([0, 0, 0.9, 0.9])
    more = WORDS.read(chat({"1": 0.9, "no": 0.1}, {"0": 0.75, ".": 0.25}))
    assert more.shares == pytest.approx([0, 0.1, 0.225, 0.675])
    assert WORDS.read(chat({"1": 0.9, "no": 0.1}, {"": 1.0})).shares == pytest.approx([0, 0.1, 0.9, 0])


def test_an_end_whose_probability_is_not_listed_leaves_what_is_begun_open() -> None:
    # OpenAI lists no place for the end: that it was taken once does not say how probable it was.
    answer = WORDS.read(chat({"1": 0.9, "no": 0.1}, finish_reason="stop"))
    assert answer.shares == pytest.approx([0, 0.1, 0, 0])
    assert answer.open == pytest.approx([0, 0, 0.9, 0.9])


def test_an_empty_token_that_others_follow_is_no_end() -> None:
    answer = WORDS.read(chat({"": 1.0}, {"yes": 0.75, "no": 0.25}))
    assert answer.shares == pytest.approx([0.75, 0.25, 0, 0])


@pytest.mark.parametrize("space", ["\u00a0", "\u3000", " \n"])
def test_white_space_of_any_script_counts_for_nothing(space: str) -> None:
    assert WORDS.class_of(space + "yes") == 0
    assert WORDS.read(chat({space: 1.0}, {"yes": 0.75, "no": 0.25})).shares[:2] == pytest.approx([0.75, 0.25])


def test_a_part_of_a_letter_may_be_of_each_class_it_begins() -> None:
    words = LabelWords({"yes": ["\u662f"], "no": ["\u4e0d"]})  # e6 98 af, e4 b8 8d
    tops = [{"bytes:\\xe6\\x98": math.log(0.75), "\u4e0d": math.log(0.25)}]
    legacy = {"tokens": ["\u4e0d"], "token_logprobs": [math.log(0.25)], "top_logprobs": tops}
    answer = words.read({"choices": [{"text": "\u4e0d", "logprobs": legacy}]})
    assert answer.shares == pytest.approx([0, 0.25])
    assert answer.open == pytest.approx([0.75, 0])


def test_a_sampled_token_outside_of_the_top_counts_once() -> None:
    response = chat({"yes": 0.5, "no": 0.3})
    place = response["choices"][0]["logprobs"]["content"][0]
    place.update(token="maybe", logprob=math.log(0.1))
    response["choices"][0]["message"]["content"] = "maybe"
    assert WORDS.read(response).unknown == pytest.approx(0.1)
    place.update(token="yes", logprob=math.log(0.5))
    response["choices"][0]["message"]["content"] = "yes"
    assert WORDS.read(response).unknown == pytest.approx(0.2)


def test_two_tokens_of_one_text_both_count() -> None:
    top = [{"token": "no", "logprob": math.log(0.25)}, {"token": "no", "logprob": math.log(0.5)}]
    choice = {"logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
    assert WORDS.read({"choices": [choice]}).shares[1] == pytest.approx(0.75)


def test_an_answer_that_goes_on_is_told() -> None:
    words = LabelWords({"no": ["no"], "yes": ["yes"]})
    assert words.read(chat({"no": 1.0}, {"t": 1.0})).goes_on
    assert not words.read(chat({"no": 1.0}, {".": 1.0})).goes_on
    assert LabelWords({"no": ["no*"], "yes": ["yes"]}).class_of("not") == 0


def test_votes_leave_room_for_the_others() -> None:
    words = LabelWords({"yes": ["yes"], "no": ["no"]}, form="votes")
    votes = {"choices": [{"message": {"content": text}} for text in ("yes", " yes.", "yes", "perhaps")]}
    answer = words.read(votes)
    assert answer.probs == pytest.approx([3.5 / 4, 0.5 / 4])
    assert answer.shares.sum() == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"error": {"message": "overloaded"}}, "no completion.*overloaded"),
        ({"choices": []}, "no completion"),
        *[({"choices": one}, "of another form") for one in ([3], [None], ["yes"], [[]])],
        ({"choices": "yes"}, "no completion"),
        ({"choices": [{"message": {"content": "yes"}}]}, "ask for logprobs"),
        ({"choices": [{"message": {"content": "yes"}, "logprobs": None}]}, "ask for logprobs"),
        ({"choices": [{}, {}]}, "2 answers"),
        (chat({"yes": 0.9, "no": 0.2}), "add up to 1.1"),
        ({"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": 0.9}]}}]}, "up to 0"),
        ({"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": None}]}}]}, "up to 0"),
        ({"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": math.nan}]}}]}, "up to 0"),
        ({"choices": [{"logprobs": {"content": [{"token": "token_id:7", "logprob": -1}]}}]}, "not for ids"),
        ({"completion_probabilities": [{"token": "yes", "prob": 0.9, "top_probs": []}]}, "post_sampling"),
        (
            {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [None]}}]},
            "echo",
        ),
        ({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}}]}, "no alternatives"),
        ({"choices": [{**chat({"yes": 1.0})["choices"][0], "delta": {}}]}, "part of a stream"),
        ([1], "of another form"),
        ({"choices": [{"logprobs": {"content": "yes"}}]}, "of another form"),
        ({"choices": [{"logprobs": {"content": ["yes"]}}]}, "of another form"),
        ({"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": -(10**400)}]}}]}, "of another"),
        ({"choices": [{"logprobs": {"content": [{"token": "\ud800", "logprob": -1}]}}]}, "of another form"),
        ({"choices": [{"logprobs": {"content": [{"token": "y", "bytes": [300], "logprob": -1}]}}]}, "form"),
        (
            {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-1, -1], "top_logprobs": [{}]}}]},
            "for",
        ),
    ],
)
def test_what_holds_no_distribution_is_refused(response: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        WORDS.read(response)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ("classes: {a: [x]}", "two or more"),
        ("classes: {a: x, b: [y]}", "list of texts"),
        ("classes: {a: [yes], b: [no]}", "YAML reads"),
        ("classes: {a: [x], b: [' x']}", "word of two classes"),
        ("classes: {a: [''], b: [y]}", "is empty"),
        ("classes: {a: [], b: [y]}", "list of texts"),
        ("classes: {a: [x], b: [y]}\nform: logits", "form of answers"),
        ("classes: {a: [x], b: [y]}\nwords: 1", "a mapping of"),
        ("classes: {a: 5, b: [y]}", "list of texts"),
        ("classes: {a: {x: 1}, b: [y]}", "list of texts"),
        ('classes: {a: ["\\ud800"], b: [y]}', "list of texts"),
        ("classes: {a: [x], b: [y], a: [z]}", "twice"),
        ("[1]", "a mapping of"),
        ("classes: {a: [x], b: [", "cannot read the words"),
    ],
)
def test_words_that_say_two_things_are_refused(known: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "words.yaml").write_text(known)
    with pytest.raises(InputError, match=message):
        LabelWords.load(tmp_path / "words.yaml")


def test_a_file_of_answers_is_read_with_its_labels(tmp_path: Path) -> None:
    rows = [
        {"custom_id": f"r{i}", "label": label, "response": {"body": chat({"yes": p, "no": 1 - p})}}
        for i, (label, p) in enumerate([("yes", 0.75), ("no", 0.5), ("no", 0.25)])
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "w.yaml").write_text("classes: {'yes': ['yes'], 'no': ['no']}")
    scores = Scores.read(tmp_path / "a.jsonl", outputs=f"answers:{tmp_path / 'w.yaml'}")
    assert scores.values == pytest.approx(np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]]))
    assert scores.labels is not None
    assert scores.labels.tolist() == [0, 1, 1]
    assert scores.class_names == ("yes", "no")
    with pytest.raises(InputError, match="no splits"):
        Scores.read(tmp_path / "a.jsonl", outputs=f"answers:{tmp_path / 'w.yaml'}", split="test")
    rows[1].pop("label")
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="row 2 has no 'label'"):
        Scores.read(tmp_path / "a.jsonl", outputs=f"answers:{tmp_path / 'w.yaml'}")


def test_what_is_of_no_class_and_what_is_not_known_is_said(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("classes: {a: [a], b: [b]}")

    def remarks(*answers: dict[str, float]) -> tuple[str, ...]:
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(chat(one)) for one in answers))
        return Scores.read(tmp_path / "a.jsonl", outputs=f"answers:{tmp_path / 'w.yaml'}").remarks

    assert remarks({"a": 0.5, "b": 0.5}) == ()
    outside, unknown = remarks({"a": 0.5, "b": 0.25, "x": 0.25}, {"a": 0.25, "x": 0.75}, {"a": 0.6, "b": 0.2})
    assert outside.startswith("33 % of the answers' probability is of none of the classes, in 1 of 3 most")
    assert unknown.endswith("leave the confidence open by 6.7 points on average, 20 at most")


def test_a_schema_of_answers_is_taken_by_other_commands(tmp_path: Path) -> None:
    rows = [{"truth": "a" if n % 2 else "b", "response": chat({"a": 0.5, "b": 0.4})} for n in range(8)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "w.yaml").write_text("classes: {a: [a], b: [b]}")
    named = ("--outputs", f"answers:{tmp_path / 'w.yaml'}", "--labels", "truth")
    written = calib_serve("schema", tmp_path / "a.jsonl", *named, "-o", tmp_path / "s.yaml")
    assert written.exit_code == 0, written.stderr
    found = Scores.read(tmp_path / "a.jsonl", schema=tmp_path / "s.yaml")
    assert found.labelled().tolist() == [1, 0] * 4
    assert found.bounds is not None


def bounded(p: np.ndarray, y: np.ndarray, low: Any, high: Any, **more: Any) -> Scores:
    """Scores of two classes, the first of which is the likelier, with bounds of the confidence."""
    made = Scores.of(np.stack([p, 1 - p], axis=1), y, outputs="probabilities", **more)
    top = np.maximum(p, 1 - p)
    return replace(made, bounds=np.stack([np.clip(top - low, 0, 1), np.clip(top + high, 0, 1)], axis=1))


@pytest.mark.parametrize(
    ("high", "level"), [(0.0005, "calibrated"), (0.005, "calibrated"), (0.05, "no_error_found")]
)
def test_a_proof_of_calibration_leaves_room_for_the_bounds(high: float, level: str) -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 40_000)
    y = (rng.uniform(size=len(p)) > p).astype(int)
    found = judge(bounded(p, y, high, high))
    assert found.level == level
    if level == "calibrated":  # its number is true at both ends
        assert found.tests[0].most > high


@pytest.mark.parametrize(("open_by", "level"), [(0.05, "off"), (0.15, "no_error_found")])
def test_an_error_is_one_for_all_confidences_within_the_bounds(open_by: float, level: str) -> None:
    # With 15 points it is off with the least confidences and with the greatest, and right between them.
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 0.85, 40_000)
    y = (rng.uniform(size=len(p)) > p).astype(int)
    assert judge(bounded(p + 0.1, y, open_by, open_by)).level == level


def test_bounds_count_where_the_tolerance_is_narrower() -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 20, 80_000)  # of an event of 2.4 %, which is held to 0.5 points
    y = (rng.uniform(size=len(p)) > p).astype(int)
    assert judge(bounded(p, y, 0, 0)).level == "calibrated"
    assert judge(bounded(p, y, 0.008, 0.008)).level == "no_error_found"


def test_bounds_of_a_class_and_of_heavy_rows_are_not_averaged_away() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.5, 1, 40_000)
    p[:2400] = 1 - p[:2400]
    y = (rng.uniform(size=len(p)) > p).astype(int)
    wide = np.where(np.arange(len(p)) < 2400, 0.1, 0.0)
    assert judge(bounded(p, y, wide, wide)).level == "no_error_found"
    heavy = np.where(np.arange(len(p)) % 10, 1.0, 20.0)
    wide = np.where(heavy > 1, 0.04, 0.0)
    assert judge(bounded(p, y, wide, wide)).level == "calibrated"
    assert judge(bounded(p, y, wide, wide, sample_weight=heavy)).level == "no_error_found"


def test_reports_and_comparisons_leave_room_for_the_bounds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for p in rng.uniform(0.3, 0.7, 6000):
        label = "a" if rng.uniform() < p else "b"
        rows.append({"label": label, "response": chat({"a": 0.9 * p, "b": 0.9 * (1 - p)})})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "w.yaml").write_text("classes: {a: [a], b: [b]}")
    scores = Scores.read(tmp_path / "a.jsonl", outputs=f"answers:{tmp_path / 'w.yaml'}")
    exact = replace(scores, bounds=None)
    found = compare(exact, scores, names=("exact", "open"), replicates=0, tolerance=0.05)
    assert [one.level for one in found.verdicts] == ["calibrated", "no_error_found"]
    named = ("--outputs", f"answers:{tmp_path / 'w.yaml'}", "--tolerance", "0.05")
    said = calib_serve("evaluate", tmp_path / "a.jsonl", *named, "--report", tmp_path / "r.html")
    assert "Not known" in said.stdout


def test_a_table_that_turns_around_keeps_the_bounds_in_order() -> None:
    falling = ProbTable(np.array([[0.5, 0.6, 0.8]]), np.array([[0.9, 0.8, 0.6, 0.7]]))
    artifact = Artifact((falling,), method="isotonic", classes=2)
    found = artifact.calibrated(bounded(np.array([0.45, 0.7]), np.array([0, 0]), 0.2, 0.2))
    assert found.bounds is not None
    assert (found.bounds[:, 0] <= found.probs[:].max(axis=1)).all()
    assert (found.probs[:].max(axis=1) <= found.bounds[:, 1]).all()


Chain = dict[bytes, dict[bytes, float]]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """Probabilities of the next token after each text of up to two tokens."""
    found: Chain = {}
    for text in (b"", *TOKENS):
        weights = [draw(st.integers(0, 8)) for _ in TOKENS]
        total = sum(weights) or 1
        found[text] = {t: w / total for t, w in zip(TOKENS, weights, strict=True) if w} or {b"": 1.0}
    return found


@given(chains(), st.integers(1, 13), st.integers(0, 12), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_true_probability_lies_inside_the_bounds(chain: Chain, top: int, pick: int, cut: bool) -> None:
    first = sorted(chain[b""].items(), key=lambda one: -one[1])
    taken = first[pick % len(first)]

    def place(listed: list[tuple[bytes, float]], own: tuple[bytes, float]) -> TokenPlace:
        kept = listed[:top] if own in listed[:top] else [*listed[:top], own]
        return TokenPlace(kept, kept.index(own))

    places = [place(first, taken)]
    if taken[0] and not cut:
        second = sorted(chain[taken[0]].items(), key=lambda one: -one[1])
        places.append(place(second, second[0]))
    answer = WORDS.sum_up(places)
    true = np.zeros(4)
    for a, p in chain[b""].items():
        after = {b"": 1.0} if not a else chain[a]
        for b, q in after.items():
            # A token that completes a word is the word, unless a longer one may follow.
            said = WORDS.class_of(a.decode()) if a.strip() != b"1" else WORDS.class_of((a + b).decode())
            said = WORDS.class_of((a + b).decode()) if said is None else said
            if said is not None:
                true[said] += p * q
    assert (answer.shares <= true + 1e-9).all()
    assert (true <= answer.shares + answer.open + 1e-9).all()


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_recorded_answer_of_a_server_is_read_as_its_whole_distribution(path: Path) -> None:
    words = LabelWords({"good": ["good"], "bad": ["bad"], "spam": ["spam"]})
    *rows, whole = map(json.loads, path.read_text().splitlines())
    true = np.array(whole["probabilities"])
    for answer in read_answers(rows, words):
        assert (answer.shares <= true + 1e-6).all()
        assert (true <= answer.shares + answer.open + 1e-6).all()
        assert answer.shares.sum() > 0.1


def test_tokens_that_spell_another_text_than_the_answer_are_refused() -> None:
    response = chat({"I": 1.0}, {" think": 1.0}, {"yes": 0.9, "no": 0.1})  # with those of its reasoning
    response["choices"][0]["message"]["content"] = "yes"
    with pytest.raises(InputError, match="spell 'I thinkyes'"):
        WORDS.read(response)
    response["choices"][0]["message"]["content"] = " I thinkyes "
    WORDS.read(response)


@pytest.mark.parametrize("content", [None, "", " "])
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_tokens_of_a_reasoning_without_an_answer_are_none_of_it(name: str, content: str | None) -> None:
    response = chat({"yes": 0.9, "no": 0.1})  # "yes, this is what I am asked", and no token is left
    response["choices"][0]["message"].update({"content": content, name: "yes"})
    with pytest.raises(InputError, match="of its reasoning"):
        WORDS.read(response)
    response["choices"][0]["message"][name] = None
    WORDS.read(response)


def test_pieces_of_a_vocabulary_are_no_texts() -> None:
    # mlx_lm 0.32.2 lists them so: the first is any of the listed, and the answer was "ham bad".
    top = [{"id": 288, "token": "no", "logprob": -11.9}, {"id": 282, "token": "\u0120ham", "logprob": -3e-05}]
    choice = {
        "message": {"content": "ham bad"},
        "logprobs": {"content": [{**top[0], "top_logprobs": top}]},
    }
    with pytest.raises(InputError, match="piece of a vocabulary"):
        WORDS.read({"choices": [choice]})


@pytest.mark.parametrize("wrapped", [True, False])
def test_answers_without_their_words_are_refused_by_the_option_that_names_them(
    wrapped: bool, tmp_path: Path
) -> None:
    rows = [chat({"yes": 0.7, "no": 0.3}) | {"label": "yes"} for _ in range(3)]
    with (tmp_path / "a.jsonl").open("w") as file:
        for row in rows:
            file.write(json.dumps({"response": row, "label": "yes"} if wrapped else row) + "\n")
    with pytest.raises(InputError, match=r"answers:FILE\.yaml"):
        Scores.read(tmp_path / "a.jsonl")
    if wrapped:
        with pytest.raises(InputError, match=r"answers:FILE\.yaml"):
            Scores.read(tmp_path / "a.jsonl", outputs="answers")


def test_answers_say_their_source(tmp_path: Path) -> None:
    rows = [{"label": "no", "site": s, "response": chat({"yes": 0.75, "no": 0.25})} for s in ("east", "west")]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "w.yaml").write_text("classes: {'yes': ['yes'], 'no': ['no']}")
    scores = Scores.read(tmp_path / "a.jsonl", outputs=f"answers:{tmp_path / 'w.yaml'}", by="site")
    assert scores.sources is not None
    assert (scores.sources.tolist(), scores.schema.by) == (["east", "west"], "site")
