"""The kinds of projects: their files, what they need, and what is typed first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["KINDS", "Kind"]

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Kind:
    """``templates``: what each file of the project is made of; ``first``: three commands."""

    extras: tuple[str, ...]
    templates: dict[str, str]
    first: tuple[str, str, str]

    def files(self) -> dict[str, str]:
        """The text of each file."""
        return {name: (_TEMPLATES / where).read_text("utf-8") for name, where in self.templates.items()}


# Programs lie here as .py.txt: nobody is to import or check them as parts of this package.
_ALWAYS = {".gitignore": "common/gitignore", "client.py": "common/client.py.txt"}
_ONNX = {"serve_onnx.py": "common/serve_onnx.py.txt", "loader.py": "common/loader.py.txt"}

KINDS: dict[str, Kind] = {
    "torch": Kind(
        extras=("torch", "onnx", "watch", "report"),
        templates={
            "README.md": "torch/README.md",
            "train.py": "torch/train.py.txt",
            **_ONNX,
            **_ALWAYS,
        },
        first=(
            "python train.py",
            "calib-serve fit loader.py:batches --model model.pt2 --split cal --test-split test -o artifact",
            "calib-serve fuse onnx model.onnx artifact -o calibrated.onnx --returns probabilities",
        ),
    ),
    "sklearn": Kind(
        extras=("sklearn", "watch", "report"),
        templates={
            "README.md": "sklearn/README.md",
            "train.py": "sklearn/train.py.txt",
            **_ONNX,
            **_ALWAYS,
        },
        first=(
            "python train.py",
            "calib-serve evaluate after.npz",
            "calib-serve report before.npz --artifact artifact -o report.html",
        ),
    ),
    "logits": Kind(
        extras=("sklearn", "watch", "report"),
        templates={
            "README.md": "logits/README.md",
            "scores.py": "logits/scores.py.txt",
            "loader.py": "logits/loader.py.txt",
            "serve.py": "logits/serve.py.txt",
            **_ALWAYS,
        },
        first=(
            "python scores.py",
            "calib-serve evaluate logits.npz --split test",
            "calib-serve fit logits.npz --split cal --test-split test -o artifact",
        ),
    ),
}
"""By what is brought: a torch model, a classifier of scikit-learn, or logits of whatever made them."""
