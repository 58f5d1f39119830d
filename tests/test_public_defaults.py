"""What is left to default, in numbers: a default that changes is a change for who relies on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import calib_serve
from calib_serve.bins import bin_index
from calib_serve.judgement import cells, classes
from calib_serve.receipts import DAY, SKEW
from calib_serve.watch import bin_gaps, estimates, intake, verdict
from calib_serve.watch.drift import Detector

# Numbers, texts and flags. A changed line here is a line of CHANGELOG.md.
DEFAULTS: dict[str, dict[str, object]] = {
    "Abstain": {"level": 0.95},
    "Bins.mce": {"at_least": 1},
    "Bins.tally": {"bins": 15, "edges": "right"},
    "Bins.zeros": {"bins": 15},
    "Compared": {"seconds": 0.0, "error": ""},
    "ConfidenceHistogramDisplay": {"name": "classifier"},
    "ConfidenceHistogramDisplay.from_predictions": {"bins": 20, "edges": "right", "name": "classifier"},
    "Keyring.retired": {"ttl": 2592000.0},
    "Keyring.sign": {"segment": "", "inclusion": 1.0, "wanted": True, "group": 0},
    "Keyring.unneeded_from": {"ttl": 2592000.0},
    "Keyring.verify": {"ttl": 2592000.0},
    "LabelPolicy.budget": {"workers": 1},
    "LogitMap": {"on": "logits"},
    "PredictionSets": {"score": "lac", "penalty": 0.0, "free_ranks": 0},
    "Preprocessing": {"interpolation": "bilinear"},
    "PriorEstimate": {"unknown": ""},
    "Receipt": {"segment": "", "inclusion": 1.0, "wanted": True, "group": 0},
    "ReliabilityDisplay": {"name": "classifier"},
    "ReliabilityDisplay.from_predictions": {
        "kind": "bins",
        "bins": 15,
        "edges": "right",
        "level": 0.95,
        "name": "classifier",
    },
    "Reporter": {"token": "", "workers": 1, "sample_rate": 0.1, "most": 100000, "flush_seconds": 0.5},
    "Reporter.acts": {"segment": ""},
    "Reporter.label": {"id": ""},
    "Reporter.served": {"segment": "", "group": "", "id": ""},
    "Reporter.served_labels": {"threshold": 0.5, "segment": "", "group": ""},
    "RiskCoverageDisplay": {"name": "classifier", "marked": False},
    "RiskCoverageDisplay.from_predictions": {"level": 0.95, "name": "classifier"},
    "ServedPrediction": {"segment": "", "group": "", "id": ""},
    "Server": {
        "sample_rate": 0.1,
        "label_budget": "",
        "sample_seconds": 60.0,
        "allow_volatile": False,
    },
    "Server.client": {"timeout": 60.0},
    "Server.start": {"allow_failures": False},
    "Watch": {"ttl": 2592000.0, "max_segments": 32, "max_classes": 32, "volatile": False},
    "Watch.class_shares": {"name": "24h"},
    "Watch.close_incident": {"note": ""},
    "Watch.labels": {"source": ""},
    "Watch.open": {
        "ledger": "ledger.db",
        "arl": 100000,
        "tolerance": 0.01,
        "block": 1,
        "ttl": 2592000.0,
        "max_segments": 32,
        "max_classes": 32,
        "sample_rate": 0.1,
        "sample_days": 30.0,
        "allow_volatile": False,
        "journal_days": 90.0,
        "max_ids": 1000000,
    },
    "Watch.predictions": {"source": ""},
    "Watch.window": {"name": "24h", "provisional": False},
    "Watch.windows": {"provisional": False},
    "calibrate": {"method": "auto", "cross_validate": True, "seed": 0},
    "calibrate_model": {
        "method": "auto",
        "batch_size": 256,
        "mixed_precision": False,
        "cross_validate": True,
        "seed": 0,
    },
    "calibrated": {"returns": "probabilities", "fold": False, "decisions": False},
    "compare": {"methods": "all", "replicates": 0, "seed": 0},
    "create_app": {"max_bytes": 4194304, "max_waiting": 32, "max_versions": 200},
    "decide": {"level": 0.95, "score": "lac", "per_class": False, "seed": 0},
    "estimate_prior": {"calibrated": False},
    "evaluate": {"bins": 15, "edges": "right", "replicates": 1000, "level": 0.95, "seed": 0},
    "evaluate_labels": {"bins": 15, "edges": "right", "replicates": 200, "level": 0.95, "seed": 0},
    "evaluate_logits": {"bins": 15, "edges": "right", "replicates": 1000, "level": 0.95, "seed": 0},
    "fuse_onnx": {
        "returns": "same",
        "samples": 8,
        "keep_raw": False,
        "decisions": True,
        "device": "cpu",
        "force": False,
    },
    "fuse_torch": {
        "returns": "probabilities",
        "fold": False,
        "decisions": False,
        "samples": 8,
        "device": "cpu",
        "force": False,
    },
    "fuse_triton": {"version": 1, "samples": 8, "decisions": True, "force": False},
    "judge": {"tolerance": 0.02},
    "load_model": {"batch_size": 256, "mixed_precision": False},
    "pack": {
        "version": "1.0",
        "standalone": False,
        "top": 5,
        "probabilities": True,
        "threshold": 0.5,
        "allow_cpu_fallback": False,
        "flush_seconds": 1.0,
        "max_pixels": 25000000,
    },
    "pack_around": {
        "standalone": False,
        "threshold": 0.5,
        "flush_seconds": 1.0,
        "receipts": "header",
        "trial": True,
        "force": False,
    },
    "pack_feedback": {
        "name": "calibration_feedback",
        "version": "1.0",
        "standalone": False,
        "ttl_days": 30.0,
        "flush_seconds": 1.0,
    },
    "read_samples": {"since": 0.0, "most": 1000000},
    "recalibrated": {"force": False},
    "refit": {"method": "auto", "alpha": 0.05, "seed": 0},
    "refit_served": {"name": "", "version": "", "days": 7.0, "method": "auto", "alpha": 0.05, "seed": 0},
    "send_label_file": {
        "url": "http://127.0.0.1:9300/v1/labels",
        "token": "",
        "batch": 1000,
        "tries": 8,
        "receipt_column": "receipt",
        "label_column": "label",
    },
    "serve_app": {"host": "127.0.0.1", "port": 9300, "max_connections": 512, "request_seconds": 30.0},
}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What ``calib_serve`` exports and can be called, and the public methods of its classes."""
    for name in calib_serve.__all__:
        value = getattr(calib_serve, name)
        if callable(value):
            yield name, value
        for method, function in inspect.getmembers(value) if inspect.isclass(value) else ():
            if not method.startswith("_") and (inspect.isfunction(function) or inspect.ismethod(function)):
                yield f"{name}.{method}", function


def defaults(function: Callable[..., Any]) -> dict[str, object]:
    """Those that are numbers, texts or flags; not NaN."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of classes that Python cannot look into
        return {}
    found = {one.name: one.default for one in parameters if type(one.default) in (int, float, str, bool)}
    return {name: value for name, value in found.items() if value == value}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_is_what_it_was(name: str) -> None:
    found = defaults(dict(public())[name])
    assert {one: found.get(one, "no default") for one in DEFAULTS[name]} == DEFAULTS[name]
    assert {one: type(value) for one, value in found.items() if one in DEFAULTS[name]} == {
        one: type(value) for one, value in DEFAULTS[name].items()
    }


def test_every_default_is_in_the_table() -> None:
    missing = {
        name: found
        for name, function in public()
        if (found := {k: v for k, v in defaults(function).items() if k not in DEFAULTS.get(name, {})})
    }
    assert missing == {}, "add these to the table above"


def test_what_watches_and_judges_has_these_numbers() -> None:
    assert defaults(Detector) == {"arl": 100_000, "tolerance": 0.01, "bins": 15, "block": 1}
    assert defaults(bin_index) == {"bins": 15, "edges": "right"}
    assert defaults(verdict.judge) == {"tolerance": 0.01}
    assert defaults(estimates.estimate) == {"least": 5.0, "missing": "chance"}
    assert defaults(intake.Intake) == {"ttl": 30 * 86_400.0, "detect": True}
    assert (DAY, SKEW, bin_gaps.LEAST) == (86_400.0, 300.0, 5.0)
    assert (cells.RISK, classes.FEW) == (0.05, 500)
