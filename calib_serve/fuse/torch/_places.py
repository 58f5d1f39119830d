"""The tail of a model of tokens or pixels: rows (N, K) for the steps, and their results in place."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,override"
# As in the tails: torch.jit.script reads annotations as they stand.
from typing import Any, Dict  # noqa: UP035 - TorchScript knows this Dict

from torch import Tensor, nn

from calib_serve.fuse.torch._tails import CalibrateScores, Everything


class InPlaces(nn.Module):
    """A tail of one tensor, on scores (n, ..., K), or (n, K, ...) where ``axis`` is 1."""

    def __init__(self, inner: CalibrateScores, axis: int) -> None:
        super().__init__()
        self.inner = inner
        self.first = axis == 1

    def rows(self, scores: Tensor) -> Tensor:
        """Lay the classes last, and the places one after the other."""
        last = scores.movedim(1, -1) if self.first else scores
        rows: Tensor = last.flatten(0, -2)
        return rows

    def back(self, made: Tensor, scores: Tensor) -> Tensor:
        """Give rows, or one value a row, the places of ``scores``."""
        last = scores.movedim(1, -1) if self.first else scores
        whole: Tensor = made.unflatten(0, list(last.shape[:-1]))
        return whole.movedim(-1, 1) if self.first and made.dim() > 1 else whole

    def forward(self, scores: Tensor) -> Tensor:
        """Map each place as a row."""
        made: Tensor = self.inner(self.rows(scores))
        return self.back(made, scores)


class NamedInPlaces(InPlaces):
    """A tail of tensors by name."""

    def forward(self, scores: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        """Map each place as a row, to tensors by name."""
        found: Dict[str, Tensor] = self.inner(self.rows(scores))  # noqa: UP006
        return {name: self.back(made, scores) for name, made in found.items()}


def in_places(tail: CalibrateScores, axis: int | None) -> Any:
    """Wrap a tail for scores with their classes on ``axis``; None: scores (n, K), as the tail takes them."""
    if axis is None:
        return tail
    return (NamedInPlaces if isinstance(tail, Everything) else InPlaces)(tail, axis)
