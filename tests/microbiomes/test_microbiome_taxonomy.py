"""Taxa as databases and tools write them: each name at its rank, what is no name left out, what is unclear refused."""

import re

import numpy as np
import pandas as pd
import pytest
from conftest import SMALL

from omniset.microbiomes import TaxonClassifier, read_taxonomy
from omniset.microbiomes.assignments import Calls, agreement, require_named
from omniset.microbiomes.references import choose
from omniset.microbiomes.taxonomy import (
    PR2_4,
    PR2_5,
    RANKS,
    WITH_KINGDOM,
    Taxa,
    bare,
    has_name,
    lineage_of,
    lineages_of,
    read_references,
)

SILVA = "d__Bacteria; p__Firmicutes; c__Bacilli; o__Lactobacillales; f__Streptococcaceae; g__Streptococcus"
OF_SILVA = tuple(SILVA.split("; "))
RDP = (
    "Root;rootrank;Bacteria;domain;%s;phylum;Actinobacteria;class;Actinobacteridae;subclass;Actinomycetales;order;"
    "Corynebacterineae;suborder;Mycobacteriaceae;family;Mycobacterium;genus"
)
RDP_18 = (
    "rootrank__Root; domain__Bacteria; phylum__Actinobacteria; class__Actinobacteria; subclass__Actinobacteridae; "
    "order__Actinomycetales; suborder__Corynebacterineae; family__Mycobacteriaceae; genus__Mycobacterium"
)
OF_RDP = "d__Bacteria;p__Actinobacteria;c__Actinobacteria;o__Actinomycetales;f__Mycobacteriaceae;g__Mycobacterium"
GTDB = "d__Bacteria;p__Bacillota_A;c__Clostridia;o__Lachnospirales;f__Lachnospiraceae;g__UBA1819;s__UBA1819 sp900"
UNITE = "k__Fungi;p__Ascomycota;c__Sordariomycetes;o__Sordariomycetes_ord_Incertae_sedis;f__Nectriaceae"
PR2 = (
    "Eukaryota;TSAR;Alveolata;Dinoflagellata;Dinophyceae;Peridiniales;Kryptoperidiniaceae;Unruhdinium;Unruhdinium_kevei"
)
PR2_OLD = "Eukaryota;Alveolata;Dinoflagellata;Syndiniales;Dino-Group-I;Dino-Group-I-Clade-1;Amoebophrya;Amoebophrya_sp."


def table(folder, *lines, header="Feature ID\tTaxon"):
    path = folder / "tax.tsv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SILVA + "; s__uncultured_bacterium", SILVA),
        (
            "D_0__Bacteria;D_1__Firmicutes;D_2__Clostridia;D_3__Clostridiales;D_4__Family XIII;D_5__uncultured;"
            "D_6__uncultured bacterium",
            "D_0__Bacteria;D_1__Firmicutes;D_2__Clostridia;D_3__Clostridiales;D_4__Family XIII",
        ),
        ("D_0__Archaea;D_1__Thaumarchaeota;Ambiguous_taxa;Ambiguous_taxa", "D_0__Archaea;D_1__Thaumarchaeota"),
        (
            "d__Bacteria; p__Firmicutes_D; c__Bacilli; o__Lactobacillales; f__Lactobacillaceae; g__Lactobacillus; s__",
            "d__Bacteria;p__Firmicutes_D;c__Bacilli;o__Lactobacillales;f__Lactobacillaceae;g__Lactobacillus",
        ),
        (GTDB, GTDB),
        (UNITE + ";g__Fusarium;s__Fusarium_sp;sh__SH1.1FU", UNITE + ";g__Fusarium;s__Fusarium_sp;sh__SH1.1FU"),
        (UNITE + ";g__Fusarium;s__Fusarium_sp", UNITE + ";g__Fusarium"),
        (UNITE + ";g__Nectriaceae_gen_Incertae_sedis;s__unidentified", UNITE),
        (
            "cellular organisms; Bacteria; Bacillota; Bacilli; Bacillales; Bacillaceae; Bacillus; Bacillus subtilis",
            "Bacteria;Bacillota;Bacilli;Bacillales;Bacillaceae;Bacillus;Bacillus subtilis",
        ),
        ("d__Bacteria;k__Bacillati;p__Bacillota;c__Bacilli", "d__Bacteria;k__Bacillati;p__Bacillota;c__Bacilli"),
        ("sk__Bacteria;p__Firmicutes", "sk__Bacteria;p__Firmicutes"),
        ("k__Bacteria|p__Firmicutes|c__Bacilli", "k__Bacteria;p__Firmicutes;c__Bacilli"),
        ('Bacteria(100);"Firmicutes"(99);Clostridia(98.5);unclassified(80);', "Bacteria;Firmicutes;Clostridia"),
        ("Bacteria(100);Firmicutes(99);Firmicutes_unclassified(97);", "Bacteria;Firmicutes"),
        (RDP % '"Actinobacteria"', OF_RDP),
        (RDP_18, OF_RDP),
        (RDP % "Actinobacteria" + ";unclassified_Mycobacterium;", OF_RDP),
        ("d:Bacteria(1.00),p:Firmicutes(0.98),g:Bacillus(0.4)", "d__Bacteria;p__Firmicutes;c__;o__;f__;g__Bacillus"),
        ("tax=k:Fungi,p:Ascomycota;", "k__Fungi;p__Ascomycota"),
        (PR2, PR2),
        (PR2_OLD, PR2_OLD.rpartition(";")[0]),
        ("Eukaryota:plas;TSAR:plas;TSAR_X:plas;TSAR_XX:plas", "Eukaryota:plas;TSAR:plas"),
    ],
)
def test_taxa_of_databases(tmp_path, text, expected):
    """As text, and in a file."""
    expected = tuple(expected.replace("; ", ";").split(";"))
    assert lineage_of(text) == expected
    assert read_taxonomy(table(tmp_path, f"a\t{text}")) == {"a": expected}


@pytest.mark.parametrize(
    ("text", "ranks", "genus"),
    [
        (SILVA, RANKS, "g__Streptococcus"),
        (PR2, PR2_5, "Unruhdinium"),
        (PR2_OLD, PR2_4, "Amoebophrya"),
        ("d__B;k__K;p__P;c__C;o__O;f__F;g__G;s__S", WITH_KINGDOM, "g__G"),
        ("d:B,k:K,p:P,g:G", WITH_KINGDOM, "g__G"),
        ("sk__B;k__K;p__P;c__C;o__O;f__F;g__G", WITH_KINGDOM, "g__G"),
        (RDP % "P", RANKS, "g__Mycobacterium"),
    ],
)
def test_the_ranks_are_those_of_the_taxonomy(tmp_path, text, ranks, genus):
    """A classifier of genera learns genera, and its ranks are called what they are."""
    other = text.replace(genus.removeprefix("g__"), "Another")
    found = read_taxonomy(table(tmp_path, f"a\t{text}", f"b\t{other}", f"c\t{text.split(';')[0].split(',')[0]}"))
    assert found.ranks == ranks
    texts = {"a": "ACGT" * 20, "b": "AGGT" * 20, "c": "AAGT" * 20}
    _, taxa, notes = choose(texts, found, "genus", None)
    assert taxa.ranks == ranks[: ranks.index("genus") + 1]
    assert {lineage[-1] for lineage in taxa.lineages} == {"g__Another" if "__" in genus else "Another", genus}
    assert any(f"the taxonomy has {len(ranks)} ranks: {', '.join(ranks)}" in note for note in notes) is (ranks != RANKS)


def test_ranks_that_are_given(tmp_path):
    own = ("domain", "group", "genus", "species")
    found = read_taxonomy(table(tmp_path, "a\tX;Y;Z;W"), own)
    assert (found.ranks, found["a"]) == (own, ("X", "Y", "Z", "W"))
    for ranks in (["genus"], ["genus", "genus"], ["genus", ""], "genus"):
        with pytest.raises(ValueError, match="ranks must be (at least 2 different names|a sequence)"):
            TaxonClassifier(ranks=ranks).check_arguments()
    with pytest.raises(ValueError, match="rank must be one of domain, group, genus, species, got 'family'"):
        TaxonClassifier("family", ranks=own).check_arguments()
    with pytest.raises(ValueError, match="rank must be one of domain, phylum.*, got 'supergroup'"):
        choose({"a": "ACGT" * 20}, {"a": OF_SILVA}, "supergroup", None)


def test_a_model_keeps_its_ranks(references, tmp_path):
    texts, lineages = references
    taxa = {name: ("Eukaryota", "TSAR", *lineage[1:3], *lineage[2:]) for name, lineage in lineages.items()}
    taxa = {name: tuple(part[3:] if "__" in part else part for part in lineage) for name, lineage in taxa.items()}
    small = SMALL | {"epochs": 1}
    model = TaxonClassifier("genus", **small).fit(texts, taxa)
    assert model.taxa_.ranks == PR2_5[: PR2_5.index("genus") + 1]
    assert model.notes_[0].startswith("the taxonomy has 9 ranks: domain, supergroup, division")
    model.save(tmp_path)
    again = TaxonClassifier.load(tmp_path)
    assert tuple(again.taxa_.ranks) == model.taxa_.ranks
    own = (*"abcdefg", "genus")
    given = TaxonClassifier("genus", ranks=own, **small).fit(texts, taxa)
    assert given.taxa_.ranks == own
    weights = model.network_.state_dict()
    assert all((value == weights[name]).all() for name, value in given.network_.state_dict().items())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\tA;B;C;D;E;F;G;H"], "line 2: the taxon .* has 8 names for 7 ranks, domain, .*: give ranks"),
        (
            [f"a\t{SILVA}", "b\tA;B;C;D;E;Xaceae;X"],
            "line 3: has 'Xaceae', by its ending the name of a family, at",
        ),
        (["a\tp:Dinophyta,d:Eukaryota"], "line 2: the taxon .* has ranks that are not one below the other"),
        (["a\td:Bacteria,p:X,p:Y"], "line 2: the taxon .* must have one name for each rank"),
        (["a\tD_0__A;D_2__B"], "line 2: the taxon .* has 'D_2__B' at rank 2"),
        (["a\t", "b\t"], "has no taxa: it needs"),
        (["a\tAB1.1", "b\tAB1.2"], "has no taxa, but such as 'AB1.1': it needs lines of a name and a taxon"),
    ],
)
def test_what_is_unclear_is_refused(tmp_path, lines, message):
    with pytest.raises(ValueError, match=f"tax.tsv: {message}"):
        read_taxonomy(table(tmp_path, *lines))


NAMES = """uncultured Ruminococcus|Clostridium sensu stricto 1|Family XIII|[Eubacterium] hallii group|UBA1819|NA1|4-29-1
Candidatus Saccharimonas|Clostridium_X|Lachnospiraceae NK4A136 group|Faecalibacterium|Lachnospiracea_incertae_sedis
s__Bacillus sp000123|Incertae Sedis XI|X|Otherella|Unknownia"""
NO_NAMES = """uncultured|Uncultured|uncultured bacterium|uncultured_bacterium|metagenome|human gut metagenome|NA|nan|-
gut_metagenome|unidentified|unclassified|unknown|Incertae Sedis|Incertae_Sedis|environmental sample|Ambiguous_taxa||
environmental samples|g__|s__|D_5__|Unknown Family|Lachnospiraceae_unclassified|unclassified_Clostridiales|Fusarium_sp
uncultured Firmicutes bacterium|Bacillus sp.|Hypocreales_fam_Incertae_sedis|uncultured organism|No blast hit
unidentified_Bacilli"""


@pytest.mark.parametrize("prefix", ["", "g__", "D_5__"])
def test_names_and_what_is_none(prefix):
    def named(word):
        return has_name(("Bacteria", word if "__" in word else prefix + word), 1)

    assert [word for word in re.split(r"[|\n]", NAMES) if not named(word)] == []
    assert [word for word in re.split(r"[|\n]", NO_NAMES) if named(word)] == []


def test_what_has_no_name_is_counted_and_not_joined():
    """The same word in several families is no taxon of all; one name in two families is two taxa; and a clade in which
    most references end is a taxon that ends there.
    """
    above = ("d__Bacteria", "p__P", "c__C", "o__O")
    genera = (("f__A", "g__uncultured"), ("f__B", "g__uncultured"), ("f__A", "g__X"), ("f__B", "g__X"), ("f__B", "g__"))
    genera = (*genera, ("f__C", "g__metagenome"), ("f__uncultured", "g__Y"))
    text = "; ".join
    taxonomy = {f"r{i}": text((*above, *genus)) for i, genus in enumerate(genera)}
    texts = {name: ("ACGT" * 20)[: 60 + i] for i, name in enumerate(taxonomy)}
    taxonomy = lineages_of(taxonomy)
    _, taxa, notes = choose(texts, taxonomy, "genus", None)
    expected = [("f__A", "g__X"), ("f__B",), ("f__B", "g__X"), ("f__C",), ("f__uncultured", "g__Y")]
    assert [lineage[4:] for lineage in taxa.lineages] == expected
    assert (taxa.clade[4].tolist(), taxa.clade[5].tolist()) == ([0, 1, 1, 2, 3], [0, 1, 2, 3, 4])
    assert notes[0] == (
        "4 of 7 references have no name at rank genus, such as 'r0'; 3 are of clades in which most end, now taxa: 2; "
        "left out: 1"
    )
    _, taxa, notes = choose(texts, taxonomy, "family", None)
    assert [lineage[4] for lineage in taxa.lineages] == ["f__A", "f__B", "f__C"]
    assert "1 of 7 references have no name at rank family" in notes[0]


def test_names_in_headers_of_fasta(tmp_path):
    path = tmp_path / "refs.fasta"
    path.write_text(
        ">a;tax=d:Bacteria,p:Firmicutes,g:Bacillus,s:Bacillus subtilis; soil\nACGT\nACGT\n"
        f">b {SILVA.replace('; ', ';')};Streptococcus sp.\nACGT\n"
        '>c uncultured bacterium; YRM60\tLineage=Root;rootrank;Bacteria;domain;"Firmicutes";phylum\nACGT\n'
        ">d|AB1|SH1|reps|k__Fungi;p__Ascomycota\nACGT\n"
        ">e.1 d__Bacteria;p__Firmicutes [locus_tag=x] [ssu_len=5]\nACGT\n"
        ">f\tRoot;Bacteria;Firmicutes;Bacilli\nACGT\n"
    )
    assert read_taxonomy(path) == {
        "a": ("d__Bacteria", "p__Firmicutes", "c__", "o__", "f__", "g__Bacillus", "s__Bacillus subtilis"),
        "b": OF_SILVA,
        "c": ("d__Bacteria", "p__Firmicutes"),
        "d|AB1|SH1|reps|k__Fungi;p__Ascomycota": ("k__Fungi", "p__Ascomycota"),
        "e.1": ("d__Bacteria", "p__Firmicutes"),
        "f": ("Bacteria", "Firmicutes", "Bacilli"),
    }
    model = TaxonClassifier("phylum")
    for taxonomy in (path, None):
        with pytest.raises(ValueError, match=r"at least 2 taxa at rank phylum.* 6 references, 6 of which are shorter"):
            model.prepare(path, taxonomy)  # all of them are known by their names
    path.write_text(">a\nACGT\n")
    with pytest.raises(ValueError, match="line 1: must have a name and a taxon, as in '>seq1;tax=d:Bacteria"):
        read_taxonomy(path)


PR2_LETTERS = "tax=k:Eukaryota,d:TSAR,p:Alveolata-Dinoflagellata,c:Dinophyceae"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (  # DADA2
            ["Bacteria;Incertae Sedis;Bacilli;", "Bacteria;Incertae Sedis;Bacilli;", "k__Fungi;p__Ascomycota"],
            {"1": ("Bacteria", "Incertae Sedis", "Bacilli"), "2": (..., "Bacilli"), "3": ("k__Fungi", "p__Ascomycota")},
        ),
        (  # SILVA: a name of an organism at the end, eukaryotes with other ranks
            [
                "AB001445.1.1538 Bacteria;P;C;O;F;Pseudomonas;Pseudomonas amygdali",
                "HG1.1.9 Bacteria;P;C;uncultured bacterium",
                "AY1.5.9 Eukaryota;SAR;Alveolata;X;Y;Z;U;V;W;Toxoplasma gondii",
            ],
            {
                "AB001445.1.1538": ("Bacteria", "P", "C", "O", "F", "Pseudomonas", "Pseudomonas amygdali"),
                "HG1.1.9": ("Bacteria", "P", "C"),
                "AY1.5.9": (),
            },
        ),
        (  # PR2
            [f"a.1.2_U|18S_rRNA|nucleus|clone_2|{PR2.replace(';', '|')}"],
            {f"a.1.2_U|18S_rRNA|nucleus|clone_2|{PR2.replace(';', '|')}": tuple(PR2.split(";"))},
        ),
        ([f"a;{PR2_LETTERS}"], {"a": ("d__Eukaryota", "k__TSAR", "p__Alveolata-Dinoflagellata", "c__Dinophyceae")}),
        ([f"AJ1\tMycobacterium sp. 2554/91 Type\t{RDP_18}"], {"AJ1": tuple(OF_RDP.split(";"))}),
        (["a|MT1|SH1.10FU|refs|k__Fungi;p__X"], {"a|MT1|SH1.10FU|refs|k__Fungi;p__X": ("k__Fungi", "p__X")}),  # UNITE
    ],
)
def test_references_as_databases_publish_them(tmp_path, headers, expected):
    path = tmp_path / "refs.fasta"
    path.write_text("".join(f">{header}\nAC{'GT'[i % 2]}\n" for i, header in enumerate(headers)))
    texts, taxa = read_references(path)
    assert list(texts) == list(taxa) == list(expected)
    assert list(texts.values()) == ["ACG", "ACT", "ACG"][: len(headers)]
    for name, lineage in expected.items():
        assert taxa[name][-1:] == lineage[-1:] if ... in lineage else taxa[name] == lineage
    if "1" in expected:
        with pytest.raises(ValueError, match="line 1: has a taxon and no name: give the file as references, without"):
            read_taxonomy(path)


def test_calls_of_other_tools(tmp_path):
    """The names of vsearch above its cutoff, and the table of OTUs of mothur."""
    path = tmp_path / "sintax.tsv"
    path.write_text(
        "x;size=3\td:Bacteria(1.00),p:Firmicutes(0.97),g:Bacillus(0.31)\t+\td:Bacteria,p:Firmicutes\ny\t\t\t\n"
    )
    assert read_taxonomy(path) == {"x;size=3": ("d__Bacteria", "p__Firmicutes"), "y": ()}
    path.write_text("x\t\tBacteria\tdomain\t1.0\tFirmicutes\tphylum\t0.9\n")  # RDP's classifier
    assert read_taxonomy(path) == {"x": ("d__Bacteria", "p__Firmicutes")}
    path.write_text('"","Kingdom","Genus","Species"\n"x","B","Bacillus","subtilis"\n"y","B","Bacillus","uncultured"\n')
    taxa = read_taxonomy(path)  # of DADA2's addSpecies
    assert [taxa[name][5:] for name in "xy"] == [("Bacillus", "Bacillus subtilis"), ("Bacillus",)]
    mothur = table(tmp_path, "Otu1\t31\tBacteria(100);Firmicutes(99);", header="OTU\tSize\tTaxonomy")
    assert read_taxonomy(mothur) == {"Otu1": ("Bacteria", "Firmicutes")}


TAXA = {"x": ("B", "F"), "y": ("B",)}


@pytest.mark.parametrize(
    "text",
    [
        "Feature ID,Taxon,Confidence\nx,B; F,1\ny,B,1\n",
        'sep=,\n"","Taxon"\n"x","B; F"\n"y","B; NA"\n',
        '"Taxon" "Confidence"\n"x" "B; F" 0.9\n"y" "B" 0.8\n',
        '"Taxon"\t"Confidence"\n"x"\t"B; F"\t0.9\n"y"\t"B"\t0.8\n',
        '"","Kingdom","Phylum","Genus"\n"x","B","F",NA\n"y","B",NA,NA\n',
        '"Kingdom" "Phylum"\n"x" "B" "F"\n"y" "B" NA\n',
        "ASV;Domain;Phylum\nx;B;F\ny;B;\n",
        "x\td:B;p:F;\ny\td:B\n",
    ],
)
def test_tables_of_taxa_as_tools_write_them(tmp_path, text):
    path = tmp_path / "t.txt"
    path.write_text(text)
    found = read_taxonomy(path)
    assert {name: tuple(map(bare, lineage)) for name, lineage in found.items()} == TAXA
    path.write_text("x,B;F\n")
    with pytest.raises(ValueError, match="line 1: must name a column Feature ID and one Taxon"):
        read_taxonomy(path)


GENERA = [f"Bacteria;P;C{i % 2};O{i % 2}ales;F{i}aceae;Genus{i}" for i in range(4)]
ORGANISMS = ("{0} alba", "uncultured bacterium", "Strain YT-12", "uncultured {0} sp.")


@pytest.mark.parametrize("missing", [2, 3, 4])
@pytest.mark.parametrize("form", ["header", "table", "table of headers"])
def test_ranks_that_lineages_lack(tmp_path, missing, form):
    """Of SILVA's lineages some lack a rank between others, and end in an organism: each genus stays what it is."""
    lines = [f"{lineage};{o.format(lineage.split(';')[5])}" for o in ORGANISMS for lineage in GENERA]
    lines = [line if form != "table" else line.rpartition(";")[0] for line in lines]
    whole = [*lines]
    for i in range(8, 16):
        lines[i] = ";".join(name for place, name in enumerate(lines[i].split(";")) if place != missing)
    between = " " if form == "header" else "\t"
    text = "".join(f"{'>' * (form == 'header')}AB{i}.1.99{between}{line}\nACGT\n" for i, line in enumerate(lines))
    (tmp_path / "t").write_text(text if form == "header" else text.replace("ACGT\n", ""))
    found = read_taxonomy(tmp_path / "t")
    assert [lineage[:6] for lineage in found.values()] == [tuple(line.split(";")[:6]) for line in whole]
    assert found.notes[0].startswith("8 of 16 lineages lack a rank, or have one more, such as that of 'AB8.1.99'")


def test_a_suborder_between_others_goes():
    whole = {f"r{i}": lineage for i, lineage in enumerate(GENERA)}
    found = lineages_of(whole | {"s": GENERA[0].replace(";F0aceae", ";Xineae;F0aceae")})
    assert found["s"] == found["r0"] == tuple(GENERA[0].split(";"))


def test_samples_without_a_name_and_equal_ones():
    taxa, number = Taxa.of([("A", "A1"), ("B", "B1")]), np.arange(6)
    calls = Calls(taxa, [*"pqrstu"], ["x"], number, 0 * number, np.full(6, 2.0), 0 * number, np.full((6, 2), 0.5))
    with pytest.raises(ValueError, match="in 6 of 6 samples nothing is assigned, such as 'p'"):
        require_named(calls, 0.7)
    with pytest.warns(UserWarning, match="abundance.tsv: 6 of 6 samples come out the same, such as 'p', 'q', 'r'"):
        require_named(calls, 0.5)


def test_agreement_is_by_the_names_of_the_ranks(tmp_path):
    """Of taxonomies with other ranks, those of one name are compared."""
    taxa = Taxa.of([tuple(PR2.split(";"))[:8]], PR2_5)
    one = np.array([0])
    calls = Calls(taxa, ["A"], ["x"], one, one, np.array([2.0]), one, np.ones((1, 8)))
    others = read_taxonomy(table(tmp_path, "x\td__Eukaryota;p__P;c__Dinophyceae;o__O;f__F;g__Unruhdinium"))
    found = agreement(calls, calls.per_feature(0.5), others).set_index("rank")
    same = found["by_reads"].dropna()
    assert same.to_dict() == {"domain": 1.0, "class": 1.0, "genus": 1.0}
    assert pd.isna(found.loc["subdivision", "by_reads"])


def test_a_call_differs_in_its_name_and_not_in_its_depth():
    taxa = Taxa.of([("A", "A1"), ("A", "A2"), ("B", "B1")])
    sure, unsure, none = [0.9, 0.9], [0.9, 0.2], [0.3, 0.1]
    # Samples of features x, y, z: most reads of x are of A1; that it is A in sample 2 is no other name.
    sample, feature = np.array([0, 1, 2, 3, 0, 1, 0]), np.array([0, 0, 0, 0, 1, 1, 2])
    taxon, count = np.array([0, 0, 1, 1, 2, 0, -1]), np.array([6.0, 3, 2, 1, 4, 1, 5])
    confidence = np.array([sure, unsure, unsure, sure, sure, none, [0.0, 0.0]])
    calls = Calls(taxa, [*"pqrs"], [*"xyz"], sample, feature, count, taxon, confidence)
    winner = calls.per_feature(0.5)
    assert winner["Taxon"].tolist() == ["A; A1", "B; B1", "Unassigned"]
    assert calls.differing(0.5).tolist() == [False, False, False, True, False, False, False]
    settled = calls.settled(0.5).per_sample(0.5)
    assert settled["Taxon"].tolist() == ["A; A1", "A; A1", "A; A1", "A; A2", "B; B1", "B; B1", "Unassigned"]
    x = winner["Confidence"][0]
    assert settled["Confidence"][:4].tolist() == pytest.approx([x, x, x, 0.9])
    assert calls.settled(0.5).abundance(0.5).loc["q"].to_dict() == {"A; A1": 3, "B; B1": 1, "Unassigned": 0, "A; A2": 0}


@pytest.mark.parametrize("theirs", [("A1.1", "b"), ("a1", "B.2"), ("A1;tax=d:B", "b;size=3"), ("x_A1_y", "x_b_y")])
def test_names_in_another_spelling(theirs):
    """What is meant is clear where it is one name on each side; names that are lacking are counted."""
    texts = {"A1": "ACGT" * 20, "b": "AGGT" * 20}
    taxonomy = lineages_of(dict(zip(theirs, ("d__B;p__P", "d__B;p__Q"), strict=True)))
    _, taxa, notes = choose(texts, taxonomy, "phylum", None)
    assert len(taxa) == 2
    assert notes == [f"references and taxonomy: {notes[0].split(': ')[1]}"]
    same = lineages_of({"A1": "d__B;p__P", "b": "d__B;p__Q"})
    with pytest.warns(UserWarning, match="1 of 3 references have no taxon and are left out, such as 'c'"):
        choose(texts | {"c": "AAGT" * 20}, same, "phylum", None)
    with pytest.raises(
        ValueError, match="4 of 6 sequences are not in the taxonomy, such as 'r0', 'r1', 'r2' and 1 more"
    ):
        choose(texts | {f"r{i}": "AAGT" * 20 for i in range(4)}, same, "phylum", None)
