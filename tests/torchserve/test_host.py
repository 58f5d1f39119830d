"""Requests that a handler is tried with, and how long it is waited for."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from calib_serve.core.errors import InputError, ModelError
from calib_serve.torchserve.seam import _host, _trial
from calib_serve.torchserve.seam._host import Answer
from calib_serve.torchserve.seam._requests import Request, alternatives, made_up

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
    ("shape", "sizes"), [([5], (5,)), ([-1, None, 4], (1, 1, 4)), ([3, 8, 6], (3, 8, 6))]
)
def test_made_up_requests_are_of_the_shape_and_others_by_seed(shape: Any, sizes: tuple[int, ...]) -> None:
    made, other = made_up(shape), made_up(shape, 1)
    assert made == made_up(shape)
    assert all(one.body != two.body for one, two in zip(made, other, strict=True))
    array, named, instances = (one.payload for one in made)
    assert np.shape(array) == sizes
    assert (named, instances) == ({"data": array}, {"instances": [array]})
    assert made_up(None) == ()


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
        ModelError, match=r"did not answer within 10 s after 2 of 9 samples; .*probe_timeout="
    ):
        watch("1 9", *["2 9"] * 9)
    with pytest.raises(ModelError, match="did not load within 600 s;"):
        watch(*[""] * 300)
    watch(*[""] * 100)
    with pytest.raises(ModelError, match="did not load within 900 s;"):
        watch(*[""] * 300, seconds=900.0)


def test_a_handler_that_ends_without_a_result_is_refused_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any, stdout: Any, **__: Any) -> Process:
        stdout.write(b"loading\nout of memory\n")
        return Process(tmp_path / "done", code=137)

    monkeypatch.setattr(_trial.subprocess, "Popen", started)
    with pytest.raises(ModelError, match=r"ended \(code 137\); its last words:\n  loading\n  out of memory$"):
        _trial.run_trial(tmp_path, "look", {}, seconds=10.0)
