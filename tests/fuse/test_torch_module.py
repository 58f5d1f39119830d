"""A calibrated torch module is the artifact, whatever is then done to the module; decisions beside it."""

from __future__ import annotations

import copy
import io
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scripted
import torch
from command_line import invoke
from deciding import SCORES, deciding
from fuse_artifacts import KINDS, artifact, head, output_steps
from gpus import needs_gpu_of_torch
from sizes import sized
from torch import nn

from calib_serve import Artifact
from calib_serve.artifact import Abstain, InputShift, LogitMap
from calib_serve.core.bins import bin_index
from calib_serve.core.errors import FuseError, InputError
from calib_serve.fuse import calibrated, fuse_torch
from calib_serve.fuse._decision_parity import check_decisions
from calib_serve.scores import softmax

K = 4
ALL = ["logits", "probabilities", "confidence", "predicted", "bin"]
IMAGES = {"x": np.random.default_rng(0).normal(size=(5, 3, 8, 8))}


class Net(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(6, K, bias=bias)

    def features(self, x):
        return self.drop(torch.relu(self.conv(x)).mean((2, 3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.drop(torch.relu(self.conv(x)).mean((2, 3))))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def loaded(model: nn.Module) -> nn.Module:
    """The model through a TorchScript file."""
    file = io.BytesIO()
    scripted.save(scripted.script(model), file)
    file.seek(0)
    return scripted.load(file)


SOURCES = {
    "eager": lambda model, x: model,
    "loaded": lambda model, x: loaded(model),
    "traced": scripted.trace,
}
WAYS = {
    "as it is": lambda model, x: model,
    "scripted": lambda model, x: scripted.script(model),
    "traced": scripted.trace,
    "frozen": lambda model, x: scripted.freeze(scripted.script(model)),
}


def fitted(kind: str, *, shift: bool = False, layers: int = 0) -> Artifact:
    rng = np.random.default_rng(0)
    steps = [InputShift(0.2 * rng.normal(size=(3, 8, 8)), -1.5, 1.5)] if shift else []
    steps += [head(6, K, layers, rng)] if layers else []
    return artifact(*steps, *output_steps(kind, K, rng), classes=K)


def reference(model: Net, step: Artifact, x: torch.Tensor) -> np.ndarray:
    shifted = x if step.input_shift is None else torch.from_numpy(step.input_shift(x.numpy()))
    if step.head is not None:
        return step.of_logits(step.head(model.features(shifted).numpy().astype("f8")))
    return step.of_logits(model(shifted).numpy())


# Every kind twice; what a module is made of, and what is done to it, take turns.
TURNS = [([*SOURCES][n % 3], [*WAYS][n % 4], KINDS[n // 2]) for n in range(2 * len(KINDS))]


@pytest.mark.parametrize(("source", "way", "kind"), sized(TURNS, [*itertools.product(SOURCES, WAYS, KINDS)]))
def test_it_gives_the_artifacts_probabilities(source, way, kind):
    model, x = Net().eval(), torch.randn(7, 3, 8, 8)
    step = fitted(kind, shift=True)
    expected = reference(model, step, x)
    with scripted.told(source != "eager"):
        whole = WAYS[way](calibrated(SOURCES[source](model, x), step), x)
    for batch in (x, x[:1]):
        np.testing.assert_allclose(whole(batch).numpy(), expected[: len(batch)], atol=1e-6)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_a_head_takes_the_last_layers_place(source, layers, bias):
    model, x = Net(bias).eval(), torch.randn(7, 3, 8, 8)
    step = fitted("temperature", layers=layers)
    with scripted.told(source != "eager"):
        whole = calibrated(SOURCES[source](model, x), step)
    np.testing.assert_allclose(whole(x).numpy(), reference(model, step, x), atol=1e-6)
    np.testing.assert_allclose(scripted.script(whole)(x).numpy(), reference(model, step, x), atol=1e-6)


@pytest.mark.parametrize("layers", [0, 2])
def test_the_model_itself_is_left_as_it_is(layers):
    model, x = Net().train(), torch.randn(2, 3, 8, 8)
    before = copy.deepcopy(model.state_dict())
    step = fitted("temperature", layers=layers)
    whole = calibrated(model, step)
    assert model.training
    assert model.fc.weight.shape == (K, 6)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert whole(x).equal(whole(x))  # no dropout: it evaluates
    assert whole.model.conv.weight is model.conv.weight  # and shares what it does not change


def test_all_outputs_agree_with_each_other():
    model, x = Net().eval(), torch.randn(50, 3, 8, 8)
    for way in ("as it is", "scripted"):
        out = WAYS[way](calibrated(model, fitted("temperature"), returns="all"), x)(x)
        assert [*out] == ALL
        logits, probs, confidence, predicted, index = (t.numpy() for t in out.values())
        np.testing.assert_allclose(probs, softmax(logits), atol=1e-6)
        np.testing.assert_array_equal(confidence, probs.max(axis=1))
        np.testing.assert_array_equal(predicted, probs.argmax(axis=1))
        np.testing.assert_array_equal(index, bin_index(confidence))


@pytest.mark.parametrize("model", [nn.Identity(), nn.Linear(2, 2).half()], ids=["float32", "float16"])
def test_bins_are_those_of_numpy_on_the_edges_themselves(model):
    """Confidences that are the float32 next to an edge, on either side."""
    edges = np.linspace(0, 1, 16)[1:-1].astype("f4")
    c = np.concatenate([np.nextafter(edges, np.float32(d)) for d in (0, 1)] + [edges])
    c = c[c > 0.5]
    tail = calibrated(model, artifact(classes=2), returns="all", outputs="probabilities").tail
    index = torch.bucketize(torch.from_numpy(c), tail.inner_edges).numpy()
    np.testing.assert_array_equal(index, bin_index(c))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_as_exact_as_the_model_or_as_float32_where_that_holds_no_probability(dtype, kind):
    model, x = Net().eval(), torch.randn(7, 3, 8, 8)
    step = fitted(kind)
    expected = step.of_logits(copy.deepcopy(model).to(dtype)(x.to(dtype)).double().numpy())
    got = calibrated(copy.deepcopy(model).to(dtype), step, returns="all")(x.to(dtype))
    double = dtype == torch.float64
    assert {t.dtype for t in list(got.values())[:3]} == {torch.float64 if double else torch.float32}
    atol = 1e-12 if double else 1e-5
    np.testing.assert_allclose(got["probabilities"].double().numpy(), expected, atol=atol)


@pytest.mark.parametrize("kind", sized(["classwise"], ["matrix", "classwise", "top", "mixture"]))
def test_it_exports_with_a_free_batch_and_compiles(kind):
    model, x = Net().eval(), torch.randn(7, 3, 8, 8)
    step = fitted(kind, shift=True)
    whole = calibrated(model, step)
    program = torch.export.export(whole, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    np.testing.assert_allclose(program.module()(x[:3]).numpy(), reference(model, step, x)[:3], atol=1e-6)
    compiled = torch.compile(whole, backend="eager", fullgraph=True)  # fullgraph: no break in the graph
    np.testing.assert_allclose(compiled(x).numpy(), reference(model, step, x), atol=1e-6)


def test_layers_that_cannot_be_told_apart_or_are_not_there_are_named():
    twins = nn.Sequential(nn.Linear(6, K), nn.Linear(K, 6), nn.Linear(6, K))
    step = artifact(head(6, K, 1, np.random.default_rng(0)), classes=K)
    with pytest.raises(FuseError, match=r"several linear layers have weight \(4, 6\): \['0', '2'\]"):
        calibrated(twins, step)
    assert calibrated(twins, step, last_linear="2")(torch.ones(1, 6)).shape == (1, K)
    with pytest.raises(FuseError, match="'nope' is not a linear layer"):
        calibrated(twins, step, last_linear="nope")
    with pytest.raises(FuseError, match=r"'1' has weight \(6, 4\)"):
        calibrated(twins, step, last_linear="1")
    with pytest.raises(FuseError, match="no linear layer of weight"):
        calibrated(nn.Conv2d(1, 1, 1), step)
    with pytest.raises(InputError, match="returns must be"):
        calibrated(twins, step, returns="everything")


@pytest.mark.parametrize("behind", [nn.ReLU(), nn.Tanh(), nn.Softmax(dim=1), nn.Dropout(0.5), nn.Identity()])
@pytest.mark.parametrize("source", SOURCES)
def test_an_example_proves_that_a_layer_is_the_last(behind, source):
    model, x = nn.Sequential(Net(), behind).eval(), torch.randn(20, 3, 8, 8)
    step = fitted("temperature", layers=2)
    last = isinstance(behind, (nn.Dropout, nn.Identity))
    if last:
        with scripted.told(source != "eager"):
            whole = calibrated(SOURCES[source](model, x), step, example=x)
        np.testing.assert_allclose(whole(x).numpy(), reference(model[0], step, x), atol=1e-6)
    else:
        no_layer = r"is not the model's last layer|not make what is calibrated|in \[0, 1\]"
        with scripted.told(source != "eager"), pytest.raises(FuseError, match=no_layer):
            calibrated(SOURCES[source](model, x), step, example=x)


@needs_gpu_of_torch
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_it_stays_there_and_replays_as_a_cuda_graph(kind):
    model, x = Net().eval(), torch.randn(7, 3, 8, 8)
    step = fitted(kind, shift=True)
    whole, on_gpu = calibrated(copy.deepcopy(model).cuda(), step), x.cuda()
    assert {t.device.type for t in whole.state_dict().values()} == {"cuda"}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        whole(on_gpu)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = whole(on_gpu)
    graph.replay()
    np.testing.assert_allclose(out.cpu().numpy(), reference(model, step, x), atol=1e-4)


def saved(folder: Path, kind: str, model: nn.Module, x: torch.Tensor):
    """The model in a file, and what loads such files."""
    path = folder / f"model.{kind}"
    if kind == "pt":
        scripted.script(model).save(str(path))
        return path, scripted.load
    shapes = ({0: torch.export.Dim("n")},)
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=shapes), path)
    return path, lambda file: torch.export.load(file).module()


@pytest.mark.parametrize("kind", ["pt", "pt2"])
@pytest.mark.parametrize(("output", "layers"), [("probabilities", 2), ("logits", 0), ("all", 0)])
def test_a_file_is_calibrated_into_a_file_of_its_kind(kind, output, layers, tmp_path):
    model, x, out = Net().eval(), torch.randn(7, 3, 8, 8), tmp_path / f"out.{kind}"
    source, load = saved(tmp_path, kind, model, x)
    step = fitted("matrix", shift=True, layers=layers)
    with scripted.told(kind == "pt"):
        report = fuse_torch(source, step, out, returns=output, unproven=True)
    assert report.kind == {"pt": "torchscript", "pt2": "exported"}[kind]
    assert report.max_abs_diff <= report.tolerance
    expected, got = calibrated(model, step, returns=output)(x[:3]), load(out)(x[:3])
    torch.testing.assert_close(got, expected)
    with scripted.told(kind == "pt"), pytest.raises(FuseError, match="calibrated already"):
        fuse_torch(out, step, tmp_path / f"twice.{kind}", unproven=True)


def test_files_that_are_no_models_and_artifacts_of_others_are_refused(tmp_path):
    from calib_serve.core.errors import ModelError

    (tmp_path / "weights.pt").write_bytes(b"PK not a zip")
    with pytest.raises(ModelError, match="neither TorchScript nor"):
        fuse_torch(tmp_path / "weights.pt", fitted("temperature"), tmp_path / "out.pt", unproven=True)
    scripted.script(Net().eval()).save(str(tmp_path / "model.pt"))
    other = artifact(LogitMap.temperature(2.0), classes=K, model={"sha256": "0" * 64})
    with scripted.told(), pytest.raises(FuseError, match="fitted for 000000000000"):
        fuse_torch(tmp_path / "model.pt", other, tmp_path / "out.pt", inputs=IMAGES)
    with scripted.told():
        fuse_torch(tmp_path / "model.pt", other, tmp_path / "out.pt", inputs=IMAGES, unproven=True)
    cut = tmp_path / "cut.pt"
    cut.write_bytes((tmp_path / "model.pt").read_bytes()[:-40])
    with pytest.raises(ModelError):
        fuse_torch(cut, fitted("temperature"), tmp_path / "no.pt", unproven=True)
    assert not (tmp_path / "no.pt").exists()


FIVE = 5
RETURNS = "--returns all (returns=) has them, too"
EVEN = torch.tensor(np.random.default_rng(1).integers(0, 3, (400, FIVE)) * 2.0).float()  # full of ties


def deciding_of(score: str = "lac", kind: str = "temperature", classes: int = FIVE, **facts) -> Artifact:
    steps = output_steps(kind, classes, np.random.default_rng(0))
    return deciding(artifact(*steps, classes=classes, **facts), score)


@pytest.mark.parametrize("score", SCORES)
def test_a_module_decides_as_the_artifact_does_also_where_classes_tie(score):
    made = calibrated(nn.Identity(), deciding_of(score), returns="all", example=EVEN[:8])(EVEN)
    probs = made["probabilities"].numpy()
    assert made["set"].dtype == made["abstain"].dtype == torch.bool
    np.testing.assert_array_equal(made["set"], deciding_of(score).sets(probs))
    np.testing.assert_array_equal(made["abstain"], deciding_of(score).abstain(probs))
    assert 1 < made["set"].sum(dim=1).float().mean() < FIVE


@pytest.mark.parametrize("kind", ["matrix", "mixture", "top", "classwise"])
def test_the_mapping_scripts_and_holds_the_probabilities_that_are_returned_alone(kind):
    one, x = deciding_of("raps", kind), 2 * torch.randn(20, FIVE, generator=torch.Generator().manual_seed(0))
    made = calibrated(nn.Identity(), one, returns="all", example=x)
    found = scripted.script(made)(x)
    assert [*found] == [*ALL, "set", "abstain"]
    plain = calibrated(nn.Identity(), one, example=x)(x)
    torch.testing.assert_close(found["probabilities"], plain, rtol=0, atol=0)
    decisions = {name: found[name].numpy() for name in ("set", "abstain")}
    everyone = np.ones(20, bool)
    check_decisions(one, one.of_logits(x.numpy()), decisions, tolerance=1e-5, rows=everyone, report="")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_and_double_models_decide_before_the_result_is_rounded(dtype):
    x = (2 * torch.randn(20, FIVE, generator=torch.Generator().manual_seed(0))).to(dtype)
    one = deciding_of("aps")
    exact = one.of_logits(x.double().numpy())
    near = replace(one, abstain=Abstain(float(exact.max(axis=1)[0]) * (1 - 1e-4), risk=0.1))
    made = calibrated(nn.Identity(), near, returns="all", example=x)(x)
    assert made["probabilities"].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert made["abstain"].tolist() == near.abstain(exact).tolist()
    np.testing.assert_array_equal(made["set"], one.sets(exact))


@pytest.mark.parametrize("kind", ["pt", "pt2"])
def test_a_file_returns_them_where_it_is_asked_to_and_the_command_says_where_not(kind, tmp_path):
    model, x, out = nn.Sequential(nn.Linear(6, FIVE)).eval(), torch.randn(7, 6), tmp_path / f"out.{kind}"
    path, load = saved(tmp_path, kind, model, x)
    deciding_of("aps").save(tmp_path / "fitted")
    np.savez(tmp_path / "x.npz", input=x)
    call = ["fuse", "torch", str(path), str(tmp_path / "fitted"), "-o", str(out)]
    left = f"the artifact's prediction sets and abstention are left out: {RETURNS}"
    for told in [], ["--returns", "all"]:
        typed = [*call, "--inputs", str(tmp_path / "x.npz"), "--unproven", *told]
        with scripted.told(kind == "pt"):
            shown = " ".join(invoke(typed).stdout.split())
        assert ("set, abstain" in shown) == bool(told)
        assert (left in shown) == (not told)
    made, probs = load(str(out))(x), deciding_of("aps").of_logits(model(x).numpy())
    np.testing.assert_allclose(made["probabilities"], probs, atol=1e-6)
    np.testing.assert_array_equal(made["set"], deciding_of("aps").sets(probs))
    np.testing.assert_array_equal(made["abstain"], deciding_of("aps").abstain(probs))
