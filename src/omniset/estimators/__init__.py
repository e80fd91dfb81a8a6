"""Fit, predict, explain and store models of sets, scikit-learn style."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator
    from omniset.estimators.evaluation import Evaluation, evaluate, feature_importance
    from omniset.estimators.model import SetModel
    from omniset.estimators.predictors import SetClassifier, SetRegressor
    from omniset.estimators.survival import SetSurvival

__all__ = [
    "Evaluation",
    "SetClassifier",
    "SetEstimator",
    "SetModel",
    "SetRegressor",
    "SetSurvival",
    "evaluate",
    "feature_importance",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Evaluation": "evaluation",
        "SetClassifier": "predictors",
        "SetEstimator": "base",
        "SetModel": "model",
        "SetRegressor": "predictors",
        "SetSurvival": "survival",
        "evaluate": "evaluation",
        "feature_importance": "evaluation",
    },
)
