"""Tensors, columns and tables of other libraries are taken as they come, and give the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from libraries import library

from calib_serve import metrics
from calib_serve.artifact import Artifact, LogitMap
from calib_serve.core.arrays import as_array, as_floats
from calib_serve.core.bins import Bins, bin_index
from calib_serve.core.errors import InputError
from calib_serve.fit import fit_temperature, select
from calib_serve.fit.samples import Samples
from calib_serve.report.prepare import class_table, reliability
from calib_serve.scores import Scores

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((200, 3)).astype(np.float32)
LABELS = np.where(RNG.random(200) < 0.7, LOGITS.argmax(axis=1), RNG.integers(0, 3, 200))
PROBS = metrics.softmax(LOGITS).astype(np.float32)

Convert = Callable[[np.ndarray], Any]


def _torch(**options: Any) -> Convert:
    def convert(array: np.ndarray) -> Any:
        torch = library("torch")
        if options.get("device") == "cuda" and not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        grad = options.get("requires_grad", False) and array.dtype.kind == "f"
        return torch.tensor(array, device=options.get("device", "cpu"), requires_grad=grad)

    return convert


def _table(array: np.ndarray) -> dict[str, np.ndarray]:
    return {str(k): array[:, k] for k in range(array.shape[1])}


def _pandas(array: np.ndarray) -> Any:
    pandas = library("pandas")
    return pandas.Series(array) if array.ndim == 1 else pandas.DataFrame(_table(array))


def _pandas_nullable(array: np.ndarray) -> Any:
    pandas = library("pandas")
    dtype = "Int64" if array.dtype.kind == "i" else "Float32"
    return (
        pandas.Series(array, dtype=dtype)
        if array.ndim == 1
        else pandas.DataFrame(_table(array)).astype(dtype)
    )


def _polars(array: np.ndarray) -> Any:
    polars = library("polars")
    return polars.Series(array) if array.ndim == 1 else polars.DataFrame(_table(array))


def _polars_lists(array: np.ndarray) -> Any:
    return library("polars").Series(array.tolist())


def _arrow(array: np.ndarray) -> Any:
    pa = library("pyarrow")
    return pa.array(array) if array.ndim == 1 else pa.table(_table(array))


def _arrow_chunked(array: np.ndarray) -> Any:
    pa = library("pyarrow")
    parts = np.array_split(array, 3)
    return pa.chunked_array([pa.array(list(part) if part.ndim == 2 else part) for part in parts])


TAKEN: dict[str, Convert] = {
    "list": np.ndarray.tolist,
    "torch with gradient": _torch(requires_grad=True),
    "torch on CUDA": _torch(device="cuda", requires_grad=True),
    "list of tensors": lambda array: list(_torch(requires_grad=True)(array)),
    "pandas": _pandas,
    "pandas nullable": _pandas_nullable,
    "polars": _polars,
    "polars column of lists": _polars_lists,
    "arrow": _arrow,
    "arrow in chunks": _arrow_chunked,
}


@pytest.mark.parametrize("kind", TAKEN)
def test_everything_that_takes_numbers_takes_them_from(kind: str) -> None:
    convert = TAKEN[kind]
    probs, logits, labels = convert(PROBS), convert(LOGITS), convert(LABELS)
    exact = {"abs": 1e-7}  # a list holds the same floats in float64
    for metric in (metrics.ece, metrics.nll, metrics.classwise_ece, metrics.smooth_ece):
        assert metric(probs, labels) == pytest.approx(metric(PROBS, LABELS), **exact)
    cases: list[tuple[Any, np.ndarray, dict[str, Any]]] = [
        (probs, PROBS, {}), (logits, LOGITS, {"outputs": "logits"}),
    ]  # fmt: skip
    for scores, plain, how in cases:
        found = metrics.evaluate(scores, labels, replicates=16, **how)
        expected = metrics.evaluate(plain, LABELS, replicates=16, **how)
        assert found.brier.value == pytest.approx(expected.brier.value, **exact)
    fitted = fit_temperature(Samples.of(logits, labels, sample_weight=convert(np.ones(200))))
    expected_fit = fit_temperature(Samples.of(LOGITS, LABELS, sample_weight=np.ones(200)))
    assert fitted.fit["temperature"] == pytest.approx(expected_fit.fit["temperature"], rel=1e-6)
    artifact = Artifact((LogitMap.temperature(2.0),), method="temperature", classes=3)
    np.testing.assert_allclose(artifact.probs(logits), metrics.softmax(LOGITS / 2), rtol=1e-6)
    confidence, correct = PROBS.max(axis=1), (PROBS.argmax(axis=1) == LABELS).astype(int)
    tallied = Bins.tally(convert(np.minimum(confidence, 1)), convert(correct))
    assert tallied.ece() == pytest.approx(metrics.ece(PROBS, LABELS), **exact)
    assert reliability(probs, labels).count.sum() == 200
    assert len(class_table(probs, labels)) == 3
    assert metrics.paired_changes(probs, PROBS, labels, replicates=2)["nll"].p > 0.9
    np.testing.assert_allclose(metrics.softmax(logits), PROBS, atol=1e-6)


def test_bfloat16_is_taken_at_its_own_precision() -> None:
    torch = library("torch")
    logits = torch.tensor(LOGITS).bfloat16().requires_grad_()
    probs = torch.softmax(logits, dim=1)
    assert as_array(probs).dtype == np.float32
    assert metrics.evaluate(probs, LABELS, replicates=0, outputs="probabilities").ece.value == pytest.approx(
        metrics.ece(PROBS, LABELS), abs=0.02
    )
    assert metrics.brier_terms(probs, LABELS).brier == pytest.approx(metrics.brier(PROBS, LABELS), abs=0.01)
    found = fit_temperature(Samples.of(logits, torch.tensor(LABELS))).fit["temperature"]
    assert found == pytest.approx(fit_temperature(Samples.of(LOGITS, LABELS)).fit["temperature"], rel=0.02)
    numpys = np.asarray(LOGITS, library("ml_dtypes").bfloat16)
    assert fit_temperature(Samples.of(numpys, LABELS)).fit["temperature"] == pytest.approx(found)


def _missing(kind: str, values: list[Any]) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "list": lambda: values,
        "masked": lambda: np.ma.masked_invalid(np.array(values, float)),
        "pandas nullable": lambda: library("pandas").Series(values, dtype="Int64"),
        "pandas arrow": lambda: library("pandas").Series(values, dtype="int64[pyarrow]"),
        "polars": lambda: library("polars").Series(values),
        "arrow in chunks": lambda: library("pyarrow").chunked_array([values[:2], values[2:]]),
    }
    return made[kind]()


@pytest.mark.parametrize(
    "kind", ["list", "masked", "pandas nullable", "pandas arrow", "polars", "arrow in chunks"]
)
def test_a_missing_value_is_an_error_of_ours_wherever_it_is(kind: str) -> None:
    labels = _missing(kind, [0, None, 1])
    probs, logits = PROBS[:3], LOGITS[:3]
    for refusing in (
        lambda: metrics.evaluate(probs, labels),
        lambda: metrics.evaluate(logits, labels),
        lambda: fit_temperature(Samples.of(logits, labels)),
        lambda: select(Samples.of(logits, labels)),
        lambda: fit_temperature(Samples.of(logits, [0, 1, 1], sample_weight=labels)),
        lambda: metrics.evaluate(labels, [0, 1, 1]),
        lambda: Bins.tally([0.5, 0.6, 0.7], labels),
        lambda: Bins.tally(labels, [0, 1, 1]),
    ):
        with pytest.raises(InputError):
            refusing()


@pytest.mark.parametrize("made", [list, lambda text: library("pandas").Series(text)], ids=["list", "pandas"])
def test_text_is_an_error_of_ours(made: Callable[[list[str]], Any]) -> None:
    text = made(["a", "b", "c"])
    for refusing in (
        lambda: metrics.ece(PROBS[:3], text),
        lambda: metrics.ece(text, [0, 1, 1]),
        lambda: metrics.evaluate(text, [0, 1, 1]),
        lambda: fit_temperature(Samples.of(text, [0, 1, 1])),
        lambda: Artifact((), method="none", classes=2).probs(text),
        lambda: bin_index(text),
        lambda: metrics.open_set(text, [1.0]),
        lambda: metrics.softmax(text),
    ):
        with pytest.raises(InputError):
            refusing()


@pytest.mark.parametrize(
    "values", [[[1], [1, 2]], object(), {"a": 1}, [1, "a"]], ids=["ragged", "object", "dict", "mixed"]
)
def test_what_is_no_array_of_numbers_is_an_error_of_ours(values: Any) -> None:
    with pytest.raises(InputError, match="logits"):
        as_floats(values, "logits")


def test_a_tensor_without_values_is_an_error_of_ours() -> None:
    torch = library("torch")
    for tensor in (torch.zeros(2, 3, device="meta"), torch.zeros(2, 3).to_sparse()):
        with pytest.raises(InputError, match="cannot be read as an array"):
            metrics.ece(tensor, [0, 1])


def test_a_missing_text_of_a_dictionary_or_a_frame_stays_missing() -> None:
    arrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    column = arrow.chunked_array([arrow.array(["b", None, "a"]).dictionary_encode()])
    assert as_array(column, missing=True).tolist() == ["b", None, "a"]
    with pytest.raises(InputError, match="value 1 is missing"):
        as_array(column)
    found = as_array(pandas.Series(["b", None], dtype=object).fillna(np.nan), missing=True)
    assert found.dtype.kind == "O"


def test_an_arrow_table_of_categories_gives_no_label_to_rows_without_one() -> None:
    arrow = pytest.importorskip("pyarrow")
    labels = arrow.array(["b", None, "a", "b"]).dictionary_encode()
    table = arrow.table({"logit_a": [0.0, 1, 2, 3], "logit_b": [3.0, 2, 1, 0], "label": labels})
    with pytest.raises(InputError, match="missing"):
        Scores.of(table)
    assert Scores.of(table, ignore_label="NA").labelled().tolist() == [1, 0, 1]
