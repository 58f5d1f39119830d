"""The example of training-time losses runs as it is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_with_losses.py"


def test_every_loss_trains_and_is_calibrated_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "runs.json"
    command = [sys.executable, str(EXAMPLE), "--seeds", "1", "--epochs", "8", "--json", str(out)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    runs = json.loads(out.read_text())["runs"]
    assert len(runs) == 10
    for name, (run,) in runs.items():
        assert name in printed
        assert run["accuracy"] > 0.7, name
        assert run["optimal ECE"] <= min(run["ECE"], run["ECE after TS"]) + 0.01, name
