"""What does a person wait for, beside the few lines that one would write instead?

    python benchmarks/waiting.py [--rows 1000000] [--repeats 3]

``evaluate`` of 20,000 samples of ten classes and of ``--rows`` (CSV, npz and Parquet), and with
``--report`` of the former, without and with an artifact, each a process of its own from its start to its
end. Beside each, in turns, a script that reads the same file with pandas or numpy and prints scikit-learn's
accuracy, log loss and Brier score and an ECE in numpy, without any interval. Then a forest on digits in
Python, fitted, measured with an interval, drawn and written to ONNX with parity, beside the same by
scikit-learn, skl2onnx, onnxruntime and matplotlib, with an ECE that is drawn 200 times. A number is
processor time over the script's, of all repeats the least of both: a busy machine takes longer and measures
the same.

Writes benchmarks/results/waiting.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import peers

SMALL = 20_000
CLASSES = 10
SCRIPT = """
import sys
import numpy as np
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
path = sys.argv[1]
if path.endswith(".npz"):
    arrays = np.load(path)
    p, y = arrays["probs"], arrays["labels"]
else:
    import pandas as pd
    table = pd.read_csv(path) if path.endswith(".csv") else pd.read_parquet(path)
    p, y = table[[name for name in table if name != "label"]].to_numpy(), table["label"].to_numpy()
p = p / p.sum(axis=1, keepdims=True)
confidence, right = p.max(axis=1), p.argmax(axis=1) == y
place = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
ece = np.abs(np.bincount(place, confidence - right, 15)).sum() / len(y)
classes = np.arange(p.shape[1])
print(accuracy_score(y, p.argmax(axis=1)), log_loss(y, p, labels=classes))
print(brier_score_loss(y, p, labels=classes), ece)
"""

FOREST = """
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.5, random_state=0)
"""
OURS = """
from calib_serve import evaluate
from calib_serve.integrations.sklearn import CalibratedClassifier
from calib_serve.report import ReliabilityDisplay
model = CalibratedClassifier(RandomForestClassifier(random_state=0)).fit(X, y)
p = model.predict_proba(X_test)
print(evaluate(p, y_test).ece)
ReliabilityDisplay.from_predictions(y_test, p)
pyplot.savefig("ours.png")
model.to_onnx("ours.onnx", X_test)
"""
THEIRS = """
import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from sklearn.calibration import CalibratedClassifierCV
model = CalibratedClassifierCV(RandomForestClassifier(random_state=0), ensemble=False).fit(X, y)
p = model.predict_proba(X_test)
confidence, right = p.max(axis=1), p.argmax(axis=1) == y_test
place = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
def ece(rows):
    return np.abs(np.bincount(place[rows], (confidence - right)[rows], 15)).sum() / len(rows)
rng = np.random.default_rng(0)
drawn = [ece(rng.integers(0, len(y_test), len(y_test))) for _ in range(200)]
print(ece(np.arange(len(y_test))), np.percentile(drawn, [2.5, 97.5]))
count = np.maximum(np.bincount(place, minlength=15), 1)
pyplot.plot([0, 1], [0, 1])
pyplot.bar(np.bincount(place, confidence, 15) / count, np.bincount(place, right, 15) / count, 0.05)
pyplot.savefig("theirs.png")
written = to_onnx(model, X_test[:1].astype(np.float32), options={"zipmap": False}).SerializeToString()
session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
(found,) = session.run(["probabilities"], {session.get_inputs()[0].name: X_test.astype(np.float32)})
assert np.abs(found - p).max() < 1e-4
open("theirs.onnx", "wb").write(written)
"""


def written(folder: Path, rows: int) -> dict[str, Path]:
    """Files of overconfident probabilities and labels, by format."""
    import pandas as pd

    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal((rows, CLASSES), dtype=np.float32)
    y = (z / 1.5 + rng.gumbel(size=z.shape)).argmax(axis=1)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    paths = {kind: folder / f"{rows}.{kind}" for kind in ("npz", "csv", "parquet")}
    np.savez(paths["npz"], probs=p, labels=y)
    table = pd.DataFrame(p, columns=[f"p{k}" for k in range(CLASSES)]).assign(label=y)
    table.to_csv(paths["csv"], index=False)
    table.to_parquet(paths["parquet"])
    return paths


def run(arguments: list[str], folder: Path) -> tuple[float, int]:
    """Processor seconds and the largest resident bytes of a process of its own."""
    child = os.fork()
    if not child:
        with Path(os.devnull).open("w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            os.chdir(folder)
            os.execve(sys.executable, [sys.executable, *arguments], peers.compiled(folder / "compiled"))
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit(f"{' '.join(arguments)} failed")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    asked = peers.arguments(parser, rows=100_000, repeats=1)
    ours = ["-m", "calib_serve"]
    result = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "script.py"
        script.write_text(SCRIPT)
        small, large = written(folder, SMALL), written(folder, asked.rows)
        artifact = folder / "artifact"
        fit = ["fit", "--method", "temperature", "--data", str(small["npz"]), "--out", str(artifact)]
        run([*ours, *fit], folder)
        told = ["--artifact", str(artifact)]
        forests = folder / "forest.py", folder / "forest_peer.py"
        for path, text in zip(forests, (OURS, THEIRS), strict=True):
            path.write_text(FOREST + text)
        verbs: dict[str, tuple[list[str], Path]] = {
            **{f"evaluate, {kind}": (["evaluate"], small[kind]) for kind in ("csv", "npz")},
            **{f"evaluate, {kind}, rows": (["evaluate"], large[kind]) for kind in ("csv", "parquet")},
            "report": (["evaluate", "--report", "r.html"], small["npz"]),
            "report, artifact": (["evaluate", "--report", "r.html", *told], small["npz"]),
        }
        rows = {
            title: ([*ours, verb, str(path), *options], [str(script), str(path)])
            for title, ((verb, *options), path) in verbs.items()
        }
        rows["forest"] = ([str(forests[0])], [str(forests[1])])
        for title, commands in rows.items():
            turns = [[run(command, folder) for command in commands] for _ in range(asked.repeats + 1)]
            taken = turns[1:]  # the first compiles what it imports
            (seconds, memory), (peer, peer_memory) = (
                map(min, zip(*one, strict=True)) for one in zip(*taken, strict=True)
            )
            result[title] = {
                "seconds": seconds,
                "script_seconds": peer,
                "times_script": seconds / peer,
                "memory": memory,
                "script_memory": peer_memory,
            }
            print(f"{title}: {seconds:.2f} s, {seconds / peer:.2f} times the script's", flush=True)
    print(peers.save("waiting", {"rows": asked.rows, "verbs": result}, asked))


if __name__ == "__main__":
    main()
