"""Genomes come out of tables as they are, whichever way round, in whatever container; what is wrong is named."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from genome_oracle import content, write

from omniset.genomes.data import GenomeFile, GenomeTable, read_table
from omniset.genomes.formats import kind_of_identifier, normalise
from omniset.genomes.metadata import read_qualities, read_taxonomy
from omniset.genomes.readers import Genome

TINY = "genome\tCOG0001\tCOG0002\nA\t2\t0\nB\t0\t1\n"
TINY_CONTENT = [("A", {"COG0001": 2}), ("B", {"COG0002": 1})]


@pytest.fixture
def made():
    """13 genomes x 29 families, about a third present, one genome and one family without any."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.4, (13, 29))
    counts[5], counts[:, 7] = 0, 0
    counts[3, 11] = 70_000
    names = [f"GCF_{i:09d}.{i % 3}" for i in range(13)]
    return pd.DataFrame(counts, index=names, columns=[f"K{i:05d}" for i in rng.permutation(29)])


def expected(frame):
    return {g: {f: int(n) for f, n in row.items() if n} for g, row in frame.iterrows()}


def long_lines(frame):
    rows = [f"{g}\t{f}\t{frame.loc[g, f]}" for g in frame.index for f in frame.columns]
    return "genome\tfamily\tcount\n" + "\n".join(rows) + "\n"


WRITERS = {
    "wide tsv": lambda f, p: f.to_csv(p, sep="\t", index_label="genome"),
    "wide csv": lambda f, p: f.to_csv(p, index_label="anything"),
    "semicolons": lambda f, p: f.to_csv(p, sep=";"),
    "pandas index": lambda f, p: f.to_csv(p, sep="\t"),
    "quoted": lambda f, p: f.to_csv(p, quoting=1),
    "R row names": lambda f, p: p.write_text("\t".join(f.columns) + "\n" + f.to_csv(sep="\t", header=False)),
    "floats": lambda f, p: f.astype(float).to_csv(p, sep="\t"),
    "CRLF and blank lines": lambda f, p: p.write_bytes(
        b"\xef\xbb\xbf" + f.to_csv(sep="\t", lineterminator="\r\n\r\n").encode()
    ),
    "transposed": lambda f, p: f.T.to_csv(p, sep="\t", index_label="family"),
    "transposed, unnamed": lambda f, p: f.T.to_csv(p, sep="\t"),
    "commented header": lambda f, p: p.write_text("# made today\n#" + f.to_csv(sep="\t", index_label="genome")),
    "empty for absent": lambda f, p: f.replace(0, np.nan).to_csv(p, sep="\t"),
    "NA for absent": lambda f, p: f.replace(0, np.nan).to_csv(p, sep="\t", na_rep="NA"),
    "long": lambda f, p: p.write_text(long_lines(f)),
    "ko: prefix": lambda f, p: f.rename(columns="ko:{}".format).to_csv(p, sep="\t", index_label="assembly"),
    "parquet, index": lambda f, p: f.to_parquet(p),
    "parquet, named index": lambda f, p: f.rename_axis("bin").to_parquet(p),
    "parquet, column": lambda f, p: f.reset_index(names="x").to_parquet(p, index=False),
    "parquet, floats and missing": lambda f, p: f.replace(0, np.nan).to_parquet(p),
    "parquet, transposed": lambda f, p: f.T.to_parquet(p),
    "parquet, text": lambda f, p: f.astype(str).to_parquet(p),
    "parquet, long": lambda f, p: pd.read_csv(write(p.with_suffix(".tsv"), long_lines(f)), sep="\t").to_parquet(p),
}


@pytest.mark.parametrize("block", [97, 1 << 20])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_table_gives_the_same_genomes(kind, block, made, tmp_path, monkeypatch):
    monkeypatch.setattr("omniset.genomes.readers.BLOCK", block)
    path = tmp_path / ("t.parquet" if "parquet" in kind else "t.csv")
    WRITERS[kind](made, path)
    file = GenomeFile(path)
    for _ in range(2):
        found = content(file)
        assert [name for name, _ in found] == list(made.index)
        assert dict(found) == expected(made)
        assert file.identifiers == "KO"
        assert file.position == file.size == path.stat().st_size
        assert [w.split(": ")[1] for w in file.warnings][-1] == "1 genomes have no family at all"
    ways = {"transposed": "families-by-genomes", "long": "long"}
    assert file.format == next((way for word, way in ways.items() if word in kind), "genomes-by-families")
    assert ("empty cells were read as 0" in "".join(file.warnings)) == ("absent" in kind or "missing" in kind)


def test_a_stream_holds_a_block_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("omniset.genomes.readers.BLOCK", 60)
    monkeypatch.setattr("omniset.tables.sheets.PEEK", 3)
    rows = "".join(f"G{i}\t{i}\t1\n" for i in range(100_000))
    file = GenomeFile(write(tmp_path / "t.tsv", "genome\tCOG0001\tCOG0002\n" + rows))
    genomes = iter(file)
    assert next(genomes).families == ["COG0002"]
    assert next(genomes).counts.tolist() == [1, 1]
    assert file.position < file.size / 10


def test_rows_of_a_long_table_are_summed_and_counted_as_one_without_a_count(tmp_path):
    text = "bin\tKO\tother\nA\tko:K00001\tx\nA\tK00002\tx\n\nA\tK00001\tx\nB\tK00002\ty\n"
    assert content(GenomeFile(write(tmp_path / "t.tsv", text))) == [
        ("A", {"K00001": 2, "K00002": 1}),
        ("B", {"K00002": 1}),
    ]
    text = "genome,family,count\nA,x,2\nA,x,3.0\nA,y,0\n"
    assert content(GenomeFile(write(tmp_path / "t.csv", text))) == [("A", {"x": 5})]


def test_presence_as_truth_values(tmp_path):
    frame = pd.DataFrame({"COG0001": [True, False], "COG0002": [True, True]}, index=["A", "B"])
    want = [("A", {"COG0001": 1, "COG0002": 1}), ("B", {"COG0002": 1})]
    frame.to_csv(tmp_path / "t.csv")
    frame.to_parquet(tmp_path / "t.parquet")
    assert content(GenomeFile(tmp_path / "t.csv")) == content(GenomeFile(tmp_path / "t.parquet")) == want


def test_one_kind_of_identifiers_out_of_a_long_table(tmp_path):
    path = write(tmp_path / "t.tsv", "genome\tfamily\nA\tCOG0001\nA\tK00001\nB\tK00001\n")
    file = GenomeFile(path, identifiers="COG")
    assert content(file) == [("A", {"COG0001": 1}), ("B", {})]
    assert "2 families or entries are not COG" in file.warnings[0]


def test_several_files_and_folders(tmp_path):
    write(tmp_path / "b.tsv", "genome\tCOG0003\nC\t3\n")
    write(tmp_path / "a.tsv.gz", TINY)
    write(tmp_path / ".hidden.tsv", "x")
    write(tmp_path / "notes.md", "x")
    both = [*TINY_CONTENT, ("C", {"COG0003": 3})]
    assert content(GenomeFile(tmp_path)) == both
    file = GenomeFile([tmp_path / "b.tsv", str(tmp_path / "a.tsv.gz")])
    assert content(file) == both[2:] + both[:2]
    assert file.position == file.size == sum(p.stat().st_size for p in tmp_path.glob("[ab].*"))


# ---------------------------------------------------------------------- which way round, and which families


def test_known_families_tell_the_way_round(tmp_path):
    text = "x\tfoo\tbar\nspam\t1\t0\neggs\t2\t1\n"
    path = write(tmp_path / "t.tsv", text)
    genomes = [("spam", {"foo": 1}), ("eggs", {"foo": 2, "bar": 1})]
    turned = [("foo", {"spam": 1, "eggs": 2}), ("bar", {"eggs": 1})]
    guess = GenomeFile(path)
    assert content(guess) == genomes
    assert 'say format="families-by-genomes"' in guess.warnings[0]
    for known, want in (({"foo"}, genomes), ({"eggs", "ham"}, turned)):
        file = GenomeFile(path, known=known)
        assert content(file) == want
        assert file.warnings == []
    assert content(GenomeFile(path, format="families-by-genomes")) == turned
    with pytest.raises(ValueError, match=r"t.tsv: was said to be genomes-by-families, but its families are in its f"):
        GenomeFile(path, format="genomes-by-families", known={"eggs"})
    with pytest.raises(ValueError, match="has families .known to the model. in its header and in its first column"):
        GenomeFile(path, known={"foo", "bar", "spam", "eggs"})


def test_identifiers_tell_the_way_round(tmp_path):
    path = write(tmp_path / "t.tsv", "genome\tg1\tg2\nPF00001.3\t1\t0\nPF00002.17\t0\t4\n")
    assert content(GenomeFile(path)) == [("g1", {"PF00001": 1}), ("g2", {"PF00002": 4})]
    with pytest.raises(ValueError, match="say format='families-by-genomes'"):
        GenomeFile(path, format="genomes-by-families")
    # Strains may be called as carbohydrate-active enzymes are.
    rtab = write(tmp_path / "gene_presence_absence.Rtab", "Gene\tCE10\tx9\nlacZ\t1\t0\ngroup_7\t1\t1\n")
    file = GenomeFile(rtab)
    assert (file.format, file.warnings) == ("families-by-genomes", [])
    assert content(file) == [("CE10", {"lacZ": 1, "group_7": 1}), ("x9", {"group_7": 1})]


def test_mixed_identifiers_are_told(tmp_path):
    path = write(tmp_path / "t.tsv", "genome\tCOG0001\tK00001\tK00002\tarCOG00001\nA\t1\t1\t1\t1\n")
    file = GenomeFile(path)
    assert len(content(file)[0][1]) == 4
    assert file.identifiers == "mixed"
    assert "mixed (2 KO, 1 COG, 1 arCOG): take one kind with identifiers" in file.warnings[-1]
    chosen = GenomeFile(path, identifiers="cog")
    assert content(chosen) == [("A", {"COG0001": 1, "arCOG00001": 1})]
    assert (chosen.identifiers, len(chosen.warnings)) == ("COG", 1)
    assert "2 families or entries are not COG and were left out" in chosen.warnings[0]
    assert content(GenomeFile(path, identifiers="arCOG")) == [("A", {"arCOG00001": 1})]
    with pytest.raises(ValueError, match="t.tsv: has no family of kind EC, it has 2 of KO, 1 of COG"):
        list(GenomeFile(path, identifiers="EC"))
    both = GenomeFile(write(tmp_path / "u.tsv", "genome\tCOG0001\tarCOG00001\nA\t1\t1\n"))
    assert (len(list(both)), both.warnings) == (1, [])


def test_names_that_differ_in_their_version_stay_apart(tmp_path):
    path = write(tmp_path / "t.tsv", "genome\tPF00001.1\tPF00001\tPF00002.7\nA\t1\t2\t3\n")
    file = GenomeFile(path)
    assert content(file) == [("A", {"PF00001.1": 1, "PF00001": 2, "PF00002": 3})]
    assert "1 families such as PF00001.1 have the identifier of another one" in file.warnings[0]
    known = GenomeFile(write(tmp_path / "l.tsv", "genome\tfamily\nA\tPF00001.1\nA\tPF00001.2\n"), known={"PF00001.1"})
    assert content(known) == [("A", {"PF00001.1": 1, "PF00001": 1})]


def test_kinds_and_spelling_of_identifiers():
    names = {
        **{"COG": "COG0001", "arCOG": "arCOG00123", "KOG": "KOG0001", "GO": "GO:0008150", "InterPro": "IPR000001"},
        **{"KO": "ko:K00001 K00001", "Pfam": "PF00001.21 PF00001", "TIGRFAM": "TIGR00001.3 TIGR00001"},
        **{
            "EC": "1.1.1.- EC:1.1.1.-",
            "CAZy": "CBM50_2",
            "eggNOG": "ENOG5025C3G",
            "UniRef": "UniRef90_A",
            "other": "K1",
        },
    }
    for kind, (name, *spelled) in ((kind, both.split()) for kind, both in names.items()):
        assert (kind_of_identifier(name), normalise(name)) == (kind, *(spelled or [name]))
    spelled = {" KO:K00002 ": "K00002", "EC 1.1.1.-": "EC:1.1.1.-", "EC:2.1.1.n1": "EC:2.1.1.n1", "gene.1": "gene.1"}
    assert {name: normalise(name) for name in spelled} == spelled


# ---------------------------------------------------------------------- bad tables

OTU = "# Constructed from biom file\n#OTU ID\tS1\tS2\nCOG0001\t1.0\t0.0\nCOG0002\t0.0\t2.0\n"
LONG = "genome\tfamily\tcount\nA\tx\t1\n"
BAD = {
    "negative": (TINY.replace("\t2", "\t-2"), "line 2: column 'COG0001' is '-2', it must be a whole number from 0"),
    "fraction": (TINY.replace("\t2", "\t0.5"), "line 2: column 'COG0001' is '0.5', it must be a whole number"),
    "word": (TINY.replace("\t2", "\tmany"), "line 2: column 'COG0001' is 'many', it must be a whole number"),
    "large": (TINY.replace("\t2", "\t3000000000"), "line 2: column 'COG0001' is '3e+09'"),
    "empty beside 0": (TINY.replace("\t2", "\t"), "column 'COG0001' is empty where line 2, column 'COG0002' is 0: wri"),
    "genome twice": (TINY + "A\t1\t1\n", "line 4: genome 'A' is there twice (first at line 2)"),
    "genome without a name": (TINY + "\t1\t1\n", "line 4: column 'genome' is empty"),
    "family twice": (TINY.replace("COG0002", "COG0001"), "family 'COG0001' is there twice"),
    "family without a name": (TINY.replace("COG0002", " "), "column 3 has no name, each family needs one: does the li"),
    "no header": ("A\t1\t1\nB\t1\t2\n", "family '1' is there twice: is there a header?"),
    "too few fields": (TINY + "C\t1\n", "line 4: has 2 fields, the header has 3: is the file cut off?"),
    "too many fields": (TINY + "C\t1\t1\t1\n", "line 4: has 4 fields, the header has 3"),
    "comment below the header": (TINY + "# two\n", "line 4: has 1 fields, the header has 3: comments may stand"),
    "header only": ("genome\tCOG0001\n", "has no genomes: there are no rows below its header"),
    "no column of genomes": ("K00001\tK00002\n1\t0\n0\t1\n", "line 1: all columns are families: the first, 'K00001'"),
    "one column": ("genome\nA\nB\n", "is of no known format: its columns are 'genome'. What can be read: genomes-by"),
    "long names": ("\t".join(["x" * 99] * 20) + "\nA" + "\tb" * 19 + "\n", "xxx...' and 17 more. What can be read"),
    "Roary's csv": ("Gene,Non-unique Gene name,Annotation\nlacZ,,b\n", "give the file gene_presence_absence.Rtab"),
    "counts of letters": ("LETTER\tCOUNT\tGROUP\nJ\t3\tI\n", "give COGclassifier's cog_classify.tsv"),
    "long, apart": (LONG + "B\tx\t1\nA\ty\t1\n", "line 4: genome 'A' again, after other genomes (it began at line 2)"),
    "long, count": (LONG.replace("1", "1.5"), "line 2: column 'count' is '1.5', it must be a whole number"),
    "long, no count": (LONG.replace("1", ""), "line 2: column 'count' is empty, it must be a whole number"),
    "long, family": (LONG + "A\t\t1\n", "line 3: column 'family' is empty"),
    "long, genome": (LONG + "\tx\t1\n", "line 3: column 'genome' is empty"),
    "transposed, genome twice": ("family\tA\tA\nCOG0001\t1\t1\n", "genome 'A' is there twice"),
    "transposed, family twice": (OTU.replace("COG0002", "COG0001"), "'COG0001' is there twice (first at line 3)"),
    "decimal commas": (TINY.replace("\t2", "\t2,0"), "(of 'A'). Write numbers without a separator of thousands and"),
    **{
        f"OTU table, {cell}": (OTU.replace("2.0", cell), f"line 4: column 'S2' is '{cell}', it must be a whole number")
        for cell in ("1_000", "1,000", "1 000", "-1", "inf", "-inf", "0x10", "1d3", "\u0663", "2.0.0")
    },
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_tables_are_named(kind, tmp_path):
    text, message = BAD[kind]
    path = write(tmp_path / "t.tsv", text)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        list(GenomeFile(path))
    assert str(error.value).startswith(f"{path}: ")
    assert str(error.value).removeprefix(str(path)).isprintable()
    assert len(str(error.value).removeprefix(str(path))) < 550


@pytest.mark.parametrize(
    "said",
    ["[1]", '{"index_columns": null}', '{"index_columns": [null, [], "no"]}', b"\xff", "no JSON", "[" * 200_000, ""],
)
def test_what_pandas_wrote_is_a_hint_only(said, made, tmp_path):
    table = pa.Table.from_pandas(made.reset_index(names="genome"), preserve_index=False)
    pq.write_table(table.replace_schema_metadata({"pandas": said}), tmp_path / "t.parquet")
    pq.write_table(table.replace_schema_metadata(), tmp_path / "plain.parquet")
    assert content(GenomeFile(tmp_path / "t.parquet")) == content(GenomeFile(tmp_path / "plain.parquet"))


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
@pytest.mark.parametrize("hashes", ["#", "##"])
def test_names_that_begin_with_a_hash_are_names(hashes, separator, tmp_path):
    def read(text):
        return content(GenomeFile(write(tmp_path / "t.tsv", text.replace("\t", separator))))

    for name in "AB":
        want = [(n.replace(name, hashes + name), families) for n, families in TINY_CONTENT]
        assert read(TINY.replace(f"\n{name}", f"\n{hashes}{name}")) == want
        assert read("#" + TINY.replace(f"\n{name}", f"\n{hashes}{name}")) == want
    both = TINY.replace("\nA", f"\n{hashes}A").replace("\nB", f"\n{hashes}B")
    assert read("#" + both) == [(hashes + name, families) for name, families in TINY_CONTENT]
    families = {f"{hashes}COG0001": 3, "COG0002": 1}
    assert read(f"family\tA\n{hashes}COG0001\t3\nCOG0002\t1\n") == [("A", families)]
    assert read(f"genome\tfamily\tcount\n{hashes}A\tx\t1\nB\ty\t2\n") == [(f"{hashes}A", {"x": 1}), ("B", {"y": 2})]
    assert read(f"genome\tfamily\tcount\nA\tx\t1\n{hashes}B\ty\t2\n") == [("A", {"x": 1}), (f"{hashes}B", {"y": 2})]
    quality = read_qualities(write(tmp_path / "q.tsv", f"genome\tcompleteness\nA\t90\n{hashes}B\t91\n"))
    assert quality["completeness"].to_dict() == {"A": 90, f"{hashes}B": 91}


@pytest.mark.parametrize("value", [-1, 0.5, np.inf, "some"])
def test_bad_values_in_parquet(value, tmp_path):
    frame = pd.DataFrame({"COG0001": [1, value], "COG0002": [1, 1]}, index=["A", "B"])
    frame.astype({"COG0001": str} if value == "some" else {}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=f"t.parquet: row 2: column 'COG0001' is '{value}', it must be a whole number"):
        list(GenomeFile(tmp_path / "t.parquet"))


def test_bad_arguments_and_files(tmp_path):
    a, b = write(tmp_path / "a.tsv", TINY), write(tmp_path / "b.tsv", TINY)
    long = write(tmp_path / "c.tsv", LONG)
    (tmp_path / "folder").mkdir()
    for path, options, message in (
        ([a, b], {}, "b.tsv: line 2: genome 'A' is there twice .in .*a.tsv.: each must"),
        ([a, long], {}, "c.tsv: is of the format long, .*a.tsv is of genomes-by-families"),
        (a, {"format": "wide"}, "format must be 'auto' or one of genomes-by-families, .*, got 'wide'"),
        (a, {"identifiers": "x"}, "identifiers must be 'auto' or one of COG, .*, got 'x'"),
        ([], {}, "path must name at least one file"),
        (tmp_path / "folder", {}, "folder is a folder without a file that ends in .tsv"),
        (write(tmp_path / "t.parquet", "x" * 99), {}, "t.parquet: is cut off, damaged or no Parquet file"),
    ):
        with pytest.raises(ValueError, match=message):
            list(GenomeFile(path, **options))
    with pytest.raises(FileNotFoundError, match="none.tsv"):
        GenomeFile(tmp_path / "none.tsv")


# ---------------------------------------------------------------------- in memory


def test_a_table_is_what_its_genomes_are(made):
    genomes = [
        Genome(name, [f for f in made if row[f]], row.to_numpy()[row > 0].astype(np.int64))
        for name, row in made.iterrows()
    ]
    table = GenomeTable.from_genomes(iter(genomes))
    assert (len(table), table.names) == (13, list(made.index))
    assert isinstance(table.counts, sp.csr_array)
    assert table.counts.dtype == np.int32
    assert table.families == list(dict.fromkeys(f for g in genomes for f in g.families))
    np.testing.assert_array_equal(table.counts.toarray(), made[table.families].to_numpy())
    assert dict(content(table)) == expected(made)


def test_tables_of_frames(made):
    wide = GenomeTable.from_frame(made)
    assert (wide.names, wide.families) == (list(made.index), list(made.columns))
    np.testing.assert_array_equal(wide.counts.toarray(), made.to_numpy())
    with pytest.warns(UserWarning, match="genome 'Total' is the sum of all others and was left out"):
        assert GenomeTable.from_frame(pd.concat([made, made.sum().rename("Total").to_frame().T])).names == wide.names


@pytest.mark.parametrize("rows", [[5, 2, 11], np.array([5, 2, 11]), [], np.arange(13) % 3 == 1])
def test_selected_genomes(rows, made):
    table = GenomeTable.from_frame(made)
    table.categories["K00001"] = "E"
    chosen = table.select(rows)
    frame = made.iloc[rows] if len(rows) != 13 else made[rows]
    assert (chosen.names, chosen.families, chosen.categories) == (list(frame.index), table.families, {"K00001": "E"})
    np.testing.assert_array_equal(chosen.counts.toarray(), frame.to_numpy())


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"x": [1.5]}, index=["a"]), "genome 'a', 'x' is 1.5, it must be a whole number from 0"),
        (pd.DataFrame({"x": [np.nan]}, index=["a"]), "genome 'a', 'x' is nan"),
        (pd.DataFrame({"x": [-2]}, index=["a"]), "genome 'a', 'x' is -2"),
        (pd.DataFrame({"x": ["1_0"]}, index=["a"]), "'x' is '1_0': counts must be num"),
        (pd.DataFrame({"x": [1, 1]}, index=["a", "a "]), "genome 'a' is there twice"),
        (pd.DataFrame([[1, 1]], index=["a"], columns=["x", "x"]), "family 'x' is there twice"),
        (pd.DataFrame({"x": [1, 2]}, index=["a", None]), "the frame's index must be of names, number 2 is empty"),
        (pd.DataFrame([[1, 2]], index=["a"], columns=["x", np.nan]), "its columns must be of names, number 2 is empty"),
        (pd.DataFrame({"a": [1, 2]}, index=["K00001", "K00002"]), "has families such as 'K00001', .* give frame.T"),
    ],
)
def test_frames_are_read_as_strictly_as_files(frame, message):
    with pytest.raises(ValueError, match=message):
        GenomeTable.from_frame(frame)


def test_cells_of_frames_are_numbers_also_as_text():
    text = pd.DataFrame({"x": ["1", " 2.0"], "y": ["1e3", "0"]}, index=["a ", "b"])
    assert content(GenomeTable.from_frame(text)) == [("a", {"x": 1, "y": 1000}), ("b", {"x": 2})]
    for cell in ("y", "1_000", "inf", "0x10", "1,5", 1 + 2j, pd.Timestamp("2020-01-01")):
        with pytest.raises(ValueError, match="genome 'a', 'x' is .*: counts must be numbers"):
            GenomeTable.from_frame(pd.DataFrame({"x": np.array([cell], dtype=object)}, index=["a"]))


def test_genomes_that_are_no_table():
    one = Genome("a", ["x"], np.array([1]))
    for genomes, message in (
        ([one, one], "genome 'a' is there twice"),
        ([Genome("a", ["x"], np.array([2**31]))], "genome 'a' has a family more than 2147483647 times"),
    ):
        with pytest.raises(ValueError, match=message):
            GenomeTable.from_genomes(genomes)


def test_a_table_is_read_with_its_warnings(tmp_path):
    path = write(tmp_path / "t.tsv", "x\tfoo\tbar\na\t1\t0\n")
    with pytest.warns(UserWarning, match="nothing tells whether rows are genomes or families"):
        table = read_table(path)
    assert (table.names, table.families, table.counts.toarray().tolist()) == (["a"], ["foo"], [[1]])


@pytest.mark.slow
def test_real_genomes(data_folder):
    path = data_folder / "genomes/archaea_pfam.tsv.gz"
    with pytest.warns(UserWarning, match="18 families such as PF01654.1 have the identifier of another one"):
        table = read_table(path)
    frame = pd.read_csv(path, sep="\t", index_col=0)
    assert frame.shape == (1002, 5970)
    assert table.names == list(frame.index)
    np.testing.assert_array_equal(table.counts.toarray(), frame[table.families].to_numpy())
    qualities = read_qualities(data_folder / "genomes/archaea_metadata.tsv.gz")
    taxonomy = read_taxonomy(data_folder / "genomes/archaea_metadata.tsv.gz")
    assert set(qualities.index) == set(taxonomy.index) == set(table.names)
    assert qualities["completeness"].between(90, 100).all()
    assert taxonomy.nunique()[["phylum", "order", "family"]].tolist() == [12, 69, 137]
