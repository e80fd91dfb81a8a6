"""Type and shape checks are on in the whole test run, docstring examples included."""

import os
from pathlib import Path

from jaxtyping import install_import_hook

install_import_hook("omniset", "beartype.beartype")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)  # tests run side by side


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def data_folder() -> Path:
    if "OMNISET_DATA" not in os.environ:
        pytest.skip("OMNISET_DATA is not set: tests on the real data files are left out")
    return Path(os.environ["OMNISET_DATA"])


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict) -> None:
    import omniset

    names = ("SetBatch", "SetClassifier", "SetRegressor", "AttentionState", "multiset_attention", "compact")
    doctest_namespace.update({name: getattr(omniset, name) for name in names}, torch=torch, np=np)
