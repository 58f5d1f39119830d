"""Requests that a handler is tried with, and how long it is waited for."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from calib_serve.core.errors import InputError, ModelError
from calib_serve.torchserve.seam import _host, _trial
from calib_serve.torchserve.seam._host import Answer
from calib_serve.torchserve.seam._requests import Request, alternatives, random_requests, varied

NOISE = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)


def picture(mode: str = "RGB", kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(NOISE).convert(mode).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("ending", "body", "payload", "forms"),
    [
        (".json", b'{"x": [1, 2]}', {"x": [1, 2]}, 2),
        (".JSON", b"{", bytearray(b"{"), 2),
        (".txt", "caf\u00e9".encode(), "caf\u00e9", 2),
        (".csv", b"1,2", "1,2", 2),
        (".png", b"\x89PNG", bytearray(b"\x89PNG"), 1),
    ],
)
def test_a_file_is_sent_by_its_ending_and_as_bytes_under_both_names(
    ending: str, body: bytes, payload: Any, forms: int, tmp_path: Path
) -> None:
    path = tmp_path / f"sample{ending}"
    path.write_bytes(body)
    sent = alternatives(path)
    assert [one.name for one in sent] == ["body"] * forms + ["data"] * forms
    assert (sent[0].payload, sent[forms - 1].payload) == (payload, bytearray(body))
    assert [Request.from_dict(json.loads(json.dumps(one.as_dict()))) for one in sent] == list(sent)
    with pytest.raises(InputError, match="cannot read the request"):
        Request.of_file(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("shape", "rows", "sizes"),
    [
        (None, None, []),
        ([5], (5,), []),
        ([-1, None, 4], (1, 1, 4), [(4, 1)]),
        ([3, 8, 6], (3, 8, 6), [(6, 8)]),
        ([2, 8, 6], (2, 8, 6), []),
    ],
)
def test_made_up_requests_are_of_the_shape_then_pictures_then_words_and_others_by_seed(
    shape: Any, rows: Any, sizes: list[tuple[int, int]]
) -> None:
    made, again, other = (
        list(random_requests(shape)),
        list(random_requests(shape)),
        list(random_requests(shape, 1)),
    )
    assert made == again
    assert len(made) == len(other)
    assert all(one.body != two.body for one, two in zip(made, other, strict=True))
    arrays = [one.payload for one in made if one.content_type == "application/json"]
    if rows is not None:
        assert np.shape(arrays[0]) == rows
        assert arrays[1:3] == [{"data": arrays[0]}, {"instances": [arrays[0]]}]
    pictures = [Image.open(io.BytesIO(one.body)) for one in made if one.content_type == "image/png"]
    assert [one.size for one in pictures] == [*sizes, (224, 224), (28, 28), (32, 32)]
    assert [one.mode for one in pictures[-3:]] == ["RGB", "L", "RGB"]
    # Noise, from black to some brightness: a network is to make other scores of each.
    assert all(np.asarray(one).std() > 15 for one in pictures)
    text, plain, named = made[-3:]
    assert [one.content_type for one in made[-3:]] == [
        "text/plain",
        "application/octet-stream",
        "application/json",
    ]
    assert text.body == plain.body == named.payload["text"].encode()


json_values = st.recursive(
    st.booleans()
    | st.none()
    | st.integers()
    | st.floats(-1e3, 1e3)
    | st.sampled_from(["a b c d e f", "one"]),
    lambda inner: st.lists(inner, min_size=1, max_size=4) | st.dictionaries(st.sampled_from("xyz"), inner),
)


def alike(one: Any, other: Any) -> bool:
    """The same form: keys, lengths, types; whole numbers the same but for their order in a list."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and all(type(x) is int for x in one):
        return sorted(one) == sorted(other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, str):
        words, of = other.split(), one.split()
        return set(words) <= set(of) and len(of) // 2 <= len(words) <= len(of) and type(other) is str
    return type(one) is type(other) and (isinstance(one, float) or one == other)


@given(json_values, st.integers(0, 99))
def test_json_is_varied_in_its_form(value: Any, seed: int) -> None:
    body = Request(json.dumps(value).encode(), "application/json", "data")
    other = varied(body, seed)
    assert other is not None
    assert (other.content_type, other.name) == (body.content_type, body.name)
    assert alike(value, other.payload)


def test_numbers_words_and_pictures_become_others() -> None:
    numbers = Request(
        json.dumps({"x": np.arange(9.0).tolist(), "ids": list(range(9))}).encode(), "application/json"
    )
    found = [varied(numbers, seed).payload for seed in (1, 2)]  # type: ignore[union-attr]
    for one in found:
        moved = np.abs(np.array(one["x"]) - np.arange(9.0))
        # By half of a number on average, or of one where it is 0.
        assert (moved > 0).all()
        assert 0.05 < moved[1:].mean() / 4.5 < 1
        assert one["ids"] != list(range(9))
    assert found[0] != found[1]
    words = Request(b"one two three four five six", "text/plain")
    texts = {varied(words, seed).payload for seed in range(20)}  # type: ignore[union-attr]
    assert {len(text.split()) for text in texts} == {3, 4, 5, 6}
    assert varied(Request(b"word", "text/plain"), 1) == Request(b"word", "text/plain")
    assert varied(Request(b"\xff\xfe\x00 no picture"), 1) is None


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "PNG"), ("L", "PNG"), ("P", "GIF"), ("RGB", "BMP")])
@pytest.mark.parametrize("as_text", [False, True])
def test_a_picture_is_moved_and_darker_in_its_own_format(mode: str, kind: str, as_text: bool) -> None:
    body = picture(mode, kind)
    sent = Request(
        json.dumps({"b64": base64.b64encode(body).decode()}).encode() if as_text else body, "x", "data"
    )
    other = varied(sent, 1)
    assert other is not None
    assert (other.content_type, other.name) == ("x", "data")
    made = base64.b64decode(json.loads(other.body)["b64"]) if as_text else other.body
    with Image.open(io.BytesIO(made)) as one, Image.open(io.BytesIO(body)) as of:
        assert (one.format, one.size) == (of.format, of.size)
        before, after = (np.asarray(each.convert("RGB"), float) for each in (of, one))
    assert 0.2 < after.mean() / before.mean() < 1
    if kind != "GIF":  # whose colors are picked anew
        # Of the same pixels, all moved and of one brightness less.
        np.testing.assert_allclose(
            np.sort(after.ravel()), np.sort(before.ravel()) * after.max() / before.max(), atol=2
        )
        assert np.abs(after / after.max() - before / before.max()).mean() > 0.1


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (Answer(["a", "b"], statuses=(None, 200)), ""),
        (Answer(error="it fell", statuses=(500,)), "it fell"),
        (Answer("ab", statuses=(None, None)), "replied with str"),
        (Answer(["a"], statuses=(None, None)), "1 replies to 2"),
        (Answer(["no", "b"], statuses=(None, 404)), "it answered 404: no"),
    ],
)
def test_an_answer_fails_unless_each_request_has_a_reply(answer: Answer, failure: str) -> None:
    assert failure in answer.failure
    assert bool(failure) == bool(answer.failure)


def test_the_context_is_a_workers(tmp_path: Path) -> None:
    (tmp_path / "MAR-INF").mkdir()
    manifest: dict[str, Any] = {"model": {"modelName": "trees", "handler": "h.py", "configFile": "c.yaml"}}
    (tmp_path / "c.yaml").write_text("handler: {bound: 3}")
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    ctx = _host.context_of(tmp_path, batch_size=4)
    assert (ctx.model_name, ctx.manifest, ctx.model_yaml_config) == (
        "trees",
        manifest,
        {"handler": {"bound": 3}},
    )
    told = ctx.system_properties
    assert (told["model_dir"], told["batch_size"], told["gpu_id"]) == (str(tmp_path), 4, None)
    assert told["limit_max_image_pixels"] is True

    def handle(rows: Any, context: Any) -> list[Any]:
        context.metrics.add_counter("requests", 1).update(2)
        context.set_response_header(1, "X-Of", context.get_request_header(1, "content-type"))
        context.set_response_status(202, "later", 0)
        return [rows, [context.get_request_id(i) for i in range(2)]]

    batch = [Request(b"1", "application/json"), Request(b"no", "text/plain", "data")]
    found = _host.ask(handle, ctx, batch)
    assert found.replies == [[{"body": 1}, {"data": "no"}], ["trial-0", "trial-1"]]
    assert (found.headers, found.statuses) == (({}, {"X-Of": "text/plain"}), (202, 200))
    assert _host.ask(handle, ctx, batch, bare=True).replies[0] == [1, "no"]
    assert ctx.request_ids is None, "the context itself is as it was"
    assert _host.ask(lambda *_: 1 / 0, ctx, batch).statuses == (500, 500)


class Process:
    """Stands for one that runs until its ``pid`` is killed, or for ``looks`` looks."""

    def __init__(self, told: Path, *says: str, code: int | None = 0) -> None:
        self.pid, self.stdin, self.returncode = 2**22 + 1, io.BytesIO(), None  # beyond what Linux gives
        self._told, self._says, self._code = told, list(says), code

    def wait(self, timeout: float | None = None) -> None:
        if timeout is None:
            return
        if self._says:
            self._told.write_text(self._says.pop(0))
        else:
            self.returncode = self._code
        if self.returncode is None:
            raise subprocess.TimeoutExpired("it", timeout)


def test_a_trial_is_waited_for_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(np.arange(0, 1e5, 4.0))
    monkeypatch.setattr(_trial.time, "monotonic", lambda: float(next(now)))
    seen: list[tuple[int, int]] = []

    def watch(*says: str, seconds: float = 10.0, code: int | None = 0) -> str:
        process: Any = Process(tmp_path / "done", *says, code=code)
        (tmp_path / "done").unlink(missing_ok=True)
        try:
            return _trial._watch(process, tmp_path / "done", seconds, lambda *told: seen.append(told))
        finally:
            assert process.stdin.closed

    # Each look is 4 s after the last one: what says something new each time is never late.
    assert watch(*(f"{k} 30" for k in range(1, 21))) == " after 20 of 30 samples"
    assert seen == [(k, 30) for k in range(1, 21)]
    assert watch("1 0", "2 0") == ""
    with pytest.raises(
        ModelError, match=r"did not answer within 10 s after 2 of 9 samples; .*--probe-timeout"
    ):
        watch("1 9", *["2 9"] * 9)
    with pytest.raises(ModelError, match="did not load within 600 s;"):
        watch(*[""] * 300)
    watch(*[""] * 100)
    with pytest.raises(ModelError, match="did not load within 900 s;"):
        watch(*[""] * 300, seconds=900.0)
