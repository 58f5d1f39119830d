"""What is left to default is the same wherever a detector is made."""

import inspect

import pytest

from calib_serve.cli.watch import run
from calib_serve.serve.feedback import read_detector
from calib_serve.watch import verdict
from calib_serve.watch.drift import ARL, BLOCK, TOLERANCE, Detector
from calib_serve.watch.feed import DriftFeed
from calib_serve.watch.service import Watch

DEFAULTS = {"arl": ARL, "tolerance": TOLERANCE, "block": BLOCK}


@pytest.mark.parametrize(
    "made_by", [run, Watch.open, Detector], ids=["command line", "Watch.open", "Detector"]
)
def test_a_detector_has_the_same_defaults_everywhere(made_by):
    parameters = inspect.signature(made_by).parameters
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS


def test_the_feedback_handler_has_them_as_well():
    detector = read_detector({})()
    assert {name: getattr(detector, name) for name in DEFAULTS} == DEFAULTS


def test_verdicts_tolerate_what_the_detector_does():
    assert verdict.TOLERANCE == TOLERANCE


@pytest.mark.parametrize("made_by", [Watch, Watch.open, DriftFeed])
def test_maturity_is_learned_unless_it_is_given(made_by):
    assert inspect.signature(made_by).parameters["maturity"].default is None
    assert inspect.signature(run).parameters["maturity"].default == "auto"
