"""A fitted model of sets, whatever it predicts: it reads sets, and turns them into vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Shaped

from omniset.core.encoding import Encoding
from omniset.core.sets import Sets
from omniset.core.stored import StoredSet
from omniset.estimators import vectors
from omniset.estimators.forms import sets_of
from omniset.estimators.options import SetOptions
from omniset.estimators.stack import NETWORKS, Stack
from omniset.fitted import Estimator
from omniset.training.network import SetNetwork

CONTAINERS = ("default", "pandas", "polars")


class SetModel(SetOptions, Estimator):
    """What a model of sets is by scikit-learn's conventions, beside fit, predict and score.

    Attributes: those of SetEstimator.
    """

    network_: SetNetwork | Stack
    features_: list[str] | None
    validation_: Any
    labels_: Any
    encoding_: Encoding | None

    def fitted(self) -> SetNetwork | Stack:
        """The network, or the mixture.

        Raises:
            sklearn.exceptions.NotFittedError: There is none yet. It is a ValueError.
        """
        self.require_fitted()
        return self.network_

    @property
    def n_features_in_(self) -> int:
        """Features of an element."""
        return self.fitted().input_dim

    @property
    def feature_names_in_(self) -> Shaped[np.ndarray, " features"]:
        """Names of the features. As in scikit-learn it is there only where the sets of `fit` had names of features."""
        self.require_fitted()
        if self.features_ is None:
            raise AttributeError("feature_names_in_ is there after fit on sets whose features have names")
        return np.array(self.features_, dtype=object)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import TransformerTags

        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = tags.input_tags.three_d_array = True
        tags.target_tags.required = tags.target_tags.multi_output = True
        tags.transformer_tags = TransformerTags(preserves_dtype=[])  # vectors are float32
        return tags

    @property
    def together(self) -> int:
        """Sets that are predicted at once."""
        return self.batch_size or 64

    def _learns_first_in(self) -> str:
        return "." if self.single is not None else NETWORKS[0]

    def reading(self) -> dict[str, Any]:
        """How networks read sets where they predict."""
        return {name: getattr(self, name) for name in ("max_elements", "shard_size", "shards", "store")}

    @property
    def expected_columns(self) -> list[str]:
        """Of a table, which the features are made of."""
        return (self.features_ or []) if self.encoding_ is None else self.encoding_.names

    @property
    def expected(self) -> Encoding | None:
        """How columns of a table become the features of the model: numbers, where it learned from no table."""
        if self.encoding_ is None and self.features_ is not None:
            return Encoding.of_numbers(self.features_)
        return self.encoding_

    def read(self, sets: Any) -> Sets:
        """Sets in any form that `fit` takes, with the features of the model.

        Raises:
            ValueError: A feature is missing, there are others or more than at fit, or in another order; not fitted.
        """
        self.require_fitted()
        there = {*map(str, sets.columns)} if hasattr(sets, "columns") else {*self.expected_columns}
        if missing := [c for c in self.expected_columns if c not in there]:
            raise ValueError(f"the table lacks features that the model was fitted on: {missing[:5]}")
        collection = sets_of(sets, encoding=self.expected)
        if collection.dim != self.n_features_in_:
            expecting = (
                f"{type(self).__name__} is expecting {self.n_features_in_} features as input"  # scikit-learn's words
            )
            raise ValueError(
                f"the sets have {collection.dim} features, the model was fitted on {self.n_features_in_}: "
                f"X has {collection.dim} features, but {expecting}"
            )
        pairs = zip(collection.features or [], self.features_ or [], strict=False)
        for number, (here, known) in enumerate(pairs, 1):
            if here != known:
                raise ValueError(f"feature {number} of the sets is {here!r}, the model was fitted on {known!r} there")
        return collection

    # ------------------------------------------------------------------ vectors

    def set_output(self, *, transform: str | None = None) -> SetModel:
        """Choose what `transform` and `fit_transform` return, as for scikit-learn's own transformers.

        Args:
            transform: "default": an array; "pandas" or "polars": a table, whose columns `get_feature_names_out` names;
                in pandas the names of the sets are its index. None: as before. Without a choice it is that of
                `sklearn.set_config(transform_output=...)`.

        Raises:
            ValueError: Another name.
        """
        if transform is not None:
            if transform not in CONTAINERS:
                raise ValueError(f"transform must be one of {', '.join(CONTAINERS)}, got {transform!r}")
            self._sklearn_output_config = {"transform": transform}  # the name that scikit-learn's clone copies
        return self

    def transform(self, sets: Any) -> Any:
        """Each set as a vector: what the networks make of it before anything is said of labels.

        Of one network it is the summary that the head reads, width num_outputs * dim. A mixture has several networks,
        deep sets and ust, and each has axes of its own, so that a mean over networks would mean nothing. The summaries
        s_j of its J networks stand side by side,

            v = (s_1, ..., s_J) / sqrt(J),    so that  v . v' = mean over j of  s_j . s_j'

        and products and squared distances of vectors are means over the networks. They are the same however the axes
        of a network are turned, and so is what is made of them: neighbours, principal components, kernels. Take
        principal components where fewer numbers are wanted. The simple methods of a mixture are no part of v.

        Of a simple method alone (`method="pooled-forest"`) a vector is what the method looks at: pooled features, or
        distances to the sets learned from, with the mean of training in place of what an empty set lacks.

        Vectors are learned from labels: those of the sets of `fit` know theirs. Judge what is made of vectors on other
        sets.

        Args:
            sets: In any form that `fit` takes.

        Returns:
            (sets, width) in 32 bits: an array, or what `set_output` chose.

        Raises:
            ValueError: level="element"; not fitted; sets that cannot be used.
        """
        vectors.check(self)
        collection = self.read(sets)
        values = np.concatenate([some for _, some in vectors.of(self, collection)])
        from sklearn import get_config

        chosen = getattr(self, "_sklearn_output_config", {}).get("transform", get_config()["transform_output"])
        if chosen == "pandas":
            return pd.DataFrame(values, collection.names, vectors.names(self))
        if chosen == "polars":
            import polars

            return polars.DataFrame(values, vectors.names(self), orient="row")
        return values

    def get_feature_names_out(self, input_features: Any = None) -> Shaped[np.ndarray, " width"]:
        """Names of the columns of `transform`: ust_1, ust_2, ...; of a mixture ust_3_17: axis 17 of its third ust; of
        a simple method "mean of CD4", or "to reference 3" and "from reference 3".

        Args:
            input_features: Is not used.
        """
        return np.array(vectors.names(self), dtype=object)

    def transform_table(self, sets: Any) -> pd.DataFrame:
        """`transform` as a table: a column `set`, and those that `get_feature_names_out` names."""
        vectors.check(self)
        return pd.concat(self.vectors(self.read(sets)), ignore_index=True)

    def vectors(self, sets: Iterable[StoredSet]) -> Iterator[pd.DataFrame]:
        """`transform_table` piece by piece, of sets as they come."""
        names = vectors.names(self)
        for group, values in vectors.of(self, sets):
            frame = pd.DataFrame(values, columns=names)
            frame.insert(0, "set", [stored.name for stored in group])
            yield frame
