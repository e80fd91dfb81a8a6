"""`omniset microbiomes` as at a shell: what is written, and what is said of bad input."""

import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest

from omniset.cli import main
from omniset.cli.microbiomes import explain_taxon
from omniset.microbiomes import TaxonClassifier, read_taxonomy
from omniset.microbiomes.simulate import simulate, write
from omniset.tables.dna import read_fasta

FIT = ("--epochs", 4, "--lengths", 100, "--learning_rate", 0.01, "--device", "cpu", "--progress", "false")


def run(*words, code=0):
    assert main(["microbiomes", *map(str, words)]) == code


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A made-up microbiome, and a model of it."""
    out = tmp_path_factory.mktemp("microbiome")
    write(out, simulate(4, 1))
    files = ("--references", out / "references.fasta", "--taxonomy", out / "taxonomy.tsv", "--region", "515F-806R")
    run("fit", *files, *FIT, "--out", out / "model")
    return out


def table_of(folder):
    return ("--table", folder / "table.tsv", "--sequences", folder / "sequences.fasta", "--model", folder / "model")


def test_classify_a_table(folder, tmp_path, capsys):
    out = tmp_path / "out"
    beside = ("--against", folder / "truth.tsv")
    run("classify", *table_of(folder), *beside, "--threshold", 0.5, "--out", out)
    said = capsys.readouterr().out
    assert "4 samples" in said
    assert "agreement with" in said
    taxonomy = pd.read_csv(out / "taxonomy.tsv", sep="\t")
    assert list(taxonomy) == ["Feature ID", "Taxon", "Confidence"]
    assert taxonomy["Feature ID"].tolist() == list(read_fasta(folder / "sequences.fasta"))
    assert read_taxonomy(out / "taxonomy.tsv").keys() == set(taxonomy["Feature ID"])  # our own reader takes it
    model = TaxonClassifier.load(folder / "model", threshold=0.5, progress=False)
    expected = model.classify(folder / "sequences.fasta", folder / "table.tsv")
    assert taxonomy["Taxon"].tolist() == expected["Taxon"].tolist()
    assert np.allclose(taxonomy["Confidence"], expected["Confidence"])
    calls = model.calls(folder / "sequences.fasta", folder / "table.tsv")
    differ = calls.differing(0.5)
    written = pd.read_csv(out / "calls.tsv.gz", sep="\t")
    assert len(written) == differ.sum()
    assert written["Taxon"].tolist() == calls.per_sample(0.5)["Taxon"][differ].tolist()
    calls = calls.settled(0.5).per_sample(0.5)
    counts = pd.read_csv(folder / "table.tsv", sep="\t", index_col=0)
    assert calls["count"].sum() == counts.to_numpy().sum()
    assert len(calls) == (counts > 0).to_numpy().sum()
    abundance = pd.read_csv(out / "abundance.tsv", sep="\t", index_col=0)
    assert np.allclose(abundance.sum(), counts.sum()[abundance.columns])
    by_hand = calls[calls["sample"] == "gut1"].groupby("Taxon")["count"].sum()
    assert np.allclose(abundance["gut1"][by_hand.index], by_hand)
    report = json.loads((out / "report.json").read_text())
    unnamed = 1 - calls[calls["Taxon"].str.contains("g__")].groupby("sample")["count"].sum() / counts.sum()
    assert np.isclose(report["unnamed_in_samples"]["most"], unnamed.max())
    truth, ours = read_taxonomy(folder / "truth.tsv"), read_taxonomy(out / "taxonomy.tsv")
    reads = counts.sum(axis=1)
    for place, row in enumerate(report["agreement"]):
        both = [f for f in ours if len(ours[f]) > place]
        same = [f for f in both if ours[f][place] == truth[f][place]]
        assert np.isclose(row["by_reads"], reads[same].sum() / reads[both].sum())
        assert np.isclose(row["by_sequences"], len(same) / len(both))
    deep = sum(calls["count"][calls["Taxon"].str.contains("g__")])
    assert np.isclose(report["named"]["genus"], deep / calls["count"].sum())
    assert "<svg" in (out / "report.html").read_text()


def test_classify_reads(folder, tmp_path):
    """Two files are two samples; a table of the distinct reads gives the same."""
    second = tmp_path / "other,one.fa"
    texts = read_fasta(folder / "sequences.fasta")
    second.write_text("".join(f">{i}\n{t.lower()}\n" for i, t in enumerate([*texts.values()][:9] * 2)))
    run("classify", folder / "reads.fastq.gz", second, "--model", folder / "model", "--out", tmp_path / "reads")
    table = pd.read_csv(tmp_path / "reads" / "table.tsv", sep="\t", index_col=0)
    assert table.columns.tolist() == ["reads", "other,one"]
    assert table["other,one"].sum() == 18
    again = ("--table", tmp_path / "reads" / "table.tsv", "--sequences", tmp_path / "reads" / "sequences.fasta")
    run("classify", *again, "--model", folder / "model", "--out", tmp_path / "table")
    for name in ("taxonomy.tsv", "abundance.tsv"):
        assert (tmp_path / "table" / name).read_bytes() == (tmp_path / "reads" / name).read_bytes()
    with gzip.open(folder / "reads.fastq.gz", "rt") as file:
        reads = file.read().splitlines()[1::4]
    assert table["reads"].sum() == len(reads)
    distinct = read_fasta(tmp_path / "reads" / "sequences.fasta")
    assert {distinct[n]: c for n, c in table["reads"].items() if c} == {t: reads.count(t) for t in set(reads)}


def test_explain(folder, tmp_path, capsys):
    run("explain", "ASV3", *table_of(folder), "--out", tmp_path / "x.tsv", "--top", 3)
    found = pd.read_csv(tmp_path / "x.tsv", sep="\t")
    assert list(found) == ["sample", "explained", "Feature ID", "count", "Taxon", "change"]
    assert len(found) == 3
    assert set(found["explained"]) == {"ASV3"}
    said = capsys.readouterr().out
    assert f"ASV3 in sample {found['sample'][0]}" in said
    model = TaxonClassifier.load(folder / "model", progress=False)
    about = model.explain("ASV3", folder / "sequences.fasta", folder / "table.tsv", top=3).attrs
    assert ("it is clear by itself" in said) is about["clear"]


def test_an_explanation_is_written_before_it_is_said(folder, tmp_path, monkeypatch):
    """Whoever reads only its first lines has it all the same; its folder is made."""

    def closed(text):
        raise BrokenPipeError

    monkeypatch.setattr("omniset.runs.console.say", closed)
    files = {"table": folder / "table.tsv", "sequences": folder / "sequences.fasta", "model": folder / "model"}
    with pytest.raises(BrokenPipeError):
        explain_taxon("ASV3", **files, out=tmp_path / "new" / "x.tsv", top=3, progress=False)
    assert len(pd.read_csv(tmp_path / "new" / "x.tsv", sep="\t")) == 3


def test_an_empty_file_among_others_is_a_sample_without_reads(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "control.fastq").write_text("")
    (tmp_path / "other.fq.gz").write_bytes(gzip.compress(b""))
    reads = folder / "reads.fastq.gz"
    run("classify", reads, "control.fastq", "--model", folder / "model", "--out", "o")
    captured = capsys.readouterr()
    assert "1 sample without reads, such as 'control'" in captured.out + captured.err
    assert pd.read_csv(tmp_path / "o" / "table.tsv", sep="\t")["control"].sum() == 0
    run("classify", "control.fastq", "other.fq.gz", "--model", folder / "model", "--out", "p", code=2)
    assert "reads: all 2 files are empty" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_reads_of_another_part_of_the_gene(folder, tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = [f">r{i}\n{''.join(rng.choice(list('ACGT'), 250))}\n" for i in range(30)]
    (tmp_path / "other.fasta").write_text("".join(lines))
    said = "the model has learned the region 515F-806R, without its primers; are these reads of it"
    for reads, warned in ((tmp_path / "other.fasta", True), (folder / "reads.fastq.gz", False)):
        run("classify", reads, "--model", folder / "model", "--out", tmp_path / "o", "--threshold", 0.999)
        captured = capsys.readouterr()
        assert (said in captured.out + captured.err) is warned
        assert (said in (tmp_path / "o" / "report.html").read_text()) is warned


def test_simulated_sequences_are_what_is_said():
    made = simulate(3, 5)
    assert made.samples.counts.sum(1).tolist() == [2000] * 3
    assert len(made.reads) == 2000
    assert set(made.sequences) == set(made.truth) == set(made.samples.features)
    assert made.sequences == simulate(3, 5).sequences
    assert not set(made.sequences.values()) & set(made.references.values())


FILES = "--references DIR/references.fasta --taxonomy DIR/taxonomy.tsv"
READS = "classify DIR/reads.fastq.gz --model MODEL"
TABLE = "classify --table DIR/table.tsv --model MODEL"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("classify", "give either files of reads, or --table"),
        ("classify a.fq --table t.tsv", "give either files of reads, or --table"),
        ("classify nowhere.fq --model MODEL", "nowhere.fq: No such file"),
        ("classify DIR/reads.fastq.gz DIR/reads.fastq.gz --model MODEL", "two files would both be"),
        (TABLE, "sequences must be given: features are names"),
        (f"{TABLE} --sequences DIR/references.fasta", "have no feature in common: the table has such as 'ASV"),
        (f"{TABLE.replace('DIR/table', 'zero')}", "zero.tsv has no reads: every"),
        (f"{READS} --reads DIR/reads.fastq.gz", "reads must be given once: as words, which are "),
        (f"{READS} --against DIR/truth.tsv", "truth.tsv has calls of none of the sequences: it has such as 'ASV1'"),
        (f"fit {FILES.replace('DIR/taxonomy', 'few')}", "references.fasta and few.tsv: taxonomy knows none"),
        (f"fit {FILES} --profiles odd.tsv", "odd.tsv: profiles: none of the 1 features is a known taxon or reference"),
        (f"fit {FILES} --ranks domain,genus", "taxonomy.tsv: line 2: the taxon 'd__Bacteria; p__P1; c__C1; o__O1"),
        ("explain ASV3 --model MODEL", "--table must be given"),
    ],
)
def test_bad_input_is_one_line(folder, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.tsv").write_text("Feature ID\tTaxon\nnone\td__B; p__P; c__C; o__O; f__F; g__G\n")
    (tmp_path / "odd.tsv").write_text("#OTU ID\tA\nnone\t1\n")
    (tmp_path / "zero.tsv").write_text("#OTU ID\tA\nASV1\t0\nASV2\t0\n")
    before = sorted(tmp_path.rglob("*"))
    run(*words.replace("DIR", str(folder)).replace("MODEL", str(folder / "model")).split(), code=2)
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if not re.match(r"reading|embedding|$", line.strip())]
    assert len(lines) == 1
    assert lines[0].startswith("omniset: error: ")
    assert message in lines[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_lacking_sequences_and_samples_without_reads(folder, tmp_path, capsys):
    table = pd.read_csv(folder / "table.tsv", sep="\t", index_col=0).assign(nothing=0)
    table.loc["ASVX"] = 1
    table.to_csv(tmp_path / "t.tsv", sep="\t", index_label="#OTU ID")
    words = ("--table", tmp_path / "t.tsv", "--sequences", folder / "sequences.fasta", "--model", folder / "model")
    run("classify", *words, "--out", tmp_path / "out")
    said = capsys.readouterr().err
    assert "features have no sequence and are left out, such as 'ASVX'" in said
    assert "ASVX" not in (tmp_path / "out" / "taxonomy.tsv").read_text()
