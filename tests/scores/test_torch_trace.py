"""What makes a torch model's scores is known by the last operator of a run, whatever the kind of file."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest
import scripted
import torch
from torch import Tensor, nn

from calib_serve.scores import traced

D, K = 6, 3
X = torch.rand(4, D, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch deprecates TorchScript
        yield


class Ends(nn.Module):
    """A linear layer and what follows it."""

    def __init__(self, end: Callable[[Tensor], Tensor], columns: int = K) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.end = nn.Linear(D, columns), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.layer(x))


ENDS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nothing": (lambda z: z, "layer"),
    "a temperature and an offset": (lambda z: z / 1.5 + torch.ones(K), "layer"),
    "softmax": (lambda z: z.softmax(dim=1), "Softmax"),
    "log-softmax, another shape": (lambda z: z.log_softmax(dim=1)[:, :, None].squeeze(2), "LogSoftmax"),
    "sigmoid": (lambda z: torch.sigmoid(z).reshape(-1, K), "Sigmoid"),
    "a mean of two softmaxes": (lambda z: (z.softmax(1) + (2 * z).softmax(1)) / 2, ""),
    "relu": (torch.relu, ""),
    "exponentials": (torch.exp, ""),
}


@pytest.mark.parametrize("file", ["module", "script", "program"])
@pytest.mark.parametrize("end", ENDS)
def test_the_last_operator_says_what_scores_are(end: str, file: str) -> None:
    makes, made_by = ENDS[end]
    model: nn.Module = Ends(makes).eval()
    if file == "script":
        model = scripted.trace(model, X)
    elif file == "program":
        model = torch.export.export(model, (X,)).module()
    returned, trace = traced(model, (X,))
    assert trace.made_by(returned) == made_by
    torch.testing.assert_close(returned, Ends(makes).eval()(X))


def test_one_of_several_results_is_asked_for() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            z = x @ torch.ones(D, K)
            return {"logits": z, "probs": z.softmax(1), "given": x}

    returned, trace = traced(Both(), (), {"x": X})
    assert [trace.made_by(returned[name]) for name in returned] == ["layer", "Softmax", ""]


@pytest.mark.server
def test_a_run_does_not_import_torch_s_compiler() -> None:
    """Seconds of import, which torch's dispatch modes bring at their first operator unless told otherwise."""
    code = (
        "import sys, torch; from calib_serve.scores.torch_trace import traced;"
        "traced(torch.nn.Linear(4, 3), (torch.zeros(2, 4),)); sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
