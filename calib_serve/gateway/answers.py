"""Completions of language models that answer with a class: what the server is asked, what the client gets.

A completion gets one more entry, ``calibration``, and its receipt in a header. Log-probabilities that the
client did not ask for are asked for, and taken out of the reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from calib_serve.core.errors import InputError
from calib_serve.core.names import named_once
from calib_serve.gateway.calibration import Calibration
from calib_serve.gateway.http import Headers, at_most_one
from calib_serve.gateway.rest import decompress
from calib_serve.receipts import Tag
from calib_serve.scores import LabelWords

RECEIPT = b"x-calib-receipt"
_TOP_CHAT, _TOP_TEXT = 20, 5  # the most that OpenAI's interface allows
_NOT_ONE_ANSWER = ("stream", "tools", "functions", "best_of", "echo")


class Question(NamedTuple):
    """A client's request for a completion of ``model``.

    Args:
        model: Name of the model.
        document: Parsed JSON of the request.
        chat: Whether it is a chat's.
    """

    model: str
    document: dict[str, Any]
    chat: bool

    @classmethod
    def read(cls, held: bytes, headers: Headers, path: str, most: int) -> Question:
        """Read a request's body of up to ``most`` bytes; InputError where servers may read it in two ways."""
        body = decompress(held, at_most_one(headers, b"content-encoding").lower(), most=most)
        try:
            document = json.loads(body, object_pairs_hook=partial(named_once, what="an entry"))
        except (ValueError, RecursionError) as error:
            raise InputError(f"the request is no JSON: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("model"), str):
            raise InputError('the request is a JSON object that names its "model"')
        return cls(document["model"], document, path.rstrip("/").endswith("/chat/completions"))

    def refusal(self, words: LabelWords) -> str:
        """The reason why its answer is not calibrated, "" where it is."""
        if asked := next((name for name in _NOT_ONE_ANSWER if self.document.get(name)), None):
            return f"an answer with {asked} is not calibrated"
        if words.form != "votes" and self.document.get("n") not in (None, 1):
            return "several answers are not calibrated, unless they are votes"
        prompt = self.document.get("prompt")
        if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
            return "answers to several prompts are not calibrated"
        return ""

    @property
    def _asked(self) -> int | None:
        """How many log-probabilities the client asked for; None for none at all."""
        wants = self.document.get("logprobs")
        if wants is None or wants is False:
            return None
        own = self.document.get("top_logprobs") if self.chat else wants
        return max(own, 0) if type(own) is int else 0

    def sent(self, words: LabelWords) -> bytes:
        """The body to send to the server: the client's, with log-probabilities."""
        more: dict[str, Any] = {}
        if words.form == "logprobs":
            top = max(self._asked or 0, _TOP_CHAT if self.chat else _TOP_TEXT)
            more = {"logprobs": True, "top_logprobs": top} if self.chat else {"logprobs": top}
        return json.dumps({**self.document, **more}).encode()

    def answered(
        self, content: bytes, _: Headers, words: LabelWords, calibration: Calibration, about: Tag
    ) -> tuple[bytes, Headers]:
        """The client's reply to a server's response, and its headers; InputError where it cannot be read."""
        response = json.loads(content)
        answer = words.read(response)
        probs = answer.probs
        if np.isnan(probs).any():
            raise InputError("the answer is none of the classes")
        values, added = calibration(probs[None], about)
        classes = dict(zip(words.names, values[0].tolist(), strict=True))
        beside: dict[str, Any] = {"outside": answer.outside}
        beside |= {tensor.name: _plain(tensor.values[0]) for tensor in added}
        receipt = beside.get("receipt", "")
        made = self._as_asked(response) if words.form == "logprobs" else response
        body = json.dumps({**made, "calibration": {"classes": classes, **beside}}).encode()
        return body, [(RECEIPT, receipt.encode())] if receipt else []

    def _as_asked(self, response: dict[str, Any]) -> dict[str, Any]:
        """The response with as many log-probabilities as the client asked for."""
        choices = [dict(one) for one in response["choices"]]
        for choice in choices:
            held = choice.get("logprobs")
            if self._asked is None:
                choice["logprobs"] = None
            elif isinstance(held, Mapping):
                choice["logprobs"] = _shortened(held, self._asked)
        return {**response, "choices": choices}


def _shortened(held: Mapping[str, Any], most: int) -> dict[str, Any]:
    found = dict(held)
    if held.get("content"):
        entries = held["content"]
        found["content"] = [{**e, "top_logprobs": (e.get("top_logprobs") or [])[:most]} for e in entries]
    if held.get("top_logprobs"):
        found["top_logprobs"] = [top and dict([*top.items()][:most]) for top in held["top_logprobs"]]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
