"""TorchScript: what a scripted module takes, and a calibration around it."""

from __future__ import annotations

from pathlib import Path

import pytest
import scripted
import torch
from torch import Tensor, nn

from calib_serve.core.errors import ModelError
from calib_serve.models import (
    is_scripted,
    is_torchscript,
    load_torchscript,
    save_torchscript,
    scripted_around,
    scripted_inputs,
)


class Scaled(nn.Module):
    """Scores and something else, of two inputs and a number."""

    def forward(self, x: Tensor, mask: Tensor, scale: float = 2.0) -> dict[str, Tensor]:
        return {"scores": x * scale + mask, "other": x}


class Parts(nn.Module):
    """A model with a step before, and two behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.model, self.head, self.tail = Plus(1.0), Scaled(), Plus(10.0), Plus(100.0)


class Plus(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return x + self.value


def test_inputs_are_named_in_order_and_those_that_are_needed() -> None:
    model = scripted.script(Scaled())
    assert scripted_inputs(model) == ["x", "mask", "scale"]
    assert scripted_inputs(model, needed=True) == ["x", "mask"]
    assert (is_scripted(model), is_scripted(Scaled())) == (True, False)


@pytest.mark.parametrize(("shifts", "first"), [(True, 2.0), (False, 1.0)])
def test_the_steps_are_around_the_model_and_its_signature_stays(shifts: bool, first: float) -> None:
    parts = Parts()
    parts.model = scripted.script(parts.model)
    whole = scripted_around(parts, ("scores",), shifts=shifts)
    assert scripted_inputs(whole) == ["x", "mask", "scale"]
    x, mask = torch.ones(2, 3), torch.full((2, 3), 0.5)
    assert whole(x, mask).tolist() == (2 * first + mask + 110).tolist()
    assert whole(x, mask, 3.0).tolist() == (3 * first + mask + 110).tolist()


def test_a_file_is_known_by_its_code_and_keeps_what_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "net.bin"
    save_torchscript(Plus(1.0), path, {"calib_serve": "told"})
    assert is_torchscript(path)
    beside = {"calib_serve": ""}
    assert load_torchscript(path, extra=beside)(torch.zeros(1)).item() == 1
    assert beside["calib_serve"] in (b"told", "told")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "weights.pt")
    (tmp_path / "text.pt").write_text("no archive")
    for name in ("weights.pt", "text.pt"):
        assert not is_torchscript(tmp_path / name)
        with pytest.raises(ModelError, match="cannot load the TorchScript file"):
            load_torchscript(tmp_path / name)
