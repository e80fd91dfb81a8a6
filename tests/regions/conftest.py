import pandas as pd
import pytest

from omniset.regions import kernel_ridge, methods, set_attention


@pytest.fixture
def text_as_objects():
    with pd.option_context("future.infer_string", False):
        yield


@pytest.fixture(scope="module")
def quick():
    """Few trees, kernels to choose from and steps: they take longer than most tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "ITERATIONS", 5)
        patch.setattr(set_attention, "STEPS", 5)
        for name in ("RATES", "WIDTHS", "WEIGHTS", "PENALTIES"):
            patch.setattr(kernel_ridge, name, getattr(kernel_ridge, name)[:1])
        yield patch
