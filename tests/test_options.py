"""Options that are declared once: what is refused, what is stored, and what the shell makes of words."""

import inspect
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest

from omniset.cli.options import takes
from omniset.options import Computing, blaming, check, from_plain, option, options, options_of, without_folder


@options
class Made(Computing):
    """Options."""

    kind: Literal["a", "b"] = option("a", "Which kind.")
    number: int = option(3, "None: nothing.", least=1, most=9)
    rate: float | None = option(None, "Of change.", above=0, below=1, changes_fit=False)
    pair: tuple[float, float] = option((0.0, 1.0), "Lowest and highest.", least=0)
    lengths: Sequence[int] = option((5, 7), "Of words.", least=1)
    store: str = option("device", "Of what waits.")
    flag: bool = option(False, "Do it.")


SHARED = ("seed", "device", "progress")  # last, whoever declares them


class Estimator(Made):
    """An estimator.

    Args:
        {options}
    """


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "c"}, "kind must be one of a, b, got 'c'"),
        ({"number": 0}, "number must be >= 1 and <= 9, got 0"),
        ({"number": 10}, "number must be >= 1 and <= 9, got 10"),
        ({"number": 2.5}, "number must be a whole number, got 2.5"),
        ({"number": True}, "number must be a whole number, got True"),
        ({"number": None}, "number must be a whole number, got None"),
        ({"number": 2**60}, "number must be <= 9,007,199,254,740,992"),
        ({"rate": 0.0}, "rate must be > 0 and < 1, got 0.0"),
        ({"rate": float("nan")}, "rate must be > 0 and < 1, got nan"),
        ({"rate": "1"}, "rate must be a number, got '1'"),
        ({"pair": (0.0, 1.0, 2.0)}, "pair must have 2 members"),
        ({"pair": (-1.0, 1.0)}, "pair must be >= 0, got"),
        ({"lengths": "5"}, "lengths must be a sequence, got '5'"),
        ({"lengths": [5, 0]}, "lengths must be >= 1, got"),
        ({"store": 3}, "store must be text, got 3"),
        ({"flag": 1}, "flag must be True or False, got 1"),
        ({"seed": -1}, "seed must be >= 0"),
    ],
)
def test_what_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        check(Made, given)


@pytest.mark.parametrize(
    "given",
    [
        {"number": np.int64(9), "flag": np.bool_(True), "rate": np.float32(0.5)},
        {"rate": None, "pair": [0, 1], "lengths": [1], "store": "a"},
    ],
)
def test_what_is_taken(given):
    check(Made, given)


def test_an_option_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match="Estimator has no option 'lenghts', did you mean 'lengths'"):
        Estimator(lenghts=(3,))
    with pytest.raises(TypeError, match="Estimator has no option 'zzz'; there are: .*kind, number, "):
        Estimator(zzz=3)
    assert next(iter(inspect.signature(Estimator).parameters)) == "kind"


def test_each_option_is_documented_with_its_default_and_bounds():
    assert "    number: None: nothing. Default 3, >= 1 and <= 9.\n" in Estimator.__doc__
    assert "{options}" not in Estimator.__doc__
    assert [*options_of(Made)] == ["kind", "number", "rate", "pair", "lengths", "store", "flag", *SHARED]


def test_what_a_model_keeps():
    """No folder; tuples as they were; what makes no other model is no part of the fingerprint."""
    made = Made(store="disk:here", pair=(0.25, 0.5), rate=0.5)
    stored = without_folder(made.plain())
    assert (stored["store"], stored["pair"], stored["rate"]) == ("disk", [0.25, 0.5], 0.5)
    assert from_plain(Made, stored)["pair"] == (0.25, 0.5)
    assert {"rate", "device", "progress"}.isdisjoint(made.fingerprint())
    assert made.fingerprint() != Made(store="disk:here", pair=(0.25, 0.75)).fingerprint()


def test_commands_get_what_the_class_takes():
    received = {}

    @takes(Made, "number", "lengths", "pair", "device", as_at_fit=True)
    def command(name, **given):
        received.update(given, name=name)

    command("x", number=2, lengths="3, 5", pair="0,0.5")
    assert received == {"name": "x", "number": 2, "lengths": (3, 5), "pair": (0.0, 0.5), "device": "auto"}
    with pytest.raises(ValueError, match="lengths must be whole numbers with commas between, got '3,x'"):
        command("x", lengths="3,x")
    with pytest.raises(ValueError, match="number must be >= 1"):
        command("x", number=0)


def test_errors_of_encoders_name_their_settings():
    with pytest.raises(ValueError, match="encoder_options={'dropout': 'x'}: not that"), blaming({"dropout": "x"}):
        raise TypeError("not that")
    with pytest.raises(TypeError, match="ours"), blaming(None):
        raise TypeError("ours")
    with pytest.raises(ValueError, match="^dim must be"), blaming({"dropout": 0.1}):
        raise ValueError("dim must be divisible")
