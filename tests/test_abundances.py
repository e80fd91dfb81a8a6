"""Samples of a table of counts are multisets of features with vectors: the same as the long table that says so."""

import itertools
import lzma

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.fuzz import seeds

from omniset.microbiomes.samples import read_samples
from omniset.tables.reading import open_sets
from small import in_a_folder  # noqa: F401


def tables(tmp_path, kind):
    """Counts, vectors of the features in another order and of one more, and the long table of both."""
    path = tmp_path / f"table.{kind}"
    (seeds.biom if kind == "biom" else seeds.samples)(path, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    names = [f"ref{i}" for i in rng.permutation(seeds.FEATURES + 1)]
    vectors = pd.DataFrame(rng.normal(size=(len(names), 3)), columns=["u", "v", "w"]).round(4)
    vectors.insert(1, "feature", names)
    vectors.to_csv(tmp_path / "vectors.csv", index=False)
    held = read_samples(path)
    rows, columns = held.counts.nonzero()
    long = pd.DataFrame({"set": np.array(held.names)[rows], "element": np.array(held.features)[columns]})
    long["multiplicity"] = held.counts.toarray()[rows, columns]
    return path.name, long.merge(vectors.rename(columns={"feature": "element"}), on="element"), held.names


@pytest.mark.parametrize("kind", ["biom", "tsv", "csv"])
def test_a_table_is_its_long_table(kind, tmp_path):
    path, long, names = tables(tmp_path, kind)
    table = open_sets(path, vectors="vectors.csv")
    assert (table.features, [s.name for s in table]) == (["u", "v", "w"], names)
    for stored in table:
        rows = long[long["set"] == stored.name].set_index("element").loc[stored.names_of_elements()]
        assert torch.equal(stored.read()[0], torch.tensor(rows[["u", "v", "w"]].to_numpy(), dtype=torch.float32))
        assert stored.read()[1].tolist() == rows["multiplicity"].tolist()
        assert torch.equal(stored.read(1, 3)[0], stored.read()[0][1:4])
        assert len(rows) == (long["set"] == stored.name).sum()
    assert open_sets(path, ["w", "u"], vectors="vectors.csv").features == ["w", "u"]
    assert open_sets(path, ignore=["v"], vectors="vectors.csv").features == ["u", "w"]
    if kind == "biom":
        with pytest.raises(ValueError, match="table.biom: has counts of features, of which --vectors must be given"):
            open_sets(path)


def test_sequences_are_shares_of_their_kmers(tmp_path):
    """Words are counted anew, letter by letter; those with N are none."""
    path, long, _ = tables(tmp_path, "biom")
    rng = np.random.default_rng(2)
    texts = {f"ref{i}": "".join(rng.choice([*"ACGTN"], 23, p=[0.3, 0.3, 0.2, 0.15, 0.05])) for i in range(19)}
    with lzma.open("seqs.fasta.xz", "wt") as file:
        file.writelines(f">{name} a description\n{text[:11].lower()}\n{text[11:]}\n" for name, text in texts.items())
    table = open_sets(path, vectors="seqs.fasta.xz")
    words = ["".join(word) for word in itertools.product("ACGT", repeat=3)]
    assert table.features == words
    for stored in table:
        rows, counts = stored.read()
        assert counts.tolist() == long[long["set"] == stored.name]["multiplicity"].tolist()
        for name, row in zip(stored.names_of_elements(), rows.double().numpy(), strict=True):
            here = [texts[name][i : i + 3] for i in range(21) if "N" not in texts[name][i : i + 3]]
            np.testing.assert_allclose(row, [here.count(word) / len(here) for word in words], rtol=1e-6)
    some = open_sets(path, ["TTT", "ACA"], vectors="seqs.fasta.xz")
    assert torch.equal(next(iter(some)).read()[0], next(iter(table)).read()[0][:, [63, words.index("ACA")]])
    assert open_sets(path, ignore=words[:60], vectors="seqs.fasta.xz").features == words[60:]


SEQUENCES = {
    "one lacks": (">ref0\nACGT\n", {}, "vectors.fa: has no vector of feature 'ref1' and "),
    "twice": (">ref0\nACGT\n>ref0\nACC\n", {}, "vectors.fa: line 3: has the sequence 'ref0' a second time"),
    "too short": (">ref0\nACGT\n>ref1\nACNGT\n", {}, "vectors.fa: 'ref1' has no 3 bases in a row that are A, C, G or"),
    "a protein": (">ref0\nMEEP\n", {}, "vectors.fa: line 2: has 'E', which is no base of the IUPAC code"),
    "a table": ("feature,u\nref0,1\n", {}, "vectors.fa: line 1: starts with 'feature,u': FASTA starts with '>'"),
    "no word": (">ref0\nACGT\n", {"features": ["ACGT"]}, "vectors.fa: 'ACGT' is none of the 3-mers, such as 'AAA'"),
}


@pytest.mark.parametrize("case", SEQUENCES)
def test_wrong_sequences(case, tmp_path):
    path, _, _ = tables(tmp_path, "tsv")
    text, options, said = SEQUENCES[case]
    (tmp_path / "vectors.fa").write_text(text)
    with pytest.raises(ValueError, match=r"vectors\.fa: ") as caught:
        open_sets(path, vectors="vectors.fa", **options)
    assert said in str(caught.value)


VECTORS = {
    "no names": ("u,v\n1,2\n", "vectors.csv: has no column 'feature' with the names of features, it has 'u', 'v'"),
    "no numbers": ("feature\nref0\n", "vectors.csv: has no numbers of features"),
    "no rows": ("feature,u\n", "vectors.csv: has no rows below its header"),
    "twice": ("id,u\nref0,1\nref1,2\nref0,3\n", "line 4: column 'id' names 'ref0' a second time (it was at line 2)"),
    "no number": ("feature,u\nref0,a\n", "vectors.csv: line 2: column 'u' is 'a', it must be a number"),
    "too large": ("feature,u\nref0,1e39\n", "line 2: column 'u' is 1e+39, too large for 32-bit numbers (at most"),
    "lacking": ("feature,u\nref0,1\n", "vectors.csv: has no vector of feature 'ref1' and "),
    "an index": ("Unnamed: 0,feature,u\n0,ref0,1\n", "column 'Unnamed: 0' would be a feature, but is a row index"),
}


@pytest.mark.parametrize("case", VECTORS)
def test_wrong_vectors(case, tmp_path):
    path, _, _ = tables(tmp_path, "tsv")
    text, said = VECTORS[case]
    (tmp_path / "vectors.csv").write_text(text)
    with pytest.raises(ValueError, match="vectors.csv: ") as caught:
        open_sets(path, vectors="vectors.csv")
    assert said in str(caught.value)
