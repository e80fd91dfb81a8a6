import pandas as pd
import pytest


@pytest.fixture
def text_as_objects():
    with pd.option_context("future.infer_string", False):
        yield
