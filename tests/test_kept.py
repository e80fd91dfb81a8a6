"""Units of an evaluation that are kept: once done never again, with other settings never taken."""

import numpy as np
import pandas as pd
import pytest

from omniset.trials.kept import Done, Kept


def unit(calls, name="a"):
    def work():
        calls.append(name)
        return Done({"x": [1, None], "y": float("nan")}, pd.DataFrame({"score": [0.1, 0.3]}), {"z": np.arange(3.0)})

    return work


def test_a_unit_is_done_once(tmp_path):
    calls, said = [], []
    settings = {"dim": 3, "device": "cpu", "progress": True}
    first = Kept(tmp_path, resume=False, say=said.append).do("a", settings, unit(calls), line="a is done")
    again = Kept(tmp_path, resume=True).do("a", settings | {"device": "cuda", "progress": False}, unit(calls))
    assert (calls, said) == (["a"], ["a is done"])
    assert again.facts["x"] == [1, None]
    assert np.isnan(again.facts["y"])
    pd.testing.assert_frame_equal(again.rows, first.rows)
    assert np.array_equal(again.arrays["z"], first.arrays["z"])


def test_other_settings_are_refused_and_nothing_done_is_thrown_away(tmp_path):
    calls = []
    Kept(tmp_path, resume=False).do("a", {"dim": 3}, unit(calls))
    with pytest.raises(ValueError, match=r"a.json is of another evaluation and cannot be resumed: dim was 3, is 4"):
        Kept(tmp_path, resume=True).do("a", {"dim": 4}, unit(calls))
    with pytest.raises(ValueError, match="earlier evaluation"):
        Kept(tmp_path, resume=False)
    assert calls == ["a"]
    assert (tmp_path / "rows" / "a.json").is_file()
    with pytest.raises(ValueError, match="resume needs the folder"):
        Kept(None, resume=True)


def test_what_is_not_whole_is_done_again(tmp_path):
    calls = []
    kept = Kept(tmp_path, resume=False)
    kept.scratch("a").mkdir()
    kept.do("a", {}, unit(calls))
    assert not kept.scratch("a").exists()
    kept.scratch("a").mkdir()  # of a run that ended when it had kept the unit, before it removed this
    again = Kept(tmp_path, resume=True)
    again.do("a", {}, lambda: 1 / 0)
    assert not again.scratch("a").exists()
    again.scratch("a").mkdir()
    (again.scratch("a") / "notes.txt").write_text("mine")
    again.do("a", {}, lambda: 1 / 0)
    assert (again.scratch("a") / "notes.txt").read_text() == "mine"
    for text in ("{}", "[]", '{"settings": {}, "facts": 3}', "[" * 100_000):
        (tmp_path / "rows" / "a.json").write_text(text)
        with pytest.raises(ValueError, match=r"a\.json is damaged"):
            Kept(tmp_path, resume=True).do("a", {}, lambda: 1 / 0)
    for lost, needs in (("a.json", []), ("a.npz", ["z"])):
        (tmp_path / "rows" / lost).unlink()
        Kept(tmp_path, resume=True).do("a", {}, unit(calls), needs=needs)
    assert len(calls) == 3


def test_without_a_folder_nothing_is_kept():
    calls = []
    kept = Kept(None, resume=False)
    for _ in range(2):
        assert kept.do("a", {}, unit(calls)).facts["x"] == [1, None]
    assert (len(calls), kept.scratch("a")) == (2, None)
