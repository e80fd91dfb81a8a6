"""A fitted model of sets, whatever it predicts: it reads sets, predicts, explains, makes vectors, is stored."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Float32, Float64, Shaped
from torch import Tensor, nn

from omniset import encoders, explain
from omniset.core.encoding import Encoding
from omniset.core.sets import SetBatch, Sets, batched
from omniset.core.sources import Source, source_of
from omniset.core.stored import StoredSet
from omniset.estimators import pooling
from omniset.estimators.inputs import SHOWN, Scales, digest_of, sets_of
from omniset.estimators.methods import POOLED
from omniset.estimators.mixture import (
    NETWORK,
    PRIOR,
    SHAPES,
    TOGETHER,
    ElementMixture,
    OutOfFold,
    SetMixture,
    outputs_of,
)
from omniset.estimators.options import SetOptions
from omniset.explain import LayerAttribution
from omniset.fitted import Estimator
from omniset.options import blaming
from omniset.runs.devices import find, threads_for
from omniset.runs.finite import require_finite_outputs
from omniset.training import artefacts, schema
from omniset.training.network import SetNetwork
from omniset.trials.comparison import OURS

CONTAINERS = ("default", "pandas", "polars")
EXPLAINED = 4  # networks of a mixture, of which scores are the mean
LITTLE = 0.1  # weight in a mixture, below which what is said of its networks tells little of its predictions
REMOVED = 64  # sets without an element that are made at once
LARGEST = 1 << 29  # numbers in a set, times its elements, up to which they are left out one by one
COLUMN = {"name": schema.TEXT, "categories": schema.optional(schema.array(schema.TEXT))}
COLUMN |= {"mean": schema.NUMBER, "marked": schema.FLAG}
ENCODING = schema.whole(  # of `Encoding.state`
    {"missing": {"enum": ["error", "indicator"]}, "columns": schema.array(schema.whole(COLUMN))}
)

SCALES = schema.whole(dict.fromkeys(("low", "high", "first", "last"), schema.array(schema.NUMBER)))

Explanation = Literal["auto", "attribution", "contrast", "attention", "removal"]
Groups = Iterator[tuple[list[StoredSet], Iterator[Float[Tensor, "rows outputs"]]]]


class SetModel(SetOptions, Estimator):
    """What a model of sets is once it is fitted, by scikit-learn's conventions.

    Attributes: those of SetEstimator.
    """

    HISTORIES: ClassVar = ("history", "notes", "chosen")
    FITTED: ClassVar[dict[str, Any]] = {
        "input_dim": schema.COUNT,
        "widths": schema.array(schema.SIZE, minItems=1),
        "features": schema.optional(schema.array(schema.TEXT)),
        "encoding": schema.optional(ENCODING),
        "reading": schema.OBJECT,
        "targets": schema.array(schema.TEXT),
        "single": schema.FLAG,
        "ignored": schema.array(schema.TEXT),
        "prior": schema.array(schema.array(schema.NUMBER, minItems=1)),
        "scales": SCALES,
        "mixture": schema.optional(SHAPES),
        "seen": schema.array(schema.TEXT),
    }

    classifies: ClassVar[bool]
    usual_target: ClassVar[str] = "label"  # where y has no name
    MIXTURE: ClassVar[type[SetMixture]] = SetMixture  # the methods, and how they are mixed

    network_: SetNetwork | SetMixture
    simple_: SetMixture | None
    out_of_fold_: OutOfFold | None
    importance_: pd.DataFrame | None
    features_: list[str] | None
    validation_: Any
    labels_: Any
    encoding_: Encoding | None
    targets_: list[str]
    single_: bool
    prior_: list[np.ndarray]
    scales_: Scales
    seen_: list[str]
    chosen_: dict[str, Any]
    reading_: dict[str, Any]
    ignored_: list[str]

    def fitted(self) -> SetNetwork | SetMixture:
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
    def mixes(self) -> type[SetMixture]:
        """The methods of labels at this level, and how they are mixed."""
        return ElementMixture if self.level == "element" else self.MIXTURE

    def reading(self) -> dict[str, Any]:
        """How networks read sets; where they learn, `gradient` beside it."""
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

    def build(self, input_dim: int, widths: list[int]) -> SetNetwork:
        """An untrained network: the one that learns, or one of a mixture.

        Args:
            widths: Outputs of each target.

        Raises:
            ValueError: Options of the encoder that it does not take.
        """
        sizes = {"dim": self.size("dim"), "depth": self.size("depth"), "num_heads": self.num_heads}
        sizes |= {"input_dim": input_dim, "num_inducing": self.num_inducing}
        with blaming(self.encoder_options):
            made = encoders.build(self.single or NETWORK, **sizes, **(self.encoder_options or {}))
        return SetNetwork(made, widths, self.level == "element")

    def known(self, sets: Sets) -> list[str]:
        """Which of these sets have the name of one that the model learned from."""
        learned = {*self.seen_}
        if not learned or sets.features is None:
            return []
        return [str(name) for name in sets.names if digest_of(name) in learned]

    def warn_of_known(self, sets: Sets) -> None:
        """Say so: scores on them are no evidence."""
        if seen := self.known(sets):
            named = ", ".join(map(repr, seen[:SHOWN])) + (", ..." if len(seen) > SHOWN else "")
            warnings.warn(
                f"{len(seen):,} of {len(sets):,} sets have the name of one that the model learned from ({named}): what "
                "is measured on them says nothing of new sets",
                stacklevel=3,
            )

    # ------------------------------------------------------------------ predictions

    def outputs(self, sets: Iterable[StoredSet], shard_size: int | None = None, watch: bool = True) -> Groups:
        """The sets as they come, some at a time, with their outputs: one tensor, or for elements several in a row.
        Units are looked at if `watch`, which variants of a set that was looked at do without.
        """
        device = find(self.device)
        network = self.fitted()
        reading = self.reading() | ({} if shard_size is None else {"shard_size": shard_size})
        if isinstance(network, SetMixture):
            for group in self._grouped(sets, watch):
                yield group, iter([network.outputs(group, device, **reading)])
            return
        try:
            for group in self._grouped(sets, watch):
                yield group, outputs_of(network, group, device, **reading)
        finally:
            network.to("cpu")

    def _outputs(self, sets: Any, shard_size: int | None) -> tuple[Sets, Float[Tensor, "rows outputs"]]:
        collection = self.read(sets)
        return collection, torch.cat([some for _, outputs in self.outputs(collection, shard_size) for some in outputs])

    def _shaped(self, values: np.ndarray, collection: Sets) -> Any:
        """Per set as they are; per element in the order of the table's rows, or a list of one array per set."""
        if self.level == "set":
            return values
        if collection.features is None:
            return np.split(values, collection.offsets[1:-1])
        if collection.order is None:
            return values
        by_row = np.empty_like(values)
        by_row[collection.order] = values
        return by_row

    def predict_table(self, sets: Any, shard_size: int | None = None) -> pd.DataFrame:
        """Predictions as a table, a row per set (or per element, sets one after the other).

        Columns: `set`, for elements `element` (its number in the set, from 1), and what `predict` and, for classes,
        `predict_proba` say: the target's name, and p_CLASS, with several targets p_TARGET_CLASS.
        """
        collection = self.read(sets)
        frames = self.predictions(collection, shard_size)
        return pd.concat(frames, ignore_index=True)

    def predictions(self, sets: Iterable[StoredSet], shard_size: int | None = None) -> Iterator[pd.DataFrame]:
        """`predict_table` piece by piece, of sets as they come."""
        for group, outputs in self.outputs(sets, shard_size):
            row = 0
            for some in outputs:
                yield self._frame(group, some, row)
                row += len(some)

    def _frame(self, group: list[Any], outputs: Tensor, row: int) -> pd.DataFrame:
        """Some rows of predict_table; of elements, from `row` of the group on, which is then one set."""
        return self._keyed(group, self._columns(outputs), row)

    def _keyed(self, group: list[Any], columns: dict[str, np.ndarray], row: int = 0) -> pd.DataFrame:
        if self.level == "set":
            return pd.DataFrame({"set": [s.name for s in group], **columns})
        rows = len(next(iter(columns.values())))
        keys = {
            "set": np.repeat(np.array([s.name for s in group], dtype=object), [min(len(s), rows) for s in group]),
            "element": np.concatenate([s.names_of_elements(row, rows) for s in group]),
        }
        frame = pd.DataFrame(keys | columns)
        absent = torch.cat([s.read(row, rows)[1] for s in group]).numpy() == 0
        if absent.any():  # nothing is said of what is not there
            for column in frame.columns[2:]:
                kind = frame[column].dtype.kind
                frame[column] = frame[column].astype(np.float64 if kind == "f" else object).where(~absent)
        return frame

    def by_method(self, sets: Iterable[StoredSet]) -> dict[str, pd.DataFrame]:
        """What ours and every method beside it say of sets: tables with the columns of `predict_table`.

        A mixture has its own methods beside it, one method the simple ones that were fitted with it. The prior alone is
        there beside models that learned from too much to be pooled.
        """
        stored, fitted, device = list(sets), self.fitted(), find(self.device)
        if isinstance(fitted, SetMixture):
            answers = [fitted.predictions(g, device, **self.reading()) for g in self._grouped(stored)]
            of_ours = [fitted.mixed(each) for each in answers]
            ours = torch.cat([each.exp() if self.classifies else each for each in of_ours]).numpy()
            tables = {OURS: self.answered(stored, ours)}
        else:
            tables = {OURS: pd.concat(self.predictions(stored), ignore_index=True)}
            if self.simple_ is None:
                return tables | {PRIOR: self.constant(len(tables[OURS]))}
            answers = [self.simple_.predictions(group, device) for group in self._grouped(stored)]
        for name in answers[0]:
            if name != self.alone:
                tables[name] = self.answered(stored, np.concatenate([each[name] for each in answers]))
        return tables

    def answered(self, sets: Iterable[StoredSet], answers: Float64[np.ndarray, "sets outputs"]) -> pd.DataFrame:
        """Probabilities, or numbers in their own units, as `predict_table` shows them."""
        return self._keyed([*sets], self.columns(torch.from_numpy(answers)))

    def _grouped(self, sets: Iterable[StoredSet], watch: bool = True) -> Iterator[list[StoredSet]]:
        seen = self.scales_.watched(sets, self.features_) if watch else sets
        return batched(seen, TOGETHER, self.max_elements)

    # ------------------------------------------------------------------ what a kind of target says of them

    def _columns(self, outputs: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        """Outputs as columns of a table."""
        raise NotImplementedError

    def columns(self, answers: Float[Tensor, "rows outputs"]) -> dict[str, np.ndarray]:
        """Probabilities, or numbers in their own units, as columns of a table."""
        raise NotImplementedError

    def probable(self, sets: Any, like: SetModel) -> Float[np.ndarray, "sets outputs"]:
        """Probabilities of the classes, target by target, or numbers, in the order that another model has.

        Args:
            like: Whose classes there are. One that this model does not know has the probability 0.
        """
        raise NotImplementedError

    def constant(self, rows: int) -> pd.DataFrame:
        """`prior_` as predictions of so many sets or elements: a table with the columns of `predict_table` but `set`
        and `element`.
        """
        raise NotImplementedError

    def explained(self, group: Sequence[StoredSet], target: Any) -> Any:
        """The output that is explained: one, or one for each set."""
        return 0 if target is None else self.output_of(target)

    def output_of(self, target: Any) -> int:
        """The number of the output that explains this label, or target."""
        raise NotImplementedError

    def truth(self, y: Any, sets: Sets) -> Shaped[np.ndarray, "rows targets"]:
        """Labels as they are compared with predictions, in the order of the sets, or of their elements."""
        raise NotImplementedError

    def codes(self, truth: Shaped[np.ndarray, "sets targets"]) -> Shaped[np.ndarray, "sets columns"]:
        """The same as `losses` takes them: codes of classes, numbers, or events and their hazards."""
        raise NotImplementedError

    def losses(
        self, outputs: Float64[np.ndarray, "sets outputs"], codes: Shaped[np.ndarray, "sets columns"]
    ) -> Float64[np.ndarray, "sets targets"]:
        """Of probabilities, numbers or risks, the loss that `fit` looks at."""
        raise NotImplementedError

    # ------------------------------------------------------------------ explanations

    def explain(
        self,
        sets: Any,
        target: Any = None,
        steps: int = 8,
        method: Explanation = "auto",
    ) -> list[Float[np.ndarray, " _"]]:
        """Scores from 0 to 1: how much each element of each set drove the prediction (omniset.explain).

        Args:
            target: The output explained: a class label (of the first target), or the name or number of a regression
                target. Default: each set's predicted class; the first target.
            steps: Of the integral of attribution.
            method: "attribution" (Hao et al., 2021); "contrast": the same against equal attention; "attention": how
                much of it an element gets, whatever is predicted; "removal": how much the prediction falls without it
                (below), of any model. "auto": attribution where a network attends to elements and has a weight of at
                least 0.1 in the mixture, else removal. Of a mixture all but removal are of its networks.

        Scores of removal: for a model f, a set X and the output that is explained,

            score of i = max(f(X) - f(X without i), 0) / the largest of these

        X without i is X with multiplicity 0 of i: all its copies are gone. f is the
        logarithm of the probability of a class, or the number, or log relative risk, that is predicted. Where no
        element alone changes anything, all scores are 0: one of many like ones can be spared. It is the leave-one-out
        of Li, Monroe and Jurafsky, "Understanding neural networks through representation erasure" (2016).

        Raises:
            ValueError: An unknown target; predictions of elements; attribution of what has no attention; a set of more
                than max_elements elements, and an encoder that cannot read it in shards; one too large for removal.
        """
        self.check_explainable(target, method)
        return [scores for _, _, scores in self.explanations(self.read(sets), target, steps, method)]

    def explanations(
        self,
        sets: Iterable[StoredSet],
        target: Any = None,
        steps: int = 8,
        method: Explanation = "auto",
    ) -> Iterator[tuple[StoredSet, int, Float[np.ndarray, " _"]]]:
        """`explain` piece by piece, of sets as they come: each with the number of the output that is explained."""
        method = self.explains_by(method)
        share = None if method == "removal" else self.share_explained()
        if share is not None and share < LITTLE:
            warnings.warn(
                f"the mixture gives {NETWORK} a weight of {share:.2f}: scores of elements are those of its networks, "
                "which decide little of the prediction; method='removal' explains all of it",
                stacklevel=3,
            )
        for group in self._grouped(sets):
            which: Any = 0 if method == "attention" else self.explained(group, target)
            numbers = torch.as_tensor(which).expand(len(group)).tolist()
            if method == "removal":
                each = [self._removal(stored, number) for stored, number in zip(group, numbers, strict=True)]
            else:
                each = self._attributed(group, which, steps, method)
            yield from zip(group, numbers, each, strict=True)

    def _attributed(
        self, group: list[StoredSet], which: Any, steps: int, method: Explanation
    ) -> list[Float[np.ndarray, " _"]]:
        """The mean over networks of what each says of the elements; sets of like size go together, with all steps."""
        order = sorted(range(len(group)), key=lambda i: len(group[i]))
        outputs = torch.as_tensor(which).expand(len(group))[order]
        most = min(self.max_elements, explain.AT_ONCE) // (1 if method == "attention" else max(steps, 1))
        each: list[np.ndarray] = []
        networks = [network.to(find(self.device)).eval() for network in self._attending()]
        with threads_for(sum(map(len, group)) * self.n_features_in_):
            for part in batched((group[i] for i in order), TOGETHER, max(most, 1)):
                source, how = self._to_explain(part)
                if method == "attention":
                    of_networks = [explain.attention(network, source, **how) for network in networks]
                else:
                    how |= {"baseline": "equal" if method == "contrast" else "zero", "max_elements": self.max_elements}
                    target = outputs[len(each) :][: len(part)]
                    of_networks = [explain.attribute(net, source, target, steps, **how) for net in networks]
                mean = torch.stack(of_networks).mean(0)
                if len(of_networks) > 1:
                    mean = mean / mean.amax(1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
                each += [mean[row, : len(stored)].cpu().numpy() for row, stored in enumerate(part)]
        for network in networks:
            network.to("cpu")
        return [each[row] for row in np.argsort(order)]

    def explain_layers(self, sets: Any, target: Any = None, steps: int = 8) -> list[LayerAttribution]:
        """The attribution of each layer for one set (omniset.explain.attribute_layers). Arguments: explain."""
        self.check_explainable(target, "attribution")
        group = [*self.read(sets)]
        source, options = self._to_explain(group)
        network = self._attending()[0].to(find(self.device)).eval()
        how = {"max_elements": self.max_elements, **options}
        attributed = explain.attribute_layers(network, source, self.explained(group, target), steps, **how)
        network.to("cpu")
        return attributed

    def check_explainable(self, target: Any = None, method: Explanation = "auto") -> None:
        """Raise the ValueError that `explain` would, where that can be said without sets."""
        if self.level == "element":
            raise ValueError("explain is for level='set': what drives the prediction of one element is not attributed")
        method = self.explains_by(method)
        if method != "removal" and not any(map(explain.attends, self._attending())):
            what = f"encoder {self.single!r}" if self.alone is None else f"method {self.alone!r}"
            raise ValueError(
                f"{what} has no attention over the elements of sets, for method={method!r}: take 'removal'"
            )
        if target is not None:
            self.output_of(target)

    def explains_by(self, method: Explanation) -> Explanation:
        """What "auto" is: attribution where a network attends to elements and decides a share, else removal."""
        if method != "auto":
            return method
        share = self.share_explained()
        decides = share is None or share >= LITTLE
        return "attribution" if decides and any(map(explain.attends, self._attending())) else "removal"

    def share_explained(self) -> float | None:
        """The weight, for the first target, of a mixture's networks, which attribution explains; None: all of it."""
        fitted = self.fitted()
        return fitted.weights_of(0)[NETWORK] if isinstance(fitted, SetMixture) and len(fitted.networks) else None

    def _attending(self) -> list[SetNetwork]:
        return self._fitted_networks()[:EXPLAINED]

    def _to_explain(self, group: list[StoredSet]) -> tuple[Any, dict[str, Any]]:
        """What a network reads of sets, and how; one above max_elements in shards, from disk."""
        network = self._attending()[0]
        source = source_of(group, self.max_elements)
        large = not isinstance(source, SetBatch)
        if large and not network.encoder.mini_batch_consistent:
            raise ValueError(
                f"set {group[0].name!r} has {len(group[0])} elements, more than max_elements={self.max_elements}, "
                f"and encoder {self.single!r} cannot read it in shards"
            )
        return source.to(find(self.device)), {"store": network.store_of_large({})} if large else {}

    def _removal(self, stored: StoredSet, output: int) -> Float64[np.ndarray, " elements"]:
        elements, counts = stored.read()
        size, dim = elements.shape
        if size**2 * dim > LARGEST:
            most = int((LARGEST / max(dim, 1)) ** 0.5)
            raise ValueError(
                f"set {stored.name!r} has {size:,} elements: leaving out each in turn takes too long above {most:,} of "
                f"{dim:,} features; method='attribution' explains the networks of a mixture, and of method='ust'"
            )
        if not len(there := torch.nonzero(counts > 0)[:, 0]):
            return np.zeros(size)

        def said(sets: list[StoredSet]) -> Float[np.ndarray, " sets"]:
            outputs = torch.cat([some for _, parts in self.outputs(sets, watch=False) for some in parts]).double()
            if self.classifies:
                outputs = torch.cat([part.log_softmax(1) for part in self.fitted().split(outputs)], 1)
            return outputs[:, output].numpy()

        def without(i: int) -> StoredSet:
            fewer = counts.clone()
            fewer[i] = 0.0
            return StoredSet(elements, fewer, 0, size, stored.name)

        drops, before = np.zeros(size), said([stored])[0]
        for some in there.split(REMOVED):
            drops[some.numpy()] = before - said([without(i) for i in some.tolist()])
        return np.maximum(drops, 0.0) / max(float(drops.max()), np.finfo(np.float64).tiny)

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
        and each has axes of its own, so that a mean over networks would mean nothing. The summaries
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
        self._require_vectors()
        collection = self.read(sets)
        values = np.concatenate([some for _, some in self._vectors(collection)])
        from sklearn import get_config

        chosen = getattr(self, "_sklearn_output_config", {}).get("transform", get_config()["transform_output"])
        if chosen == "pandas":
            return pd.DataFrame(values, collection.names, self.get_feature_names_out())
        if chosen == "polars":
            import polars

            return polars.DataFrame(values, [*self.get_feature_names_out()], orient="row")
        return values

    def get_feature_names_out(self, input_features: Any = None) -> Shaped[np.ndarray, " width"]:
        """Names of the columns of `transform`: ust_1, ust_2, ...; of a mixture ust_3_17: axis 17 of its third
        network; of a simple method "mean of CD4", or "to reference 3" and "from reference 3".

        Args:
            input_features: Is not used.
        """
        self._require_vectors()
        fitted, networks = self.fitted(), self._fitted_networks()
        if self.alone is None:
            one = len(networks) == 1 and isinstance(fitted, SetNetwork)
            prefixes = [str(self.single)] if one else [f"{NETWORK}_{i + 1}" for i in range(len(networks))]
            axes = range(1, networks[0].summary_dim + 1)
            return np.array([f"{prefix}_{axis}" for prefix in prefixes for axis in axes], dtype=object)
        assert isinstance(fitted, SetMixture)
        if fitted.SIMPLE[self.alone].sees == POOLED:
            features = self.features_ or [f"feature {number}" for number in range(1, fitted.input_dim + 1)]
            return np.array(pooling.names_of(features), dtype=object)
        number = len(fitted.restored_references)
        names = [f"{way} reference {k}" for way in ("to", "from") for k in range(1, number + 1)]
        return np.array(names or ["no reference"], dtype=object)  # all sets of training were empty

    def vectors(self, sets: Iterable[StoredSet]) -> Iterator[pd.DataFrame]:
        """`transform` as a table, piece by piece, of sets as they come: a column `set`, and those that
        `get_feature_names_out` names.
        """
        names = self.get_feature_names_out()
        for group, values in self._vectors(sets):
            frame = pd.DataFrame(values, columns=names)
            frame.insert(0, "set", [stored.name for stored in group])
            yield frame

    def _require_vectors(self) -> None:
        self.require_fitted()
        if self.level == "element":
            raise ValueError("transform is for level='set': a model of elements has learned no summary of a set")

    def _fitted_networks(self) -> list[SetNetwork]:
        fitted = self.fitted()
        networks: Any = [fitted] if isinstance(fitted, SetNetwork) else fitted.networks
        return [*networks]

    def _vectors(
        self, sets: Iterable[StoredSet]
    ) -> Iterator[tuple[list[StoredSet], Float32[np.ndarray, "sets width"]]]:
        fitted, networks = self.fitted(), self._fitted_networks()
        if isinstance(fitted, SetMixture) and self.alone is not None:
            for group in self._grouped(sets):
                yield group, fitted.inputs(self.alone, group).astype(np.float32)
            return
        share = self.share_explained()
        if share is not None and share < LITTLE:
            warnings.warn(
                f"the mixture gives its networks a weight of {share:.2f}: vectors of sets are those of its networks, "
                "which decide little of the prediction",
                stacklevel=4,
            )
        for group in self._grouped(sets):
            summaries = np.concatenate([self._summaries(network, group) for network in networks], 1)
            yield group, summaries / np.float32(math.sqrt(len(networks)))

    def _summaries(self, network: SetNetwork, group: list[StoredSet]) -> Float32[np.ndarray, "sets width"]:
        device = find(self.device)
        source = source_of(group, self.max_elements, self.shard_size)
        options = {name: value for name, value in self.reading().items() if name != "max_elements"}
        network.to(device).eval()
        with torch.no_grad():
            out = network.summary(source if isinstance(source, Source) else source.to(device), **options).cpu()
        network.to("cpu")
        require_finite_outputs(out, [stored.name for stored in group], "set")
        return out.numpy()

    # ------------------------------------------------------------------ artefacts

    def _state(self) -> dict[str, Any]:
        network, beside = self.fitted(), self.simple_
        mixed = network if isinstance(network, SetMixture) else beside
        return {
            "input_dim": network.input_dim,
            "widths": network.widths,
            "mixture": None if mixed is None else mixed.shapes(),
            "features": self.features_,
            "encoding": self.encoding_ and self.encoding_.state,
            "reading": self.reading_,
            "targets": self.targets_,
            "single": self.single_,
            "ignored": self.ignored_,
            "prior": [values.tolist() for values in self.prior_],
            "scales": asdict(self.scales_),
            "seen": self.seen_,
        }

    def _restore(self, fitted: dict[str, Any], tables: dict[str, pd.DataFrame], weights: artefacts.Weights) -> None:
        self._check_fitted(fitted)
        dim, widths, shapes = fitted["input_dim"], fitted["widths"], fitted["mixture"]
        self.simple_, self.out_of_fold_, self.importance_ = None, None, None
        self.chosen_ = {}

        def stored() -> SetMixture:
            return self.mixes.empty(dim, widths, self.classifies, shapes, lambda: self.build(dim, widths))

        if self.single is None or (shapes is not None and shapes["networks"]):
            self.network_ = weights.build(stored, "network.")
        else:
            self.network_ = weights.build(lambda: self.build(dim, widths), "network.")
            self.simple_ = None if shapes is None else weights.build(stored, "simple.")
        self.features_, self.targets_ = fitted["features"], fitted["targets"]
        self.prior_ = [np.asarray(values, dtype=np.float64) for values in fitted["prior"]]
        self.scales_ = Scales(**fitted["scales"])
        self.single_, self.ignored_, self.reading_ = fitted["single"], fitted["ignored"], fitted["reading"]
        self.encoding_ = fitted["encoding"] and Encoding.of_state(fitted["encoding"])
        self.seen_ = fitted["seen"]

    def _networks(self) -> nn.Module:
        parts = {"network": self.fitted()}
        return nn.ModuleDict(parts if self.simple_ is None else {**parts, "simple": self.simple_})

    def _check_fitted(self, fitted: dict[str, Any]) -> None:
        """Raise the ValueError of parts of an artefact's `fitted` that do not belong together."""
        if [len(values) for values in fitted["prior"]] != fitted["widths"]:
            raise ValueError(f"fitted.prior must be as long as the outputs of each target, {fitted['widths']}")
        lengths = {"targets": len(fitted["widths"])}
        lengths |= {f"scales.{name}": fitted["input_dim"] for name in fitted["scales"]}
        if fitted["features"] is not None:
            lengths["features"] = fitted["input_dim"]
        if fitted["encoding"] and Encoding.of_state(fitted["encoding"]).features != fitted["features"]:
            raise ValueError("fitted.encoding must give the names in fitted.features")
        for name, length in lengths.items():
            values = fitted["scales"][name.partition(".")[2]] if "." in name else fitted[name]
            if len(values) != length:
                raise ValueError(f"fitted.{name} must have {length} entries, got {len(values)}")
