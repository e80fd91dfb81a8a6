"""What an interruption leaves is judged right: `python -m benchmarks interruptions`."""

import gzip
import json
import shutil

import pytest
from benchmarks.interruptions import Judge, files_of

SAME = {"out/names.csv": "a", "mine": "m"}
EARLIER = SAME | {"out/config.json": '{"seed": 1}', "out/weights": "one", "out/rows/0.csv": "1"}
LATER = SAME | {"out/config.json": '{"seed": 0}', "out/weights": "two", "out/rows/0.csv": "2"}
LATER |= {"out/report.html": "one o'clock"}


def files(folder, texts):
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return files_of(folder)


@pytest.fixture
def judged(tmp_path):
    before, after = (files(tmp_path / "x", texts) for texts in (EARLIER, LATER))
    judge = Judge(before, after, {"out/report.html"})

    def of(texts):
        now = files(tmp_path / "x", texts)
        return judge.damage(now), judge.is_done(now), judge.left(now)

    return of


def test_a_folder_of_one_run_is_whole(judged):
    assert judged(EARLIER) == ({}, False, [])
    assert judged(LATER) == ({}, True, [])
    assert judged(LATER | {"out/report.html": "two o'clock"}) == ({}, True, [])


@pytest.mark.parametrize("names", [["out/weights"], ["out/config.json", "out/rows/0.csv"], ["out/report.html"]])
def test_a_folder_of_two_runs_is_mixed(judged, names):
    damage, done, left = judged(EARLIER | {name: LATER[name] for name in names})
    assert damage == {"mixed": sorted(names)}
    assert (done, left) == (False, [])


@pytest.mark.parametrize("start", [EARLIER, LATER])
@pytest.mark.parametrize("name", ["out/weights", "out/names.csv", "mine"])
def test_what_is_gone_or_changed_is_lost(judged, start, name):
    assert judged(start | {name: "half"})[0] == {"lost": [name]}
    assert judged({n: text for n, text in start.items() if n != name})[0] == {"lost": [name]}


def test_what_is_neither_old_nor_new_is_left(judged):
    left = ["out/.weights-x1", "tmp", "tmp/y", "tmp/y/z"]
    assert judged(EARLIER | {"out/.weights-x1": "t", "tmp/y/z": ""}) == ({}, False, left)


def test_a_result_is_compared_without_its_time(tmp_path):
    folders = []
    for clock, number in ((1, 5), (2, 5), (2, 6)):
        folder = tmp_path / f"{len(folders)}"
        folder.mkdir()
        (folder / "report.json").write_text(
            json.dumps({"command": f"{clock}", "at": [{"seconds": clock, "r": number}]})
        )
        with gzip.GzipFile(folder / "table.csv.gz", "wb", mtime=clock) as file:
            file.write(f"{number}".encode())
        folders.append(files_of(folder))
    first, again, other = folders
    for name in first:
        assert first[name] != again[name]
        assert first[name].result == again[name].result != other[name].result
