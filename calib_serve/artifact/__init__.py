"""The artifact: the result of a fit, as steps that any runtime can execute."""

from calib_serve.artifact.artifact import Artifact
from calib_serve.artifact.contract import Clause, ClauseKind, Contract
from calib_serve.artifact.decisions import (
    Abstain,
    DecisionsEvaluation,
    PredictionSets,
    SetScore,
    evaluate_decisions,
    promises,
)
from calib_serve.artifact.facts import ModelFacts, Score, Selection, made_up, response, same_response
from calib_serve.artifact.steps import Examples, Head, InputShift, LogitMap, Mixture, ProbTable, Step

__all__ = [
    "Abstain",
    "Artifact",
    "Clause",
    "ClauseKind",
    "Contract",
    "DecisionsEvaluation",
    "Examples",
    "Head",
    "InputShift",
    "LogitMap",
    "Mixture",
    "ModelFacts",
    "PredictionSets",
    "ProbTable",
    "Score",
    "Selection",
    "SetScore",
    "Step",
    "evaluate_decisions",
    "made_up",
    "promises",
    "response",
    "same_response",
]
