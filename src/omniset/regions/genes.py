"""What a network looks at for a pair of regions."""

from __future__ import annotations

import numpy as np
import pandas as pd

from omniset.regions.blend import attention_of
from omniset.regions.data import Regions
from omniset.regions.methods import Method
from omniset.regions.seed import CrossAttention
from omniset.regions.training import SeedMethod


def attended(method: Method, pair: Regions, known: Regions, top: int) -> pd.DataFrame:
    """Known regions that two regions read from, or genes that attend to genes. See `ConnectivityPredictor.explain`.

    Args:
        known: The regions of the fit, in any order.

    Raises:
        ValueError: A method without attention.
    """
    if isinstance(method, SeedMethod) and isinstance(method.network, CrossAttention):
        weights = method.weights(pair)
        order = np.argsort(weights, axis=None, kind="stable")[::-1][:top]
        i, j = np.unravel_index(order, weights.shape)
        genes = np.array(pair.genes, dtype=object)
        columns = {"gene_i": np.array(["CLS", *pair.genes], dtype=object)[i], "gene_j": genes[j]}
        return pd.DataFrame({**columns, "weight": weights[i, j].astype(np.float64)})
    attention = attention_of(method)
    if attention is None:
        raise ValueError("explain is for methods with attention: the default, 'attention' and architecture='seed'")
    names = np.array(sorted(known.names), dtype=object)
    parts = []
    for name, weights in zip(pair.names, attention.read(pair), strict=True):
        order = np.argsort(-weights, kind="stable")[:top]
        parts.append(pd.DataFrame({"region": name, "known": names[order], "weight": weights[order]}))
    return pd.concat(parts, ignore_index=True)
