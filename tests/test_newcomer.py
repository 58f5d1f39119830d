"""A newcomer's way: README.md alone, one's own model and data, to a served, watched and reported model.

Every command and program of the README is run as it stands, in order, in an empty folder; of what
cannot be so, only that is changed: free ports, and the receipt that the server really gave.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
}


def indented() -> list[str]:
    """The README's commands, continued lines joined."""
    lines = [line[4:] for line in README.splitlines() if line.startswith("    ")]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def commands(program: str) -> list[str]:
    return [line for line in indented() if line.startswith(f"{program} ")]


def run(command: list[str], folder: Path, **more: str) -> str:
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env={**ENVIRONMENT, **more},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def own_model(folder: Path) -> np.ndarray:
    """What a newcomer has: a model of theirs in two formats, data it was not trained on, and an image."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[:300])), torch.from_numpy(y[:300]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.jit.trace(model.eval(), torch.zeros(1, 1, 8, 8)).save(str(folder / "model.pt"))
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, 8, 8),),
        folder / "model.onnx",
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "n"}, "logits": {0: "n"}},
        dynamo=False,
    )
    with torch.inference_mode():
        z = model(torch.from_numpy(x)).numpy()
    for name, rows in (("calibration", slice(300, 1000)), ("test", slice(1000, None))):
        np.savez(folder / f"{name}.npz", inputs=x[rows], logits=z[rows], labels=y[rows])
    Image.fromarray((x[1500, 0] * 255).astype(np.uint8)).save(folder / "image.png")
    return y


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After the README's commands up to the server."""
    place = tmp_path_factory.mktemp("newcomer")
    with np.errstate(all="ignore"):
        own_model(place)
    for program in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        run([sys.executable, "-c", program], place)
    for line in commands("calib-serve"):
        if not line.startswith("calib-serve serve"):
            run(["bash", "-euc", line], place)
    return place


pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)


def test_the_readmes_commands_make_what_they_say(folder: Path) -> None:
    made = {p.name for p in folder.iterdir()}
    assert {"artifact", "calibrated.onnx", "model_store", "report.html"} <= made
    assert "calibration report" in (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[dict[str, str]]:
    """The README's server on free ports: where it listens, as it prints it."""
    (line,) = [line for line in commands("calib-serve") if line.startswith("calib-serve serve")]
    process = subprocess.Popen(
        [*line.split(), "--free-ports"], cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        places: dict[str, str] = {}
        for printed in process.stdout:
            name, _, where = printed.strip().partition(" ")
            places[name] = where.split("(")[0].strip()
            if printed.startswith("Ctrl-C"):
                break
        yield places
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)


@pytest.mark.server
def test_the_served_model_answers_counts_and_is_watched(folder: Path, server: dict[str, str]) -> None:
    if shutil.which("curl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("curl is missing, and CI must not skip")
        pytest.skip("curl is not installed")
    token = json.loads((folder / server["tokens"]).read_text())["inference"]["key"]
    address = server["predict"].removesuffix("/predictions/MODEL").removeprefix("http://")
    predict, feedback = (line.replace("localhost:8080", address) for line in commands("curl"))
    answer = json.loads(run(["bash", "-euc", f"{predict} -s"], folder, TOKEN=token))
    assert 0 < answer["confidence"] <= 1
    labelled = re.sub(r'"receipt": "[^"]*"', f'"receipt": "{answer["receipt"]}"', f"{feedback} -s")
    for expected in ("accepted", "duplicate"):
        assert expected in run(["bash", "-euc", labelled], folder, TOKEN=token)
    metrics = httpx.get(server["metrics"], timeout=10, trust_env=False).text
    assert "calib_feedback_total" in metrics
