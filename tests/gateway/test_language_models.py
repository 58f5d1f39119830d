"""The gateway before llama.cpp's own server: its answers with classes, receipts and late labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from gateways import Running, gateway
from language_model import language_model
from live_server import until

from calib_serve import Artifact, Keyring, calibrate
from calib_serve.scores import LabelWords, Scores
from calib_serve.scores.answers import read_answers

pytestmark = pytest.mark.server

WORDS = "classes:\n  good: [good]\n  bad: [bad]\n  spam: [spam, ham]\n"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def question(seed: int, **more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    text = " ".join(rng.choice(["good", "bad", "spam", "ham", "movie", "plot"], 5))
    messages = [{"role": "user", "content": text}]
    return {"model": "judge", "messages": messages, "max_tokens": 1, "cache_prompt": False, **more}


@dataclass
class Served:
    folder: Path
    upstream: str
    running: Running
    words: LabelWords
    artifact: Artifact

    def ask(self, body: dict[str, Any], path: str = CHAT, **more: Any) -> httpx.Response:
        return self.running.client.post(self.running.http + path, json=body, **more)

    def calibrated(self, response: dict[str, Any]) -> list[float]:
        """The artifact's probabilities of the server's own answer."""
        probs = self.words.read(response).probs[None]
        return self.artifact.of_logits(Scores.of(probs, outputs="probabilities").logits)[0].tolist()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("answers")
    (folder / "words.yaml").write_text(WORDS)
    words = LabelWords.load(folder / "words.yaml")
    with language_model(folder) as upstream:
        rng, rows = np.random.default_rng(0), []
        for n in range(150):
            body = question(n, logprobs=True, top_logprobs=20)
            row = {"response": httpx.post(upstream + CHAT, json=body, timeout=60).json()}
            p = read_answers([row], words)[0].probs
            rows.append({**row, "label": words.names[rng.choice(3, p=p**0.5 / (p**0.5).sum())]})
        (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
        scores = Scores.read(folder / "answers.jsonl", outputs=f"answers:{folder / 'words.yaml'}")
        found = calibrate(scores, method="temperature")
        found.save(folder / "artifact")
        output = f"judge=answers:{folder / 'words.yaml'}"
        with gateway(
            folder, upstream, "--output", output, models=[f"judge:prompt-1={folder / 'artifact'}"]
        ) as running:
            yield Served(folder, upstream, running, words, Artifact.load(folder / "artifact"))


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_an_answer_gets_its_classes_and_a_receipt(served: Served, path: str) -> None:
    body = question(1000, temperature=0)
    if path == TEXT:
        body["prompt"] = body.pop("messages")[0]["content"]
    asked = {"logprobs": True, "top_logprobs": 20} if path == CHAT else {"logprobs": 5}
    own = httpx.post(served.upstream + path, json={**body, **asked}).json()
    found = served.ask(body, path)
    said = found.json()["calibration"]
    assert list(said["classes"]) == ["good", "bad", "spam"]
    assert list(said["classes"].values()) == pytest.approx(served.calibrated(own), abs=1e-6)
    assert said["confidence"] == pytest.approx(max(said["classes"].values()))
    receipt = Keyring.load(served.folder / "keys.json").verify(found.headers["x-calib-receipt"])
    assert served.words.names[receipt.predicted] == max(said["classes"], key=said["classes"].__getitem__)
    assert found.json()["choices"][0]["logprobs"] is None
    kept = found.json()["choices"][0]
    kept.pop("logprobs")
    own["choices"][0].pop("logprobs")
    assert kept == own["choices"][0]


def test_a_client_gets_as_many_log_probabilities_as_it_asked_for(served: Served) -> None:
    found = served.ask(question(1001, logprobs=True, top_logprobs=2)).json()
    assert len(found["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert "calibration" in found


def test_its_label_is_counted_once(served: Served) -> None:
    receipt = served.ask(question(1002)).json()["calibration"]["receipt"]
    for _ in range(2):
        answer = served.running.client.post(
            f"{served.running.http}/v1/labels", json={"items": [{"receipt": receipt, "label": "spam"}]}
        )
        assert answer.status_code == 200, answer.text
    until(lambda: served.running.counted("calib_feedback_accepted_total") > 0, seconds=30)
    assert served.running.counted("calib_feedback_accepted_total") == 1


@pytest.mark.parametrize(
    "more",
    [{"stream": True}, {"n": 2}, {"tools": [{"type": "function", "function": {"name": "f"}}]}],
    ids=["stream", "several", "tools"],
)
def test_what_is_no_single_answer_passes_and_is_counted(served: Served, more: dict[str, Any]) -> None:
    before = served.running.counted("calib_uncalibrated_total")
    body = question(1003, **more)
    found, own = served.ask(body), httpx.post(served.upstream + CHAT, json=body, timeout=60)
    assert found.status_code == own.status_code
    assert "not calibrated" in found.headers["x-calib-uncalibrated"]
    assert "calibration" not in found.text
    assert served.running.counted("calib_uncalibrated_total") == before + 1


def test_another_model_passes_unchanged(served: Served) -> None:
    found = served.ask(question(1005, model="other")).json()
    assert "calibration" not in found
    assert found["choices"]


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 400), (b"[]", 400), (b'{"model": 1}', 400), (b'{"model": "judge", "model": "other"}', 400)],
)
def test_a_request_that_may_be_read_in_two_ways_is_refused(
    served: Served, content: bytes, status: int
) -> None:
    found = served.running.client.post(served.running.http + CHAT, content=content)
    assert found.status_code == status


@pytest.mark.parametrize("path", ["/completion", "/v1/responses", "/v1/embeddings", "/infill"])
def test_no_other_address_gives_its_answers(served: Served, path: str) -> None:
    assert served.ask(question(1006), path).status_code == 404
    assert served.running.client.get(served.running.http + CHAT).status_code == 404
