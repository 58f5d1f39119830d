"""The artifact: the result of a fit, as steps that any runtime can execute."""

from calib_serve.artifact.artifact import Artifact
from calib_serve.artifact.facts import ModelFacts, Outputs, read_outputs
from calib_serve.artifact.results import Score, Selection
from calib_serve.artifact.steps import Head, InputShift, LogitMap, Mixture, ProbTable, Step

__all__ = [
    "Artifact",
    "Head",
    "InputShift",
    "LogitMap",
    "Mixture",
    "ModelFacts",
    "Outputs",
    "ProbTable",
    "Score",
    "Selection",
    "Step",
    "read_outputs",
]
