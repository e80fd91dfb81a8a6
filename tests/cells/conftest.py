"""What tests of cells need of libraries: text that anndata can write, and reports without UMAP."""

import pandas as pd
import pytest
from cell_files import SMALL, cells

from omniset.cells import CellEmbedder, projection


def pytest_collection_modifyitems(items):
    """Anndata as it is today and pandas 3: sets options that do nothing any more."""
    for item in items:
        if item.path.parent.name == "cells":
            for option in ("mode.chained_assignment", "future.infer_string"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:The '{option}' option is deprecated"))


@pytest.fixture
def text_as_objects():
    """Anndata cannot write the new type of text of pandas 3."""
    with pd.option_context("future.infer_string", False):
        yield


@pytest.fixture
def without_umap(monkeypatch):
    """It takes longer to import than all tests to run."""
    monkeypatch.setattr(projection.importlib.util, "find_spec", lambda name: None)


@pytest.fixture(scope="session")
def fitted() -> CellEmbedder:
    """Not to be changed."""
    return CellEmbedder(**SMALL).fit(cells(), batch_key="batch")
