"""Fit, predict, explain and store models of sets, scikit-learn style."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omniset.lazy import lazily

if TYPE_CHECKING:
    from omniset.estimators.base import SetEstimator
    from omniset.estimators.classifier import SetClassifier
    from omniset.estimators.evaluation import Evaluation, evaluate
    from omniset.estimators.importance import feature_importance
    from omniset.estimators.model import SetModel
    from omniset.estimators.regressor import SetRegressor
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
        "SetClassifier": "classifier",
        "SetEstimator": "base",
        "SetModel": "model",
        "SetRegressor": "regressor",
        "SetSurvival": "survival",
        "evaluate": "evaluation",
        "feature_importance": "importance",
    },
)
