"""Models as libraries make them, with random weights: calibrated with proof, or refused with a sentence."""

from __future__ import annotations

import warnings
from types import ModuleType

import numpy as np
import pytest
import scripted
import torch
from fuse_artifacts import artifact, head
from libraries import library, torchvision_here
from torch import nn

from calib_serve.artifact import LogitMap
from calib_serve.core.errors import FuseError
from calib_serve.fuse import calibrated, fuse_torch

K = 7
TEMPERATURE = artifact(LogitMap.temperature(2.0), classes=K, model={"outputs": "logits"})


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning, UserWarning):  # of the libraries' own
            warnings.simplefilter("ignore", kind)
        yield


def hugging_face() -> ModuleType:
    torchvision_here()  # which it imports
    return library("transformers")


def bert(**options) -> nn.Module:
    transformers = hugging_face()
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=50, num_labels=K, **small, **options)
    return transformers.BertForSequenceClassification(config).eval()


def words() -> dict[str, torch.Tensor]:
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[:, 6:] = 0
    return {"input_ids": torch.randint(0, 50, (3, 9)), "attention_mask": mask}


MODELS = {"mapping": lambda: bert(output_hidden_states=True), "tuple": lambda: bert(return_dict=False)}


def raw(model: nn.Module, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    returned = model(**inputs)
    return (returned["logits"] if isinstance(returned, dict) else returned[0]).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_a_librarys_model_is_calibrated(name, tmp_path):
    model, inputs = MODELS[name](), words()
    expected = TEMPERATURE.of_logits(raw(model, inputs))
    whole = calibrated(model, TEMPERATURE, example=inputs)
    np.testing.assert_allclose(whole(**inputs), expected, atol=1e-5)
    torch.export.save(torch.export.export(model, (), inputs), tmp_path / "model.pt2")
    report = fuse_torch(tmp_path / "model.pt2", TEMPERATURE, tmp_path / "out.pt2", unproven=True)
    assert report.max_abs_diff <= report.tolerance
    out = torch.export.load(tmp_path / "out.pt2").module()
    np.testing.assert_allclose(out(**inputs), expected, atol=1e-5)


def test_a_head_goes_into_a_hugging_face_model():
    model, inputs = bert(), words()
    step = artifact(head(16, K, 2, np.random.default_rng(0)), LogitMap.temperature(2.0), classes=K)
    assert calibrated(model, step, example=inputs)(**inputs).shape == (3, K)


def test_a_dynamically_quantised_model_is_calibrated_but_takes_no_head(tmp_path):
    model, x = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, K)).eval(), torch.randn(4, 5)
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    got = calibrated(small, TEMPERATURE, example=x)(x)
    np.testing.assert_allclose(got, TEMPERATURE.of_logits(small(x).numpy()), atol=1e-6)
    with pytest.raises(FuseError, match="no linear layer"):
        calibrated(small, artifact(head(8, K, 1, np.random.default_rng(0)), classes=K), example=x)
    scripted.script(small).save(str(tmp_path / "model.pt"))
    with scripted.told():
        fuse_torch(
            tmp_path / "model.pt",
            TEMPERATURE,
            tmp_path / "out.pt",
            inputs={"input": x.numpy()},
            unproven=True,
        )
    np.testing.assert_allclose(scripted.load(tmp_path / "out.pt")(x), got, atol=1e-6)


@pytest.mark.nightly
def test_the_result_compiles_ahead_of_time(tmp_path):
    model, x = nn.Linear(5, K).eval(), torch.randn(4, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(program, tmp_path / "model.pt2")
    fuse_torch(tmp_path / "model.pt2", TEMPERATURE, tmp_path / "out.pt2", unproven=True)
    fused = torch.export.load(tmp_path / "out.pt2")
    path = torch._inductor.aoti_compile_and_package(fused, package_path=str(tmp_path / "compiled.pt2"))
    got = torch._inductor.aoti_load_package(path)(x)
    np.testing.assert_allclose(got, TEMPERATURE.of_logits(model(x).numpy()), atol=1e-5)
