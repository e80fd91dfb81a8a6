"""Sequences, taxa and feature tables as files have them."""

import bz2
import gzip
import json
import lzma
import re
import warnings
import zipfile

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from omniset.microbiomes.references import shares_of
from omniset.microbiomes.samples import are_sequences, matched, pooled, read_samples, refuse_equal_samples
from omniset.microbiomes.sequences import IUPAC, dereplicate, extract, primers_of, reverse_complement
from omniset.microbiomes.taxonomy import Taxa, lineages_of, read_taxonomy
from omniset.tables.dna import read_fasta


def written(folder, name, text):
    path = folder / name
    opener = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opener(path, "wt") as file:
        file.write(text)
    return path


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2"])
def test_fasta_and_fastq(tmp_path, ending):
    fasta = written(tmp_path, f"a.fasta{ending}", "\n>one first\nACgu\n  \nNN-A.\n>two\r\nacgt\r\n")
    assert read_fasta(fasta) == {"one": "ACGTNNA", "two": "ACGT"}
    fastq = written(
        tmp_path, f"a.fq{ending}", "@r1\nACGT\n+\nIIII\n@r2 x\nAC\n+r2\n@@\n\n@r3\nACGU\n+\nIIII\n@r4\nA.\n+\nII\n"
    )
    assert dereplicate(fastq) == {"": {"ACGT": 2, "AC": 1, "AN": 1}}  # a point is a base of old sequencers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("ACGT\n", "line 1: starts with 'ACGT'"),
        (">a\nACGT\n>b\n", "line 3: b has no sequence"),
        (">a\nAC\n>\nAC\n", "line 3: has no name"),
        (">a\nAC\nAXC\n", "line 3: has 'X'"),
        (">a\nAC\n>a\nAC\n", "line 3: has the sequence 'a' a second time"),
        ("@a\nACGT\n+\nII\n", "line 4: has 2 qualities for 4 bases"),
        ("@a\nACGT\n+\n", "line 1: the record is cut off"),
        ("@a\nACGT\nII\n+\n", "line 3: must start with '[+]'"),
        ("@a\nAC\n+\nII\n>b\nAC\n", "line 5: must be the header"),
    ],
)
def test_bad_sequences_name_their_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_fasta(written(tmp_path, "a.fasta", text))


def test_a_file_that_is_cut_off(tmp_path):
    bases = np.random.default_rng(0).choice(list("ACGT"), (99, 80))
    text = "".join(f">{i}\n{''.join(row)}\n" for i, row in enumerate(bases))
    whole = written(tmp_path, "a.fasta.gz", text)
    whole.write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"a.fasta.gz: is cut off"):
        read_fasta(whole)


def slow_extract(text, forward, reverse, mismatches, shortest):
    """Base by base."""

    def best(part, primer):
        counts = [
            sum(not set(IUPAC[a]) <= set(IUPAC[b]) for a, b in zip(part[i:], primer, strict=False))
            for i in range(len(part) - len(primer) + 1)
        ]
        return (counts.index(min(counts)), min(counts)) if counts else (0, 99)

    for strand in (text, reverse_complement(text)):
        i, wrong = best(strand, forward)
        if wrong > mismatches * len(forward):
            continue
        rest = strand[i + len(forward) :]
        other = reverse_complement(reverse)
        j, wrong = best(rest, other)
        if wrong <= mismatches * len(other) and j >= shortest:
            return rest[:j]
    return None


def test_extract_is_what_a_search_base_by_base_finds(monkeypatch):
    monkeypatch.setattr("omniset.microbiomes.sequences.SHORTEST", 10)
    rng = np.random.default_rng(1)
    forward, reverse = primers_of("515F-806R")
    texts, found_one = [], 0
    for number in range(60):
        flank = ["".join(rng.choice(list("ACGT"), rng.integers(0, 40))) for _ in range(3)]
        primers = [
            "".join(rng.choice(list(IUPAC[c])) if rng.random() > 0.12 else rng.choice(list("ACGTN")) for c in primer)
            for primer in (forward, reverse_complement(reverse))
        ]
        text = flank[0] + primers[0] + flank[1] + (primers[1] if number % 7 else "") + flank[2]
        texts.append(reverse_complement(text) if number % 3 == 0 else text)
    texts += ["", "ACGT", forward]
    found = extract(texts, "515F-806R")
    for text, ours in zip(texts, found, strict=True):
        assert ours == slow_extract(text, forward, reverse, 0.2, 10)
        found_one += ours is not None
    assert 15 < found_one < 50


def test_inosine_pairs_with_all():
    assert primers_of("ACGTACGTIi...ACGTACGT") == ("ACGTACGTNN", "ACGTACGT")


@pytest.mark.parametrize("region", ["V4", "ACGT...ACGTACGTAC", "ACGTACGTAC", "ACGTXCGTAC...ACGTACGTAC"])
def test_regions_that_are_none(region):
    with pytest.raises(ValueError, match="region must be one of"):
        primers_of(region)


def test_taxonomies_as_they_come(tmp_path):
    text = (
        "Feature ID\tTaxon\tConfidence\n#q2:types\tcategorical\tnumeric\n"
        "a\td__B; p__P;c__; o__O\t0.9\nb\tUnassigned\t0.2\nc\tk__B;p__P;c__C;o__;f__;g__;s__\t1\n"
    )
    found = read_taxonomy(written(tmp_path, "t.tsv", text))
    assert found == {"a": ("d__B", "p__P", "c__", "o__O"), "b": (), "c": ("k__B", "p__P", "c__C")}
    plain = read_taxonomy(written(tmp_path, "p.tsv", "x\tBacteria;Firmicutes\ny\tD_0__B;D_1__F\n"))
    assert plain == {"x": ("Bacteria", "Firmicutes"), "y": ("D_0__B", "D_1__F")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("Feature ID\tName\na\tb\n", "line 2: must|line 1: must name a column"),
        ("Feature ID\tTaxon\na\n", "line 2: must have a name and a taxon"),
        ("a\tk__B\na\tk__C\n", "line 2: has 'a' a second time"),
        ("a\tk__B; c__C\n", "line 1: the taxon 'k__B; c__C' has 'c__C' at rank 2, phylum belongs"),
    ],
)
def test_bad_taxonomies_name_their_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_taxonomy(written(tmp_path, "t.tsv", text))


def biom(path, counts, features, samples, taxa=None):
    """A BIOM 2.1 file."""
    with h5py.File(path, "w") as root:
        for axis, names, matrix in (
            ("observation", features, sp.csr_matrix(counts.T)),
            ("sample", samples, sp.csr_matrix(counts)),
        ):
            root[f"{axis}/ids"] = np.array(names, dtype="S")
            for name in ("data", "indices", "indptr"):
                root[f"{axis}/matrix/{name}"] = getattr(matrix, name)
        if taxa is not None:
            root["observation/metadata/taxonomy"] = np.array(taxa, dtype="S")
    return path


OF_XYZ = ["k__B; p__P", ["k__B"], ["k__C", "p__"]]


def test_tables_of_all_kinds_are_the_same(tmp_path):
    counts = np.array([[3, 0, 2.5], [0, 0, 1]])
    taxa = [["k__B", "p__P"], ["k__B", ""], ["k__C", "p__"]]
    made = biom(tmp_path / "t.biom", counts, ["x", "y", "z"], ["A", "B"], taxa)
    text = "# From biom\n#OTU ID\tA\tB\ttaxonomy\nx\t3\t0\tk__B; p__P\ny\t0\t0\tk__B\nz\t2.5\t1\tk__C\n"
    sparse = {
        "rows": [{"id": f, "metadata": {"taxonomy": t}} for f, t in zip("xyz", OF_XYZ, strict=True)],
        "columns": [{"id": "A", "metadata": None}, {"id": "B", "metadata": None}],
        "matrix_type": "sparse",
        "shape": [3, 2],
        "data": [[2, 1, 1], [0, 0, 3], [2, 0, 2.5]],
    }
    dense = sparse | {"matrix_type": "dense", "data": counts.T.tolist()}
    of_json = [written(tmp_path, f"{i}.biom", json.dumps(root)) for i, root in enumerate((sparse, dense))]
    for path in (made, *of_json, written(tmp_path, "t.tsv", text), written(tmp_path, "t.tsv.gz", text)):
        found = read_samples(path)
        assert (found.names, found.features) == (["A", "B"], ["x", "y", "z"])
        assert np.array_equal(found.counts.toarray(), counts)
        assert lineages_of(found.taxa) == {"x": ("k__B", "p__P"), "y": ("k__B",), "z": ("k__C",)}
        assert np.array_equal(found.turned().counts.toarray(), counts.T)
    comma = read_samples(written(tmp_path, "t.csv", ",A,B\nx,1,2\n"))
    assert comma.features == ["x"]
    assert comma.counts.toarray().tolist() == [[1], [2]]


SEQUENCES = {name: base * 60 for name, base in zip("abc", "ACG", strict=True)}
LINEAGE = ("k__B; p__P", "k__B; p__Q", "k__B")
PLAIN = "OTUID\tA\tB\na\t1\t4\nb\t2\t0\nc\t3\t6"
RENAMED = (r"\1;size=3\t", r"\1.1\t", r"X_\1\t")
SAID = "'total' is the sum of all others, and is left out"


def beside(head, cells, place):
    """The table with a column more."""
    lines = [line.split("\t") for line in PLAIN.split("\n")]
    return "\n".join(
        "\t".join([*c[:place], str(one), *c[place:]]) for c, one in zip(lines, (head, *cells), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        *(("t.tsv", PLAIN.replace("OTUID", head), "") for head in ("ASV_ID", "Feature", "X", "#OTU ID", "Unnamed: 0")),
        ("t.txt", '"A" "B"\n"a" 1 4\n"b" 2 0\n"c" 3 6\n', ""),  # R
        ("t.csv", 'sep=;\n"";"A";"B"\n"a";1;4\n"b";2;0\n"c";3;6\n', ""),
        *(("t.tsv", beside("total", (5, 2, 9), place), SAID) for place in (1, 3)),
        ("t.tsv", PLAIN + "\ntotal\t6\t10", SAID),
        ("t.tsv", beside("total", (5, 3, 9), 1), "'total' is not the sum of the others, and is taken for one of them"),
        *(("t.tsv", beside(head, LINEAGE, place), "") for head in ("Taxon", "best hit") for place in (0, 1, 3)),
        *(("t.tsv", beside("sequence", SEQUENCES.values(), place), "") for place in (1, 3)),
        ("t.tsv", beside("Confidence", (0.9, 1, 0.7), 3), ""),
        ("t.csv", beside("", "012", 0).replace("\t", ","), ""),  # pandas
        ("m.count_table", beside("total", (5, 2, 9), 1).replace("OTUID", "Representative_Sequence"), SAID),
        (
            "m.count_table",
            "#Compressed Format: groupIndex,abundance. For example 1,6 would mean ...\n#1,A\t2,B\t\n"
            "Representative_Sequence\ttotal\tA\tB\t\na\t5\t1,1\t2,4\t\nb\t2\t1,2\t\nc\t9\t1,3\t2,6\t\n",
            SAID,
        ),
        ("m.shared", "label\tGroup\tnumOtus\ta\tb\tc\t\n.03\tA\t3\t1\t2\t3\t\n.03\tB\t3\t4\t0\t6\t\n", ""),
        *(("t.tsv", re.sub("^([abc])\t", name, PLAIN, flags=re.MULTILINE), "joined") for name in RENAMED),
    ],
)
def test_tables_as_tools_write_them(tmp_path, name, text, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts, found = matched(SEQUENCES, written(tmp_path, name, text), False)
    counts = found.counts.toarray()
    if "not the sum" in said:
        assert found.names == ["total", "A", "B"]
    else:
        assert (found.names, texts, counts.tolist()) == (["A", "B"], [*SEQUENCES.values()], [[1, 2, 3], [4, 0, 6]])
    assert [str(one.message).count(said) for one in caught] == ([1] if said else [])


def test_tables_that_tell_themselves(tmp_path):
    """Sequences, and names of ranks, in columns; Parquet as text."""
    ranks = "\tKingdom\tA\tGenus\na\tB\t1\tG\nb\tB\t2\tNA\n"
    assert read_samples(written(tmp_path, "r.tsv", ranks)).taxa == {"a": "B; G", "b": "B; NA"}
    assert read_samples(written(tmp_path, "n.csv", ",asv,A\n0,10,3\n1,11,4\n")).features == ["10", "11"]
    table = beside("sequence", SEQUENCES.values(), 1)
    assert matched(None, written(tmp_path, "s.tsv", table), False)[0] == [*SEQUENCES.values()]
    pd.read_csv(tmp_path / "s.tsv", sep="\t").to_parquet(tmp_path / "s.parquet")
    held, again = read_samples(tmp_path / "s.parquet"), read_samples(tmp_path / "s.tsv")
    assert (held.names, held.features, held.sequences) == (again.names, again.features, again.sequences)
    few = written(tmp_path, "few.tsv", "OTU\tA\n" + "".join(f"{name}\t1\n" for name in "avwxyz"))
    with pytest.raises(ValueError, match="the table: 5 of 6 features are not in the sequences, such as 'v', 'w', 'x'"):
        matched(SEQUENCES, few, False)
    equal = "OTU\t1\t2\t3\t4\t5\n" + "".join(f"{name}\t2\t2\t2\t2\t2\n" for name in "abc")
    with pytest.raises(ValueError, match="the feature table: 5 of 5 samples come out the same"):
        refuse_equal_samples(read_samples(written(tmp_path, "equal.tsv", equal)))


READS = [base * 60 for base in "ACG"]
NAMES = {  # of the reads of pairs
    "illumina": ("m:{} 1:N:0:AC", "m:{} 2:N:0:AC"),
    "slash": ("r{}/1", "r{}/2"),
    "sra": ("SRR1.{} {} length=60", "SRR1.{} {} length=60"),
    "sra -I": ("SRR1.{}.1", "SRR1.{}.2"),
}


def fastq(folder, name, records):
    return written(folder, name, "".join(f"@{name}\n{text}\n+\n{'I' * len(text)}\n" for name, text in records))


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("form", ["_R{}_001.fastq", "_{}.fq", "in turn"])
def test_fragments_count_once(tmp_path, names, form):
    """Two files of a sample, or one with first and second reads in turn."""
    each = [[(one.format(i, i), text) for i, text in enumerate(READS)] for one in NAMES[names]]
    if form == "in turn":
        files = [fastq(tmp_path, "s.fq", [one for both in zip(*each, strict=True) for one in both])]
    else:
        files = [fastq(tmp_path, f"s{form.format(end)}", records) for end, records in enumerate(each, 1)]
    assert pooled(files, False, "first")[1].counts.sum(1).tolist() == [3]
    assert pooled(files, False, "both")[1].counts.sum() == 6
    with pytest.warns(UserWarning, match="each fragment counts twice. Merge pairs before .vsearch --fastq_mergepairs"):
        pooled(files, False)


def test_files_of_replicates_and_second_reads_alone_are_as_they_are(tmp_path):
    files = [fastq(tmp_path, f"gut_{end}.fq", [(f"{end}x{i}", t) for i, t in enumerate(READS)]) for end in (1, 2)]
    files.append(fastq(tmp_path, "o_R2.fq", [(f"m:{i} 2:N:0:A", t) for i, t in enumerate([*READS, ""])]))
    with pytest.warns(UserWarning, match="o_R2.fq: 1 of 4 reads have no bases, and are left out"):
        found = pooled(files, False, "first")[1]
    assert (found.names, found.counts.sum(1).tolist()) == (["gut_1", "gut_2", "o_R2"], [3, 3, 3])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("S{0}_{1} orig_bc=A", "header"),
        ("S{0}.{1}", "header"),
        ("r{1};sample=S{0};", "sample"),
        ("r{1};barcodelabel=S{0}", "barcodelabel"),
        ("r-{1} ch=1 barcode=S{0} x=9", "barcodelabel"),  # Nanopore
        ("r{1} x; sample=S{0}; y", "sample"),  # OBITools
    ],
)
def test_samples_within_a_file(tmp_path, name, key):
    path = fastq(tmp_path, "p.fq", [(name.format(i % 2, i), READS[i % 3]) for i in range(6)])
    found = pooled([path], False, None, key)[1]
    assert dict(zip(found.names, found.counts.sum(1).tolist(), strict=True)) == {"S0": 3, "S1": 3}
    with pytest.warns(
        UserWarning, match=f"of 2 samples, such as 'S0' and 'S1', and count as one: --sample_from {key} "
    ):
        assert pooled([path], False)[1].names == ["p"]
    with pytest.raises(ValueError, match="line 1: 'r' names no sample that sample_from=header could read"):
        pooled([fastq(tmp_path, "q.fq", [("r", READS[0])])], False, None, "header")


JSON = '{"rows": [{"id": "x"}], "columns": [{"id": "A"}], "shape": [1, 1], "matrix_type": %s, "data": %s}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("#OTU ID\tA\n", "has no counts"),
        ("#OTU ID\tA\nx\t-1\n", "line 2: column 'A' must be a count from 0 to 1e.15, is '-1'"),
        ("#OTU ID\tA\tB\nx\t1\tmany\n", "line 2: column 'B' must be a count .*, is 'many': leave the column out if"),
        ("#OTU ID\tA\tB\nx\t1\n", "line 1: begins with # and has 3 fields, line 2 has 2"),
        ("OTU ID\tA\tB\nx\t1\n", "line 2: has 2 fields, the header has 3"),
        ("#OTU ID\tA\nx\t1\nx\t2\n", "line 3: has the feature 'x' a second time"),
        ("#OTU ID\tA\tA\nx\t1\t2\n", "line 1: has the sample 'A' a second time"),
        ("x\t1\t2\n", "line 1: must be a header"),
        ("#OTU ID\tA\nx\t1_000\n", "line 2: column 'A' must be a count from 0 to 1e.15, is '1_000'"),
        ("#OTU ID\tA\nx\tnan\n", "line 2: column 'A' must be a count from 0 to 1e.15, is 'nan'"),
        ("#OTU ID\tA\tB\nx\t1\t\n", "line 2: column 'B' must be a count from 0 to 1e.15, is ''"),
        ("#OTU ID\tA\nx\t\u0661\n", "line 2: column 'A' must be a count"),
        ("#OTU ID\tA\nx\t1e30\n", "line 2: column 'A' must be a count from 0 to 1e.15, is '1e30'"),
        ("#OTU ID\tA\n\t1\n", "line 2: has no name of a feature"),
        ("#OTU ID\tA\t\nx\t1\t2\n", "line 1: has a sample without a name, number 2"),
        ('{"id": null}', r"is no BIOM 1.0 file \(JSON\): it has no 'rows'"),
        ('{"rows": [', "is cut off, damaged or no BIOM 1.0 file"),
        (JSON % ('"sparse"', "[[0, 1, 5]]"), "1 of its counts are at no place of 1 rows and 1 columns"),
        (JSON % ('"sparse"', "[[0, 0, 1], [0, 0, 2]]"), "has two counts of one feature in one sample"),
        (JSON % ('"sparse"', "[[0, 0, -1]]"), "sample 'A', feature 'x': the count must be a number from 0"),
        (JSON % ('"dense"', "[[1, 2]]"), "cannot reshape"),
        (JSON % ("3", "[]"), "its matrix_type must be sparse or dense, is 3"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_samples(written(tmp_path, "t.tsv", text))


def damage(name, make=None):
    """What replaces a part of a BIOM file: nothing, or what `make` gives of its values."""

    def change(root):
        values = root[name][:]
        del root[name]
        if make is not None:
            root[name] = make(values)

    return change


def group(root):
    del root["sample/matrix/data"]
    root.create_group("sample/matrix/data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage("sample/matrix/indptr"), "it has no sample/matrix/indptr "),
        (damage("observation/ids"), "no BIOM 2.1 file: it has no observation/ids"),
        (damage("sample/matrix/data", lambda v: v * [1, -1, 1]), "sample 'A', feature 'y': the count must be .* is -2"),
        (damage("sample/matrix/indices", lambda v: v + 0.4), "sample/matrix/indices must be a row of whole numbers"),
        (damage("sample/matrix/indices", lambda v: v + 9), "indices"),
        (damage("sample/matrix/indices", lambda v: v * 0), "damaged: it has two counts of one feature in one sample"),
        (damage("sample/matrix/indptr", lambda v: v[:-1]), "2 samples must have 3 numbers in .*indptr, which has 2"),
        (damage("sample/matrix/indptr", lambda v: np.minimum(v, 2)), "must end with the number of data, 3, not 2"),
        (damage("sample/matrix/data", lambda v: v[1:]), "as many indices as data, which are 3 and 2"),
        (damage("sample/matrix/data", lambda v: v.astype("S8")), "sample/matrix/data must be a row of numbers"),
        (damage("sample/matrix/data", lambda v: v * np.nan), "feature 'x': the count must be a number from 0"),
        (damage("sample/ids", lambda v: v[:, None]), "sample/ids must be a row of texts"),
        (damage("sample/ids", lambda v: np.array([b"\xff", b"B"])), "utf-8"),
        (damage("sample/ids", lambda v: np.array([b"", b"B"])), "has a sample without a name, number 1"),
        (damage("observation/ids", lambda v: np.array([b"x", b"y", b"x"])), "has the feature 'x' a second time"),
        (damage("observation/metadata/taxonomy", lambda v: v[1:]), "taxonomy has 2 rows for 3 features"),
        (group, "sample/matrix/data must be a row of numbers"),
    ],
)
def test_biom_files_with_damaged_parts(tmp_path, change, message):
    counts = np.array([[3.0, 2, 0], [0, 0, 1]])
    path = biom(tmp_path / "bad.biom", counts, ["x", "y", "z"], ["A", "B"], [["k__B", "p__P"]] * 3)
    with h5py.File(path, "r+") as root:
        change(root)
    with pytest.raises(ValueError, match=message) as raised:
        read_samples(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_taxa_of_biom_files_as_one_text(tmp_path):
    """Each may be a row of names or one text, of fixed length or not."""
    path = biom(tmp_path / "t.biom", np.array([[1.0, 2]]), ["x", "y"], ["A"])
    for kind in ("S", h5py.string_dtype()):
        with h5py.File(path, "r+") as root:
            root.pop("observation/metadata", None)
            root["observation/metadata/taxonomy"] = np.array(["k__B; p__P", "k__B"], dtype=kind)
        assert read_samples(path).taxa == {"x": "k__B; p__P", "y": "k__B"}


def test_taxa_of_tables_that_cannot_be_read(tmp_path):
    """Few need them: the table is read all the same, and says so."""
    path = written(tmp_path, "t.tsv", "#OTU ID\tA\ttaxonomy\nx\t1\tk__B; c__C\n")
    taxa = Taxa.of([("k__B", "p__P"), ("k__B", "p__Q")])
    with pytest.warns(UserWarning, match=r"taxa in the table of profiles are left out: .*'c__C' at rank 2, phylum"):
        assert shares_of(read_samples(path), taxa, {"x": ("k__B", "p__Q")})[0].tolist() == [[0, 1]]


def test_reads_that_say_how_often_they_were_read(tmp_path):
    text = '>a;size=5;\nACGT\n>b\nACGT\n>c;size=2\nAC\n>d count=4; x\nA\n>e {"count":3}\nA\n'  # usearch, OBITools
    path = written(tmp_path, "d.fasta", text)
    with pytest.warns(UserWarning, match=r"d.fasta: 4 of 5 reads say by size= or count= how often they were read"):
        assert dereplicate(path) == {"": {"A": 7, "ACGT": 6, "AC": 2}}

    with pytest.warns(UserWarning, match="numbers behind names fall, .*: write a_5 as a;size=5"):
        dereplicate(written(tmp_path, "s.fasta", ">x1_9\nACGT\n>y2_3\nAC\n>z_3\nA\n"))


def test_features_that_are_sequences():
    assert are_sequences(["ACGT" * 20, "acgtn" * 20])
    assert not are_sequences(["ACGT" * 20, "ASV1"])


def artifact(path, **parts):
    """As QIIME 2 writes it, with the files of its provenance, which may have the same names."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        uuid = "0a4b2c1e-9d1b-4a5e-8a52-000000000000"
        file.writestr(f"{uuid}/VERSION", "QIIME 2\narchive: 6\nframework: 2024.5.0\n")
        file.writestr(f"{uuid}/provenance/artifacts/x/data/dna-sequences.fasta", ">other\nA\n")
        for name, data in parts.items():
            file.writestr(f"{uuid}/data/{name.replace('_', '-').replace('-DOT-', '.')}", data)
    return path


def test_artifacts_of_qiime_2(tmp_path):
    """Sequences, taxa and tables are read as what is in them; what is wrong names the artifact and the line in it."""
    texts = artifact(tmp_path / "seqs.qza", dna_sequences_DOT_fasta=">a x\nACGT\nAC\n>b\nGG\n")
    assert read_fasta(texts) == {"a": "ACGTAC", "b": "GG"}
    taxa = artifact(tmp_path / "taxa.qza", taxonomy_DOT_tsv="Feature ID\tTaxon\na\td__B; p__P\n")
    assert read_taxonomy(taxa) == {"a": ("d__B", "p__P")}
    made = biom(tmp_path / "t.biom", np.array([[1.0, 0], [2, 3]]), ["x", "y"], ["A", "B"])
    table = read_samples(artifact(tmp_path / "table.qza", feature_table_DOT_biom=made.read_bytes()))
    assert (table.names, table.features) == (["A", "B"], ["x", "y"])
    assert np.array_equal(table.counts.toarray(), read_samples(made).counts.toarray())
    with pytest.raises(ValueError, match=r"taxa.qza: is no artifact .* must hold feature-table.biom, it holds 'taxo"):
        read_samples(taxa)
    with pytest.raises(ValueError, match=r"table.qza: is no artifact .* it must hold taxonomy.tsv or dna-seq"):
        read_fasta(tmp_path / "table.qza")
    bad = artifact(tmp_path / "bad.qza", dna_sequences_DOT_fasta=">a\nACGE\n")
    with pytest.raises(ValueError, match=r"bad.qza: line 2: has 'E', which is no base"):
        read_fasta(bad)
    (tmp_path / "cut.qza").write_bytes(texts.read_bytes()[:-30])
    for read in (read_fasta, read_samples, read_taxonomy):
        with pytest.raises(ValueError, match=r"cut.qza: is no artifact of QIIME 2 that can be read: File is not a zip"):
            read(tmp_path / "cut.qza")
    with pytest.raises(ValueError, match=r"wrong.qza"):
        read_samples(artifact(tmp_path / "wrong.qza", feature_table_DOT_biom=b"no HDF5"))
