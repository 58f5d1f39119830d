"""What the gateway adds before a server of language models: processor time of one completion.

llama.cpp's own server before a small model, asked in turns directly and through the gateway, which asks for
20 log-probabilities, calibrates, signs and counts. Beside it, the share of a completion that takes 50 ms.
Prints a line and writes benchmarks/results/answers.json.

    python benchmarks/answers.py [--answers 1000]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import peers
import psutil

sys.path.insert(0, str(peers.ROOT / "tests" / "support"))
from gateways import gateway
from language_model import language_model

from calib_serve import Artifact
from calib_serve.artifact import LogitMap

COMPLETION = 0.05  # seconds of a short answer of a deployed model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=1000)
    answers = parser.parse_args().answers
    with tempfile.TemporaryDirectory() as made, language_model(Path(made)) as upstream:
        folder = Path(made)
        (folder / "words.yaml").write_text("classes:\n  good: [good]\n  bad: [bad]\n  spam: [spam, ham]\n")
        names = ("good", "bad", "spam")
        facts = {"model": {"outputs": "probabilities"}, "class_names": names}
        Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3, **facts).save(
            folder / "artifact"
        )
        output = f"judge=answers:{folder / 'words.yaml'}"
        models = [f"judge={folder / 'artifact'}"]
        with gateway(folder, upstream, "--output", output, models=models) as running:
            process = psutil.Process(running.process.pid)
            body = {"model": "judge", "max_tokens": 1, "messages": [{"role": "user", "content": "good bad"}]}
            taken: dict[str, list[float]] = {upstream: [], running.http: []}
            with httpx.Client(timeout=60) as client:
                used = 0.0
                for url in [*taken] * answers:
                    before = process.cpu_times()
                    begun = time.perf_counter()
                    answer = client.post(f"{url}/v1/chat/completions", json=body)
                    taken[url].append(time.perf_counter() - begun)
                    assert ("calibration" in answer.json()) == (url == running.http)
                    if url == running.http:
                        after = process.cpu_times()
                        used += after.user + after.system - before.user - before.system
    wall = [float(np.median(one)) for one in taken.values()]
    found = {
        "answers": answers,
        "processor_ms": round(1e3 * used / answers, 3),
        "added_ms": round(1e3 * (wall[1] - wall[0]), 3),
        "share_of_50_ms": round(used / answers / COMPLETION, 4),
    }
    print(found)
    (peers.ROOT / "benchmarks" / "results" / "answers.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
