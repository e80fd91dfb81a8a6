"""Files of FCS written by hand, segment by segment, are read back to the number; others are one line."""

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.fuzz.seeds import fcs_bytes

from omniset.cli import main
from omniset.core.encoding import Encoding
from omniset.tables.reading import open_sets
from small import QUIET, TINY, in_a_folder  # noqa: F401

CHANNELS = [("Time", ""), ("FSC-A", ""), ("FITC-A", "CD3"), ("PE-A", "CD4"), ("Event_length", ""), ("APC-A", "")]
EVENTS = 11


def values(seed=0, events=EVENTS):
    return np.random.default_rng(seed).uniform(-50, 900, (events, len(CHANNELS))).round(2)


def words(channels=CHANNELS, kind="F", bits=32, order="1,2,3,4", events=EVENTS, **more):
    held = {"$PAR": len(channels), "$TOT": events, "$DATATYPE": kind, "$BYTEORD": order}
    for n, (name, stain) in enumerate(channels, 1):
        held |= {f"$P{n}N": name, f"$P{n}B": bits, f"$P{n}R": 1024, f"$P{n}E": "0,0"}
        held |= {f"$P{n}S": stain} if stain else {}
    return held | {f"${name}": value for name, value in more.items()}


def write(name, data, held, **options):
    with open(name, "wb") as file:
        file.write(fcs_bytes(data, held, **options))


def raw(data):
    with open("a.fcs", "wb") as file:
        file.write(data)


def read(path, **options):
    (stored,) = open_sets(path, **options)
    return stored.read()[0]


@pytest.mark.parametrize("version", ["FCS2.0", "FCS3.0", "FCS3.1", "FCS3.2"])
@pytest.mark.parametrize(("kind", "bits"), [("F", 32), ("D", 64)])
@pytest.mark.parametrize(("order", "mark"), [("1,2,3,4", "<"), ("4,3,2,1", ">")])
@pytest.mark.parametrize("far", [False, True])
def test_numbers_with_fractions(version, kind, bits, order, mark, far):
    held = values().astype(f"{mark}f{bits // 8}")
    write("a.fcs", held.tobytes(), words(kind=kind, bits=bits, order=order), version=version, far=far)
    table = open_sets("a.fcs")
    assert table.features == ["FSC-A", "CD3", "CD4", "APC-A"]
    assert table.ignored == ["Time", "Event_length"]
    assert table.reading == {"cofactor": 150.0, "compensate": True}
    (stored,) = table
    exact = held.astype(np.float64)
    expected = np.column_stack([exact[:, 1], *np.arcsinh(exact[:, [2, 3, 5]] / 150).T])
    torch.testing.assert_close(stored.read()[0], torch.from_numpy(expected).float(), rtol=1e-6, atol=0)
    assert torch.equal(stored.read(3, 5)[0], stored.read()[0][3:8])
    assert (stored.name, len(stored), stored.read()[1].tolist()) == ("a", EVENTS, [1] * EVENTS)
    plain = read("a.fcs", features=["CD4", "Time"], cofactor=0.0)
    assert torch.equal(plain, torch.from_numpy(exact[:, [3, 0]].astype(np.float32)))
    assert torch.equal(read("a.fcs", features=["Time"], cofactor=5.0)[:, 0], torch.from_numpy(exact[:, 0]).float())


def test_whole_numbers_of_different_widths_behind_logarithmic_amplifiers():
    """Bits above those that $PnR needs mean nothing; four decades of 1024 steps are 1 to 10,000."""
    rng = np.random.default_rng(0)
    channels = [("FSC-H", ""), ("FL1-H", ""), ("FL2-H", "CD8"), ("Width", "")]
    rows = np.zeros(7, dtype=[("0", ">u2"), ("1", ">u2"), ("2", ">u4"), ("3", ">u1")])
    clean = {name: rng.integers(0, top, 7) for name, top in (("0", 1024), ("1", 1024), ("2", 100_000), ("3", 256))}
    for name, held in clean.items():
        rows[name] = held
    rows["1"] |= 0xF400  # of 10 bits
    rows["2"] |= 0xFF000000
    more = {"P1B": 16, "P2B": 16, "P3B": 32, "P4B": 8, "P3R": 100_000, "P4R": 256, "P2E": "4,0", "P3E": "5.0, 0.1"}
    write("a.fcs", rows.tobytes(), words(channels, "I", order="4,3,2,1", events=7, **more), version="FCS2.0")
    expected = [clean["0"], 10 ** (4 * clean["1"] / 1024), 0.1 * 10 ** (5 * clean["2"] / 100_000), clean["3"]]
    expected[1:3] = [np.arcsinh(column / 2) for column in expected[1:3]]
    found = read("a.fcs", cofactor=2.0)
    torch.testing.assert_close(found, torch.from_numpy(np.column_stack(expected)).float(), rtol=1e-6, atol=0)


def test_a_mass_cytometer():
    channels = [("Time", "Time"), ("Event_length", "Event_length"), ("Y89Di", "89Y_CD45"), ("Center", "Center")]
    held = values()[:, :4].astype("<f4")
    write("a.fcs", held.tobytes(), words(channels, CYT="DVSSCIENCES-CYTOF-6.0"))
    table = open_sets("a.fcs")
    assert (table.features, table.reading) == (["89Y_CD45", "Center"], {"cofactor": 5.0, "compensate": True})
    expected = np.column_stack([np.arcsinh(held[:, 2].astype(np.float64) / 5), held[:, 3]])
    torch.testing.assert_close(read("a.fcs"), torch.from_numpy(expected).float(), rtol=1e-6, atol=0)


def test_names_that_are_there_twice_or_not():
    channels = [("FITC-A", "CD3"), ("FITC-H", "CD3"), ("PE-A", " "), ("APC-A", "CD4")]
    write("a.fcs", values()[:, :4].astype("<f4").tobytes(), words(channels))
    assert open_sets("a.fcs").features == ["CD3 (FITC-A)", "CD3 (FITC-H)", "PE-A", "CD4"]


@pytest.mark.parametrize("mark", ["/", "|", "\x0c", "\\"])
def test_marks_within_values_and_empty_values(mark):
    held = words() | {"$OP": f"A{mark}{mark}B", "$P3S": f"CD3{mark}{mark}x"}
    write("a.fcs", values().astype("<f4").tobytes(), held, mark=mark)
    assert open_sets("a.fcs").features == ["FSC-A", f"CD3{mark}x", "CD4", "APC-A"]
    write("a.fcs", values().astype("<f4").tobytes(), {"$OP": "", "$INST": ""} | words() | {"$P3S": ""}, mark=mark)
    assert open_sets("a.fcs").features == ["FSC-A", "FITC-A", "CD4", "APC-A"]


def test_a_folder_is_matched_by_the_names_of_channels(tmp_path):
    (tmp_path / "s").mkdir()
    order = [3, 2, 1, 0, 5, 4]
    write("s/b.fcs", values(1).astype("<f4").tobytes(), words())
    write("s/a.fcs", values(2, 3)[:, order].astype("<f4").tobytes(), words([CHANNELS[i] for i in order], events=3))
    write("s/c.FCS", b"", words(events=0))
    found = {stored.name: stored.read()[0] for stored in open_sets("s", cofactor=0.0, ignore=["APC-A"])}
    assert {name: len(rows) for name, rows in found.items()} == {"a": 3, "b": EVENTS, "c": 0}
    assert [*found] == ["a", "b", "c"]
    assert open_sets("s", ignore=["APC-A"]).features == ["CD4", "CD3", "FSC-A"]
    assert torch.equal(found["b"], torch.from_numpy(values(1)[:, [3, 2, 1]].astype(np.float32)))
    assert torch.equal(found["a"], torch.from_numpy(values(2, 3)[:, [3, 2, 1]].astype(np.float32)))
    write("s/d.fcs", values().astype("<f4").tobytes(), words(CYT="Helios"))
    with pytest.raises(ValueError, match=r"s: a.fcs and d.fcs are one of flow and one of mass cytometry: give --cofac"):
        open_sets("s")
    write("s/d.fcs", values().astype("<f4").tobytes(), words(P3S="CD19"))
    with pytest.raises(ValueError, match=r"d.fcs: has no channel 'CD3', it has 'Time', 'FSC-A', 'CD19'"):
        open_sets("s")
    np.save("s/e.npy", np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"has files of sets of several kinds, such as a.fcs and e.npy"):
        open_sets("s")


DYES = ["APC-A", "FITC-A", "PE-A"]  # in another order than the channels
SPILLS = np.array([[1, 0.02, 0.11], [0, 1, 0.23], [0.07, 0.31, 1]])  # of each dye (rows) what each detector sees


def spill(matrix=SPILLS, names=DYES):
    return ",".join([str(len(names)), *names, *(repr(float(share)) for share in np.ravel(matrix))])


@pytest.mark.parametrize("word", ["$SPILLOVER", "SPILL", "SPILLOVER"])
def test_spillover_is_taken_out(word):
    """What the dyes sent out is known, and spills over by the definition: a detector sees the shares of all dyes."""
    sent = values()
    seen = sent.copy()
    places = [[name for name, _ in CHANNELS].index(dye) for dye in DYES]
    for to, place in enumerate(places):
        seen[:, place] = sum(SPILLS[dye, to] * sent[:, places[dye]] for dye in range(3))
    write("a.fcs", seen.astype("<f8").tobytes(), words(kind="D", bits=64) | {word: spill()})
    torch.testing.assert_close(read("a.fcs", cofactor=0.0), torch.from_numpy(sent[:, [1, 2, 3, 5]]).float())
    expected = torch.from_numpy(np.arcsinh(sent[:, [3]] / 150)).float()
    torch.testing.assert_close(read("a.fcs", features=["CD4"]), expected)
    (stored,) = table = open_sets("a.fcs", features=["CD4"])
    assert torch.equal(stored.read(3, 5)[0], stored.read()[0][3:8])
    assert table.reading == {"cofactor": 150.0, "compensate": True}
    plain = read("a.fcs", cofactor=0.0, compensate=False)
    torch.testing.assert_close(plain, torch.from_numpy(seen[:, [1, 2, 3, 5]]).float())


def test_spillover_of_numbers_behind_a_logarithmic_amplifier():
    rows = np.random.default_rng(0).integers(0, 1024, (7, 2)).astype("<u2")
    held = words([("FITC-A", ""), ("PE-A", "")], "I", 16, events=7, P1E="4,1")
    write("a.fcs", rows.tobytes(), held | {"SPILL": spill([[1, 0.5], [0.25, 1]], ["FITC-A", "PE-A"])})
    seen = np.column_stack([10 ** (4 * rows[:, 0] / 1024), rows[:, 1].astype(np.float64)])
    first = (seen[:, 0] - 0.25 * seen[:, 1]) / (1 - 0.125)  # of two dyes, by hand
    expected = np.column_stack([first, (seen[:, 1] - 0.5 * seen[:, 0]) / (1 - 0.125)])
    torch.testing.assert_close(read("a.fcs", cofactor=0.0), torch.from_numpy(expected).float(), rtol=1e-5, atol=1e-3)


def test_what_is_compensated_already_stays():
    data = values().astype("<f4").tobytes()
    channels = [(f"Comp-{name}" if name in DYES else name, stain) for name, stain in CHANNELS]
    write("a.fcs", data, words(channels))
    expected = read("a.fcs")
    for held in (words(channels) | {"SPILL": spill()}, words() | {"SPILL": spill(np.eye(3))}):
        write("a.fcs", data, held)
        assert torch.equal(read("a.fcs"), expected)


def test_files_with_and_without_a_matrix(tmp_path):
    (tmp_path / "s").mkdir()
    data = values().astype("<f4").tobytes()
    write("s/a.fcs", data, words() | {"SPILL": spill()})
    write("s/b.fcs", data, words())
    with pytest.warns(UserWarning, match=r"s: spillover is taken out of a.fcs and the like, but b.fcs does"):
        table = open_sets("s")
    first, second = (stored.read()[0] for stored in open_sets("s", encoding=Encoding.of_numbers(table.features)))
    assert torch.equal(second, read("s/b.fcs"))
    assert not torch.allclose(first, second)
    assert len(list(open_sets("s", compensate=False))) == 2


def test_spillover_of_fcs_2_is_told_once_and_not_at_predict():
    write("a.fcs", values().astype("<f4").tobytes(), words() | {"$DFC1TO2": "3"})
    with pytest.warns(UserWarning, match=r"a.fcs: has spillover as in FCS 2.0, which is not taken out"):
        table = open_sets("a.fcs")
    assert len(list(open_sets("a.fcs", encoding=Encoding.of_numbers(table.features)))) == 1


SPILLED = {
    "no number": ("PE-A,1", "must be a number n, n channels and n x n numbers, with commas between"),
    "too few": (spill(SPILLS[:2]), "must be a number n, n channels and n x n numbers"),
    "no numbers": (spill().replace("0.31", "much"), "must be a number n, n channels and n x n numbers"),
    "an unknown channel": (spill(names=["APC-A", "FITC-A", "PE-B"]), "names the channel 'PE-B', the file has 'Time',"),
    "twice": (spill(names=["APC-A", "APC-A", "PE-A"]), "names a channel twice"),
    "no inverse": (spill(np.ones((3, 3))), "has no inverse"),
    "infinite": (spill().replace("0.31", "inf"), "has no inverse"),
}


@pytest.mark.parametrize("case", SPILLED)
def test_wrong_matrices(case):
    text, said = SPILLED[case]
    write("a.fcs", values().astype("<f4").tobytes(), words() | {"$SPILLOVER": text})
    with pytest.raises(ValueError, match=r"^a\.fcs: its spillover, \$SPILLOVER, ") as caught:
        read("a.fcs")
    assert said in str(caught.value)
    assert len(read("a.fcs", compensate=False)) == EVENTS


GOOD = values().astype("<f4").tobytes()


def shifted(by, which="HEADER", end=0, gap=0, tail=b""):
    """A file of which one of the two says that DATA begins, and ends, elsewhere, behind some spaces."""
    data = bytes([32] * gap) + GOOD + tail
    held = fcs_bytes(data, words())
    start = len(held) - len(data) + gap
    for number, to in ((start - gap, start), (len(held) - 1, start + len(GOOD) - 1)):
        in_header, in_text = (to + by * (which in (who, "both")) for who in ("HEADER", "TEXT"))
        in_header, in_text = (n + end * (number == len(held) - 1) for n in (in_header, in_text))
        held = held.replace(f"{number:>8}".encode(), f"{in_header:>8}".encode(), 1)
        held = held.replace(f"/{number:>12}".encode(), f"/{in_text:>12}".encode(), 1)
    return held


DIFFERS = "differs in what HEADER, TEXT and $TOT say"
LATIN = fcs_bytes(GOOD, words(P3S="TGF?")).replace(b"TGF?", "TGFß".encode("latin-1"))
CONTRADICTED = {
    "HEADER a byte early": (shifted(-1), DIFFERS),
    "HEADER a byte early, behind a gap": (shifted(-1, gap=5), DIFFERS),
    "TEXT two bytes late, before a checksum": (shifted(2, "TEXT", gap=5, tail=b"0" * 8), DIFFERS),
    "$TOT of fewer events": (fcs_bytes(GOOD, words(TOT=10)), DIFFERS),
    "$TOT of more events": (fcs_bytes(GOOD, words(TOT=12)), DIFFERS),
    "the last byte is the one behind it": (shifted(0, end=1), ""),
    "both a byte early, and a byte too many": (shifted(0, tail=b"x"), "has bytes behind DATA that are too few"),
    "$NEXTDATA of nothing": (fcs_bytes(GOOD, words(NEXTDATA=77)), ""),
    "a gain": (fcs_bytes((values() * 4).astype("<f4").tobytes(), words(**{f"P{n}G": 4 for n in range(1, 7)})), ""),
    "a stain that ends in the mark": (fcs_bytes(GOOD, words(P3S="TGFb//")), ""),
    "a mark too many at the end": (fcs_bytes(GOOD, {"$PAR": 6} | words() | {"$Z": "CD4/"}), ""),
    "Latin-1": (LATIN, ""),
}


@pytest.mark.parametrize("case", CONTRADICTED)
def test_what_a_file_says_twice_is_compared_with_its_bytes(case, recwarn):
    held, note = CONTRADICTED[case]
    raw(held)
    plain = open_sets("a.fcs", cofactor=0.0)
    (stored,) = plain
    np.testing.assert_array_equal(stored.read()[0].numpy(), values()[:, [1, 2, 3, 5]].astype(np.float32))
    assert plain.features[1] == ("TGFb/" if b"TGFb" in held else "TGFß" if b"TGF" in held else "CD3")
    assert [note in str(one.message) for one in recwarn] == [True] * bool(note)


def test_spillover_in_percent():
    write("a.fcs", GOOD, words() | {"SPILL": spill()})
    expected = read("a.fcs")
    write("a.fcs", GOOD, words() | {"SPILL": spill(100 * SPILLS)})
    with pytest.warns(UserWarning, match="a.fcs: has its spillover, SPILL, in percent"):
        torch.testing.assert_close(read("a.fcs"), expected)


WRONG = {
    "another file": (lambda: raw(b"set,x\n" + bytes(99)), "is no FCS file: it begins with b'set,x"),
    "empty": (lambda: raw(b""), "is no FCS file: it begins with b''"),
    "header alone": (lambda: raw(fcs_bytes(GOOD, words())[:58]), "its TEXT is said to be bytes 58 to"),
    "cut off": (lambda: raw(fcs_bytes(GOOD, words())[:-1]), "it says 11 events of 24 bytes from byte"),
    "more events": (lambda: raw(fcs_bytes(GOOD, words(TOT=12))[:-5]), "is cut off or damaged: it says 12 events of"),
    "two starts": (lambda: raw(shifted(2, gap=9)[:-2]), "events of 24 bytes from byte 432 (HEADER) or 430 (TEXT) on"),
    "no number": (lambda: write("a.fcs", GOOD, words(TOT="many")), "$TOT must be a whole number, it is 'many'"),
    "no channels": (lambda: write("a.fcs", GOOD, words(PAR=0)), "has no channels"),
    "too many channels": (lambda: write("a.fcs", GOOD, words(PAR=7)), "$P7B must be a whole number, it is ''"),
    "text": (lambda: write("a.fcs", GOOD, words(kind="A")), "$DATATYPE must be I, F or D, it is 'A'"),
    "bits": (lambda: write("a.fcs", GOOD, words(kind="I", bits=10)), "channel 'Time' has numbers of 10 bits, which"),
    "another type": (lambda: write("a.fcs", GOOD, words(P2DATATYPE="I")), "channel 'FSC-A' is of another type than $D"),
    "order": (lambda: write("a.fcs", GOOD, words(order="3,4,1,2")), "$BYTEORD must be 1,2,3,4 or 4,3,2,1, it is '3,4"),
    "counts": (lambda: write("a.fcs", GOOD, words(MODE="C")), "has counts of events ($MODE C), not the events"),
    "amplifier": (lambda: write("a.fcs", GOOD, words(P1E="4")), "$P1E must be two numbers with a comma between, it is"),
    "range": (lambda: write("a.fcs", GOOD, words(kind="I", P1R=0)), "$P1R must be 1 or more, it is 0"),
    "names": (lambda: write("a.fcs", GOOD, words(P4N="FITC-A", P4S="CD3")), "two channels are called 'CD3 (FITC-A)'"),
    "NaN": (lambda: write("a.fcs", b"\xff" * len(GOOD), words()), "row 1, 'FSC-A' is nan: features"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_are_one_line(case, capsys):
    make, said = WRONG[case]
    make()
    pd.DataFrame({"set": ["a"], "label": ["p"], "age": [1]}).to_csv("labels.csv", index=False)
    with pytest.raises(ValueError, match=r"^a\.fcs: ") as caught:
        read("a.fcs")
    assert said in str(caught.value)
    assert main(["fit", "a.fcs", "--target=labels.csv", "--out=run", *TINY, *QUIET]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_options():
    write("a.fcs", GOOD, words())
    for options, said in (
        ({"features": ["CD8"]}, "a.fcs: has no channel 'CD8', it has 'Time'"),
        ({"ignore": ["CD8"]}, "a.fcs: has no channel 'CD8'"),
        ({"ignore": ["FSC-A", "CD3", "CD4", "APC-A"]}, "a.fcs: no channel is left"),
        ({"cofactor": -1.0}, "cofactor must be a number not below 0, got -1"),
        ({"use_rep": "X"}, "a.fcs: --use_rep is for files of another kind"),
        ({"keep": ["label"]}, "a.fcs: has no column 'label': give a file of labels, --target"),
    ):
        with pytest.raises(ValueError, match=said):
            open_sets("a.fcs", **options)
