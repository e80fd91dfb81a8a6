"""What annotation tools write is read as they write it: small files written by hand after their documentation."""

import gzip
import re
from collections import Counter

import numpy as np
import pytest
from genome_oracle import content, write

from omniset.genomes.data import GenomeFile, read_table

EGGNOG2 = "\n".join(
    [
        "## Mon Feb 27 09:05:50 2023",
        "## emapper-2.1.9",
        "## emapper.py -i a.faa -m diamond",
        "##",
        "#query\tseed_ortholog\tevalue\tscore\teggNOG_OGs\tmax_annot_lvl\tCOG_category\tDescription\tPreferred_name\tGOs\tEC"
        "\tKEGG_ko\tCAZy\tPFAMs",
        "g1\t1.A\t1e-9\t99.5\tCOG0001@1|root,COG0001@2|Bacteria,1MUWI@1224|Proteobacteria\t2|Bacteria\tH\tFirst one"
        "\themL\tGO:0000001,GO:0000002\t5.4.3.8\tko:K01845,ko:K00002\tGT2\tAminotran_3",
        "g2\t1.B\t1e-9\t99.5\tCOG0001@1|root,COG0001@2|Bacteria\t2|Bacteria\tH\tAgain\t-\t-\t-\tko:K01845\t-\t-",
        'g3\t1.C\t1e-9\t99.5\tCOG0002@2|Bacteria,2Z7HE@1|root\t2|Bacteria\tS\t5"-nucleotidase\t-\t-\t-\t-\t-\t-',
        "g4\t1.D\t1e-9\t99.5\tarCOG00123@2157|Archaea,2Z7HF@1|root\t2157\tEG\t-\t-\t-\t1.1.1.1,2.7.-.-\t-\t-\t-",
        "g5\t1.E\t1e-9\t99.5\t-\t-\t-\t-\t-\t-\t-\t-\tGH13_31,CBM48\t-",
        "## 5 queries scanned",
        "## Total time (seconds): 45.7",
        "",
    ]
)
EGGNOG3 = (
    "## emapper-3.0.0-beta6\n## confidence codes: h=high m=medium l=low -=not annotated\n"
    "#query\tseed_ortholog\tevalue\tscore\teggNOG_OGs\ttax_ceiling\tfarthest_donor_lineage\tCOG_category\tPreferred_name"
    "\tGOs\tEC\tKEGG_ko\tPFAMs\tannotation_confidence\n"
    "c_1\t1.A\t2e-50\t200.0\tCOG0001@1|root,COG0001@2|Bacteria\t2|Bacteria\t1|root\tEG\tmockA\t-\t-\tK00001,K00002\tX_1\th--h\n"
    "## 1 queries scanned\n"
)
# Its header lacked the last five names.
EGGNOG20 = (
    "# emapper version: emapper-2.0.1\n"
    "#query_name\tseed_eggNOG_ortholog\tseed_ortholog_evalue\tseed_ortholog_score\tbest_tax_level\tPreferred_name\tGOs\tEC"
    "\tKEGG_ko\tBiGG_Reaction\n"
    "g1\t1.A\t1e-9\t9\tBacteria\themL\t\t\tko:K01845\t\tBacteria\tCOG0001@1|root,COG0001@2|Bacteria\tNA|NA|NA\tH\tFirst\n"
)
EGGNOG1 = "#query_name\tseed_eggNOG_ortholog\tKEGG_KOs\tOGs\ng\t1.A\tNA\t0X@aciNOG,COG0001@NOG\n"
COGCLASSIFIER = (
    "QUERY_ID\tCOG_ID\tCDD_ID\tEVALUE\tIDENTITY\tGENE_NAME\tCOG_NAME\tCOG_LETTER\tCOG_DESCRIPTION\n"
    "p1\tCOG0527\t223601\t0.0\t46.97\tMetL1\tAspartate kinase\tE\tAmino acid transport\n"
    "p2\tCOG0083\t223161\t2.5e-150\t45.8\tThrB\tHomoserine kinase\tE\tAmino acid transport\n"
    "p3\tCOG0527\t223601\t1e-9\t46.97\tMetL1\tAspartate kinase\tE\tAmino acid transport\n"
)
KOFAM = (
    "# gene name           KO     thrshld  score   E-value KO definition\n"
    "#-------------------- ------ ------- ------ --------- ---------------------\n"
    "  gene1               K00001   99.52   50.1    0.0009 alcohol dehydrogenase [EC:1.1.1.1]\n"
    "* gene2               K00002  150.00  180.0     5e-05 alcohol dehydrogenase (NADP+) [EC:1.1.1.2]\n"
    "  gene3               -            -      -         - -\n"
    "* gene4               K00003  200.00  200.0   1.2e-10 homoserine dehydrogenase [EC:1.1.1.3]\n"
    "* gene5               K00002  150.00  180.0     5e-05 alcohol dehydrogenase (NADP+) [EC:1.1.1.2]\n"
)
KOFAM_TSV = (
    '#\tgene name\tKO\tthrshld\tscore\tE-value\t"KO definition"\n'
    "#\t---------\t------\t-------\t------\t---------\t-------------\n"
    '\tgene1\tK00001\t99.52\t50.1\t0.0009\t"alcohol dehydrogenase [EC:1.1.1.1]"\n'
    '*\tgene2\tK00002\t150.00\t180.0\t5e-05\t"alcohol dehydrogenase (NADP+) [EC:1.1.1.2]"\n'
    "\tgene3\t\t\t\t\t\n"
    '*\tgene4\tK00003\t200.00\t200.0\t1.2e-10\t"homoserine dehydrogenase [EC:1.1.1.3]"\n'
    '*\tgene5\tK00002\t150.00\t180.0\t5e-05\t"alcohol dehydrogenase (NADP+) [EC:1.1.1.2]"\n'
)
MAPPER = "gene1\ngene2\tK00002\ngene3\ngene3b\t\ngene4\tK00003\ngene5\tK00002\n"
DRAM = (
    "\tfasta\tscaffold\tgene_position\trank\tko_id\tkegg_hit\tpfam_hits\tcazy_ids\tcazy_hits\n"
    "b1_1\tb1\ts\t1\tC\tK00001\tx\tGlycosyl transferases group 1 [PF00534.20]; Other [PF13692.6]\tGT4; GH13_31\tGT4\n"
    'b1_2\tb1\ts\t2\tE\t\t\tX"y [PF00534.20]\t\t\n'
    "b1_3\tb1\ts\t3\tC\tK00001,K00003\tx\t\t\t\n"
    "b2_1\tb2\ts\t1\tC\tK00003\tx\t\t\t\n"
)
FUNCTIONS = (
    "gene_callers_id\tsource\taccession\tfunction\te_value\n"
    "0\tCOG20_FUNCTION\tCOG0187!!!COG0188\tDNA gyrase B!!!DNA gyrase A\t4e-136\n"
    "0\tCOG20_CATEGORY\tL\tReplication\t4e-136\n"
    "0\tKOfam\tK02470\tDNA gyrase subunit B\t1e-99\n"
    "0\tPfam\tPF00204.28\tDNA gyrase B\t1e-99\n"
    "3\tKOfam\tK02470\tDNA gyrase subunit B\t1e-99\n"
    "4\tCOG20_FUNCTION\tCOG0187\tDNA gyrase B\t4e-136\n"
)


KOALA = "g1\tK00002\talcohol\t99\tK00009\t9\ng2\tK00002\ta\t9\t\t\ng3\t\t\t\t\t\ng4\tK00003\th\t9\t\t\n"
MATRIX = "key\tA 1\tB\tCOG20_FUNCTION\nfunc_1\t1\t2\tGyrase 2\nfunc_2\t0\t3\tATPase\n"
PROKKA = (
    "locus_tag\tftype\tlength_bp\tgene\tEC_number\tCOG\tproduct\na1\tCDS\t99\tgyrB\t5.6.2.2\tCOG0187\tGyrase\n"
    "a2\tCDS\t9\t\t\t\thypothetical\na3\tCDS\t9\t\t\tCOG0187\tx\na4\ttRNA\t70\t\t\t\ttRNA-Ala\n"
)
BAKTA = (
    "# Annotated with Bakta\n# Software: v1.9\n"
    "#Sequence Id\tType\tStart\tStop\tStrand\tLocus Tag\tGene\tProduct\tDbXrefs\n"
    "c1\tcds\t1\t9\t+\tt1\tgyrB\tGyrase\tCOG:COG0187, COG:L, EC:5.6.2.2, KEGG:K02470, SO:0001217\n"
    "c1\tcds\t20\t29\t-\tt2\t\thypothetical protein\tUniRef:UniRef50_A\n"
)
DOMAINS = [("g1", "PF00004"), ("g1", "PF00004"), ("g2", "PF00004"), ("g2", "PF07724"), ("g3", "G3DSA:1")]
INTERPRO = "".join(
    f"{gene}\t{'0a' * 16}\t99\tPfam\t{family}\tATPase\t1\t9\t1e-9\tT\t01-01-2024\tIPR000001\tx\tGO:0000001(x)|GO:1\n"
    for gene, family in DOMAINS
)
TBLOUT = "#   --- full sequence ----\n# target name  accession  query name  accession  E-value\n#-----\n"
HMMSCAN = "".join(f"AAA {family}.31 {gene} - 1e-9 50\n" for gene, family in DOMAINS[:4])
HMMSEARCH = "".join(f"{gene} - AAA {family}.31 1e-9 50\n" for gene, family in DOMAINS[:4])
DOMTBLOUT = "# --- this domain\n# target name accession tlen query name accession qlen\n#--\n" + "".join(
    f"{gene} - 330 AAA {family}.31 130 1e-9 50\n" for gene, family in DOMAINS[:4]
)
PFAM_SCAN = "# pfam_scan.pl, run at Mon\n#\n# <seq id> <alignment start> <alignment end>\n\n" + "".join(
    f"{gene} 3 69 1 70 {family}.31 AAA Domain 3 69 70 78.0 1e-9 1 No_clan\n" for gene, family in DOMAINS[:4]
)
DBCAN = "Gene ID\tEC#\tHMMER\teCAMI\tDIAMOND\t#ofTools\ng1\t-\tGH13_31(3-40)+CBM48(50-90)\t-\tGH13\t2\n"
PICRUST2 = "sequence\tK00001\tK00002\tmetadata_NSTI\ns1\t1\t0\t0.03\ns2\t0\t2\t1.7\n"
KOS = {"K00002": 2, "K00003": 1}
COGS = {"COG0001": 2, "arCOG00123": 1}
ATPASES = {"PF00004": 2, "PF07724": 1}
TWO = {"Gyrase 2": 2, "ATPase": 3}
ACIDS = {"COG0527": 2, "COG0083": 1}
FILES = {
    "eggNOG 2": ("A.1.faa.emapper.annotations", EGGNOG2, "eggnog", "COG", [("A.1", COGS)]),
    "eggNOG 2 without comments": (
        "A.emapper.annotations.gz",
        "\n".join(line.removeprefix("#") for line in EGGNOG2.split("\n") if not line.startswith("##")),
        "eggnog",
        "COG",
        [("A", COGS)],
    ),
    "eggNOG 2 of R": ("A.emapper.annotations", EGGNOG2.replace("\t-", "\tNA"), "eggnog", "COG", [("A", COGS)]),
    "eggNOG 3": ("B.emapper.annotations", EGGNOG3, "eggnog", "COG", [("B", {"COG0001": 1})]),
    "eggNOG 2.0": ("C.emapper.annotations", EGGNOG20, "eggnog", "COG", [("C", {"COG0001": 1})]),
    "COGclassifier": ("mag-7/cog_classify.tsv", COGCLASSIFIER, "cogclassifier", "COG", [("mag-7", ACIDS)]),
    "COGclassifier 1": ("mag-7/classifier_result.tsv", COGCLASSIFIER, "cogclassifier", "COG", [("mag-7", ACIDS)]),
    "KofamScan": ("D_kofam.txt", KOFAM, "kofamscan", "KO", [("D", KOS)]),
    "KofamScan tsv": ("D.detail.tsv.gz", KOFAM_TSV, "kofamscan", "KO", [("D", KOS)]),
    "mapper": ("D.mapper.txt", MAPPER, "ko-mapper", "KO", [("D", KOS)]),
    "mapper, late": ("D.ko", "gene0\n" * 999 + MAPPER, "ko-mapper", "KO", [("D", KOS)]),
    "mapper, one line": ("D_ko.txt", "g1\ng2\tK00002\tK00003\ng4\tK00002\n", "ko-mapper", "KO", [("D", KOS)]),
    "BlastKOALA": ("D.txt", KOALA, "ko-mapper", "KO", [("D", KOS)]),
    "DRAM": ("annotations.tsv", DRAM, "dram", "KO", [("b1", {"K00001": 2, "K00003": 1}), ("b2", {"K00003": 1})]),
    "anvi'o functions": ("E-functions.txt", FUNCTIONS, "anvio-functions", "COG", [("E", {"COG0187": 2, "COG0188": 1})]),
    "anvi'o matrix": ("x.txt", MATRIX, "anvio-matrix", "other", [("A 1", {"Gyrase 2": 1}), ("B", TWO)]),
    "anvi'o matrix with accessions": (
        "x-FREQUENCY.txt",
        "key\tCOG24_FUNCTION\taccession\tA\tB\nf1\tGyrase\tCOG0187\t1\t2\nf2\tx!!!y\tCOG0187!!!COG0188\t0\t3\n",
        "anvio-matrix",
        "COG",
        [("A", {"COG0187": 1}), ("B", {"COG0187": 5, "COG0188": 3})],
    ),
    "Prokka": ("P_1.tsv", PROKKA, "prokka", "COG", [("P_1", {"COG0187": 2})]),
    "Bakta": ("B.tsv", BAKTA, "bakta", "COG", [("B", {"COG0187": 1})]),
    "InterProScan": ("I.faa.tsv", INTERPRO, "interproscan", "Pfam", [("I", ATPASES)]),
    "hmmscan": ("H.tblout", TBLOUT + HMMSCAN + "#\n", "hmmscan", "Pfam", [("H", ATPASES)]),
    "hmmsearch": ("H.tblout", TBLOUT + HMMSEARCH + "#\n", "hmmscan", "Pfam", [("H", ATPASES)]),
    "domtblout": ("H.tbl", DOMTBLOUT, "hmmscan", "Pfam", [("H", ATPASES)]),
    "pfam_scan": ("H.txt", PFAM_SCAN, "hmmscan", "Pfam", [("H", ATPASES)]),
    "dbCAN": ("O.txt", DBCAN, "dbcan", "CAZy", [("O", {"GH13_31": 1, "CBM48": 1})]),
    "dbCAN's hmmscan": (
        "H.tbl",
        TBLOUT + "GT4.hmm - g1 - 1e-9 50\n# Program: hmmscan",
        "hmmscan",
        "CAZy",
        [("H", {"GT4": 1})],
    ),
    "PICRUSt2": ("KO.tsv.gz", PICRUST2, "genomes-by-families", "KO", [("s1", {"K00001": 1}), ("s2", {"K00002": 2})]),
    "PICRUSt2, ec": (
        "ec.txt.gz",
        "assembly\tEC:2.7.1.-\ng\t2\n",
        "genomes-by-families",
        "EC",
        [("g", {"EC:2.7.1.-": 2})],
    ),
}
KO_TEXTS = {"K00002": "alcohol dehydrogenase (NADP+) [EC:1.1.1.2]", "K00003": "homoserine dehydrogenase [EC:1.1.1.3]"}
# Functional categories, and descriptions.
TOLD = {
    "eggNOG 2": ({"COG0001": "H", "arCOG00123": "EG"}, {"COG0001": "First one"}),
    "eggNOG 3": ({"COG0001": "EG"}, {}),
    "eggNOG 2.0": ({"COG0001": "H"}, {"COG0001": "First"}),
    "COGclassifier": (dict.fromkeys(ACIDS, "E"), {"COG0527": "Aspartate kinase", "COG0083": "Homoserine kinase"}),
    "KofamScan": ({}, KO_TEXTS),
    "KofamScan tsv": ({}, KO_TEXTS),
    "anvi'o functions": ({}, {"COG0187": "DNA gyrase B", "COG0188": "DNA gyrase A"}),
}


@pytest.mark.parametrize("kind", FILES)
def test_what_tools_write(kind, tmp_path):
    name, text, form, identifiers, genomes = FILES[kind]
    file = GenomeFile(write(tmp_path / name, text))
    assert file.format == form
    assert content(file) == content(file) == genomes
    assert file.position == file.size
    assert file.identifiers == identifiers
    assert kind not in TOLD or (file.categories, file.descriptions) == TOLD[kind]
    told = {"PICRUSt2": "column 'metadata_NSTI' is no family and was left out"}
    assert [told.get(kind, "nothing") in w for w in file.warnings] == [True] * (kind == "PICRUSt2")


@pytest.mark.parametrize(
    "kind",
    ["eggNOG 2", "COGclassifier", "KofamScan", "KofamScan tsv", "mapper", "InterProScan", "hmmscan", "hmmsearch"],
)
def test_contigs_are_told_by_names_of_genes(kind, tmp_path):
    """Genes of even numbers are on one contig, the others on another."""
    name, text, _, _, genomes = FILES[kind]
    assert [genome.contigs for genome in GenomeFile(write(tmp_path / name, text))] == [{}]  # g1, g2, ... tell nothing
    renamed = re.sub(r"\b(?:gene|g|p)(\d)\b", lambda m: f"k_{int(m[1]) % 2}_{m[1]}", text)
    (genome,) = GenomeFile(write(tmp_path / name, renamed))
    assert dict(zip(genome.families, genome.counts.tolist(), strict=True)) == genomes[0][1]
    assert genome.contigs.keys() == {"k_0", "k_1"}
    families = sum((Counter(on) for on in genome.contigs.values()), Counter())
    assert families == genomes[0][1]
    assert genome.contigs["k_0"] != genome.contigs["k_1"]
    single = re.sub(r"\b(?:gene|g|p)(\d)\b", r"k_1_\1", text)
    assert [genome.contigs for genome in GenomeFile(write(tmp_path / name, single))] == [{}]  # of which nothing follows


@pytest.mark.parametrize(
    ("kind", "old", "new", "contigs"),
    [
        ("Bakta", "c1\tcds\t20", "c2\tcds\t20", [{}]),
        ("Bakta", "\tUniRef:UniRef50_A\n", "\tCOG:COG0001\nc2\tcds\t1\t2\t+\tt3\t\tx\tCOG:COG0001\n",
         [{"c1": {"COG0187": 1, "COG0001": 1}, "c2": {"COG0001": 1}}]),
        ("DRAM", "b1_3\tb1\ts", "b1_3\tb1\tr", [{"s": {"K00001": 1}, "r": {"K00001": 1, "K00003": 1}}, {}]),
    ],
)  # fmt: skip
def test_contigs_are_columns_of_their_own(kind, old, new, contigs, tmp_path):
    name, text, *_ = FILES[kind]
    assert [genome.contigs for genome in GenomeFile(write(tmp_path / name, text.replace(old, new)))] == contigs


@pytest.mark.parametrize(
    ("kind", "identifiers", "families"),
    [
        ("eggNOG 2", "COG", COGS),
        ("eggNOG 2", "arCOG", {"arCOG00123": 1}),
        ("eggNOG 2", "ko", {"K01845": 2, "K00002": 1}),
        ("eggNOG 2", "EC", {"EC:5.4.3.8": 1, "EC:1.1.1.1": 1, "EC:2.7.-.-": 1}),
        ("eggNOG 2", "CAZy", {"GT2": 1, "GH13_31": 1, "CBM48": 1}),
        ("eggNOG 2", "Pfam", {"Aminotran_3": 1}),
        ("eggNOG 2", "GO", {"GO:0000001": 1, "GO:0000002": 1}),
        ("InterProScan", "GO", {"GO:0000001": 3}),
        ("eggNOG 2 of R", "EC", {"EC:5.4.3.8": 1, "EC:1.1.1.1": 1, "EC:2.7.-.-": 1}),
        ("DRAM", "ko_id", {"K00001": 2, "K00003": 1}),
        ("DRAM", "pfam", {"PF00534": 2, "PF13692": 1}),
        ("DRAM", "cazy", {"GT4": 1, "GH13_31": 1}),
        ("anvi'o functions", "KO", {"K02470": 2}),
        ("anvi'o functions", "Pfam", {"PF00204": 1}),
        ("anvi'o functions", "COG", {"COG0187": 2, "COG0188": 1}),
    ],
)
def test_identifiers_out_of_files_that_have_several_kinds(kind, identifiers, families, tmp_path):
    path = write(tmp_path / FILES[kind][0], FILES[kind][1])
    file = GenomeFile(path, identifiers=identifiers)
    assert content(file)[0][1] == families
    names = families == {"Aminotran_3": 1}  # of which no model's vocabulary is
    assert any("names of Pfam families" in w for w in file.warnings) == names
    if not names:
        known = GenomeFile(path, known=set(families))
        assert content(known)[0][1] == (COGS if identifiers == "arCOG" else families)


def test_a_folder_of_a_tools_outputs(tmp_path):
    for bin_, text in (("bin.1", COGCLASSIFIER), ("bin.2", COGCLASSIFIER.replace("COG0083", "COG0084"))):
        write(tmp_path / f"{bin_}/cog_classify.tsv", text)
        write(tmp_path / f"{bin_}/cog_count.tsv", "LETTER\tCOUNT\nE\t3\n")
        write(tmp_path / f"{bin_}/rpsblast.tsv", "p1\tx\t9\n")
    file = GenomeFile(tmp_path)
    assert content(file) == [("bin.1", {"COG0527": 2, "COG0083": 1}), ("bin.2", {"COG0527": 2, "COG0084": 1})]
    assert "4 files such as cog_count.tsv were left out: give a list of files" in file.warnings[0]
    for bin_ in "AB":
        write(tmp_path / f"dbcan/{bin_}/overview.txt", DBCAN)
        write(tmp_path / f"dbcan/{bin_}/diamond.out", "x")
    assert content(GenomeFile(tmp_path / "dbcan")) == [(name, {"GH13_31": 1, "CBM48": 1}) for name in "AB"]


def test_genomes_without_genes_are_kept_and_told(tmp_path):
    write(tmp_path / "A.ko", MAPPER)
    write(tmp_path / "B.ko", "gene1\ngene2\n")
    file = GenomeFile([tmp_path / "A.ko", tmp_path / "B.ko"], format="ko-mapper")
    assert content(file) == [("A", KOS), ("B", {})]
    assert "1 genomes have no family at all" in file.warnings[0]


HITS = [(f"m{copy % 3}", f"c1_{copy}") for copy in range(1, 6)]  # models without accession, and genes


@pytest.mark.parametrize("program", ["hmmsearch", "hmmscan"])
@pytest.mark.parametrize("said", [True, False])
def test_the_side_of_models_without_accessions(program, said, tmp_path):
    """By the last lines; else genes are more than models, which are never taken for families."""
    order = (lambda model, gene: (gene, model)) if program == "hmmsearch" else (lambda model, gene: (model, gene))
    lines = ["{} - {} - 1e-9 50".format(*order(*hit)) for hit in HITS]
    text = TBLOUT + "\n".join([*lines, "#", *([f"# Program:         {program}"] if said else []), ""])
    assert content(GenomeFile(write(tmp_path / "H.tblout", text))) == [("H", {"m1": 2, "m2": 2, "m0": 1})]


def test_folders_and_lists_of_kos(tmp_path):
    files = [write(tmp_path / name / "user_ko.txt", MAPPER) for name in ("binA", "binB")]
    assert content(GenomeFile(files)) == [("binA", KOS), ("binB", KOS)]
    write(tmp_path / "lists" / "A.txt", "K00002\nK00001\nK00002\n")
    write(tmp_path / "lists" / "B.txt", "")
    file = GenomeFile(tmp_path / "lists")
    assert content(file) == [("A", {"K00002": 2, "K00001": 1})]
    assert "1 of 2 files, such as" in file.warnings[0]


def test_eggnog_without_its_header(tmp_path):
    row = f"1.A 1e-9 99 COG0001@1|root,COG0009@2|Bacteria 2|Bacteria H First{' -' * 12} x".split(" ")
    file = GenomeFile(write(tmp_path / "A.tsv", "\n".join("\t".join([f"c_{n}", *row]) for n in (1, 2)) + "\n"))
    assert (file.format, content(file)) == ("eggnog", [("A", {"COG0001": 2})])


COUNTED = [(1, 2, 1), (0, 1, 1), (3, 1, 0), (1, 1, 1), (2, 2, 2), (1, 0, 2), (1, 1, 2)]  # of A, B and C
ABC = [(g, {f"OG{f}": row[at] for f, row in enumerate(COUNTED) if row[at]}) for at, g in enumerate("ABC")]
SUMMED = [(*row, sum(row)) for row in [*COUNTED, tuple(map(sum, zip(*COUNTED, strict=True)))]]
ORTHOFINDER = "Orthogroup\tA\tB\tC\tTotal\n" + "".join(
    f"{f'OG{f}' if f < 7 else 'Total'}\t" + "\t".join(map(str, row)) + "\n" for f, row in enumerate(SUMMED)
)
TURNED = "\n".join("\t".join(cells) for cells in zip(*(x.split("\t") for x in ORTHOFINDER.splitlines()), strict=True))
TINY = "genome\tCOG0001\tCOG0002\nA\t2\t0\nB\t0\t1\n"
AB = [("A", {"K00001": 1}), ("B", {"K00002": 1})]
SUM = "is the sum of all others and was left out"
# As tools and people write them: what is read, and what is said of it.
READ = {
    "OrthoFinder": (ORTHOFINDER.replace("Total\t10", "OG7\t10").rsplit("\n", 2)[0] + "\n", ABC, [f"'Total' {SUM}"]),
    "sums below and beside": (ORTHOFINDER, ABC, [f"genome 'Total' {SUM}", f"family 'Total' {SUM}"]),
    "sums, turned": (TURNED.replace("Orthogroup", "genome"), ABC, [f"family 'Total' {SUM}", f"genome 'Total' {SUM}"]),
    "present": ("genome,K00001,K00002\nA,present,absent\nB,-,yes\n", AB, []),
    "crosses": ("genome,K00001,K00002\nA,x,\nB,,+\n", AB, ["2 empty cells"]),
    "melted": ("genome\tKO\ttpm\nA\tK00001\t9.5\nA\tK00002\t0.0\nB\tK00002\t1\n", AB, ["1 rows say that"]),
    "described": ("function\tdescription\tA\tB\nK00001\ta b\t1\t0\nK00002\tc\t0\t1\n", AB, []),
    "words": ("KO\tA\tB\tClass\nK00001\t1\t0\ta\nK00002\t0\t1\tb\n", AB, ["columns of words, such as 'Class'"]),
    "words of genomes": ("genome,K00001,K00002,site\nA,1,0,a\nB,0,1,b\n", AB, ["columns of words, such as 'site'"]),
    "PanPhlAn": ("\tA\nUniRef90_A\t1\nUniRef90_B\t2\n", [("A", {"UniRef90_A": 1, "UniRef90_B": 2})], []),
    "accessions": ("\tGCF_000001.1\nx\t1\ny\t2\n", [("GCF_000001.1", {"x": 1, "y": 2})], []),
    "RNA": ("Genome ID,PGfam ID\nA,K00001\nA,\nB,K00002\n", AB, ["1 rows name no family and were left out"]),
    "BV-BRC": ("Genome\tGenome ID\tPGfam ID\tGene\nE\tA\tK00001\tx\nE\tB\tK00002\ty\n", AB, []),
    "anvi'o hits": ("enzyme\tgenome_name\tcontig\nK00001\tA\tc1\nK00002\tB\tc1\n", AB, []),
    "eggNOG 1": (EGGNOG1, [("t", {"COG0001": 1})], []),
    "reads": ("genome,K00001,K00002,K00003,K00004,K00005\nA,99,98,3,50,20\n", None, ["1 genomes have more than 10"]),
    "sizes": ("genome,bp,K00001,K00002,K00003\nA,4000,1,1,1\nB,3000,0,1,2\n", None, ["column 'bp' is no identifier"]),
    "no sum": (TINY + "Total\t2\t1\n", None, ["genomes such as 'Total' seem to be sums: leave them out"]),
    "case": (TINY.replace("\nB", "\na"), None, ["1 genomes such as 'a' differ from another one ('A') in case or"]),
    "case of families": (TINY.replace("COG0002", "cog0001"), None, ["1 families such as 'cog0001' differ from"]),
    "spreadsheet": (TINY.replace("COG0002", "2-Mar"), None, ["'2-Mar' seem to be what a spreadsheet made of names"]),
    "amounts": ("genome\tfamily\tabundance\nA\tx\t3\n", [("A", {"x": 1})], ["rename column 'abundance' to count if"]),
    "numbers": ("cluster,A,B\n1,1,2\n2,0,1\n", [("A", {"1": 1}), ("B", {"1": 2, "2": 1})], ["have the names 1 to 2"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_tables_that_could_be_misread(kind, tmp_path):
    text, genomes, said = READ[kind]
    file = GenomeFile(write(tmp_path / "t.tsv", text))
    found = content(file)
    assert genomes is None or found == genomes
    assert len(file.warnings) == len(said), file.warnings
    assert all(part in warning for part, warning in zip(said, file.warnings, strict=True))


@pytest.mark.parametrize("name", ["{}|gene_{}", "{}~k141_{}_1", "{}_k141_1_{}", "bin.{}.c_1_{}", "{}_{:05}"])
def test_pooled_genomes_are_told_and_one_genome_is_none(name, tmp_path):
    genes = [(which, gene) for which in ("X", "Y", "Z") for gene in range(90) if (gene + ord(which)) % 5]
    text = "".join(f"{name.format(which, gene)}\tK{gene:05}\n" for which, gene in genes)
    file = GenomeFile(write(tmp_path / "A.ko", text))
    assert [name for name, _ in content(file)] == ["A"]
    assert "as 3 genomes do, and were taken for one: split the file by these" in file.warnings[0]
    random = np.random.default_rng(0).integers(0, 150, 270)  # genes with copies anywhere, as of one genome
    text = "".join(f"{name.format('XYZ'[at % 3], at)}\tK{gene:05}\n" for at, gene in enumerate(random))
    file = GenomeFile(write(tmp_path / "A.ko", text))
    assert (len(content(file)), file.warnings) == (1, [])


HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(99)
BAD = [
    ("A.annotations", EGGNOG3, {"identifiers": "CAZy"}, "has no column for identifiers 'CAZy', it has some for 'COG'"),
    ("A.annotations", EGGNOG2[:-120], {}, "line 9: has 11 fields, the header has 14: is the file cut"),
    ("A.annotations", EGGNOG2 * 2, {}, "line 17: is the header again: remove it, or give the files .* one by one"),
    ("A.tsv", DRAM.replace("b2\t", "b1\t").replace("b1_2\tb1", "b1_2\tb3"), {}, "line 4: genome 'b1' again, after"),
    ("A.tsv", DRAM.replace("b2\t", "\t"), {}, "line 5: column 'fasta' is empty"),
    ("A.tsv", DRAM, {"identifiers": "EC"}, "has no column for identifiers 'EC', it has some for 'KO', 'CAZy', 'Pfam'"),
    ("A.tsv", DRAM[1:], {}, "line 1: has 9 fields, the rows below have one more: name each column"),
    ("A.txt", KOFAM.replace("K00003", "x"), {}, "line 6: column 'KO' is 'x', it must be a KO such as 'K00001'"),
    ("A.txt", KOFAM + KOFAM, {}, r"line 8: begins with '#', it must with \* or a space .the header again"),
    ("A.txt", KOFAM.replace("  gene3", "gene3"), {}, r"line 5: begins with 'g', it must with \* or a space"),
    ("A.txt", KOFAM.replace("K00003", "      "), {}, "line 6: column 'KO' is '200.00'"),
    ("A.txt", MAPPER, {"format": "kofamscan"}, "does not begin with KofamScan's header"),
    ("A.txt", MAPPER + "g\tCOG0001\n", {"format": "ko-mapper"}, "line 7: column 2 is 'COG0001', it must be a KO"),
    ("A.txt", MAPPER, {"format": "cogclassifier"}, "has no column with COGs"),
    ("A.txt", MAPPER, {"format": "anvio-functions"}, "has no column with accessions"),
    ("A.txt", MAPPER, {"format": "dram"}, "has no column with genomes .fasta."),
    ("A.txt", MAPPER, {"format": "eggnog"}, "has no column for identifiers 'COG', nor for others"),
    ("A.txt", MAPPER, {"format": "long"}, "has no column with genomes, it has 'gene1'"),
    ("A.txt", "".join(f"bin1\tK{n:05}\n" for n in range(60)), {}, "line 51: 'bin1' has more than 50 KOs: where .* gen"),
    (
        "A.tsv",
        "##gff-version 3\nc1\tx\tCDS\n",
        {},
        "is GFF: give the table of annotations .* the tool writes beside it",
    ),
    ("A.zst", b"\x28\xb5\x2f\xfd" + bytes(9), {}, "is compressed by Zstandard, .* unpack it"),
    ("A.txt", "K00001\t2\tc1,c2\nK00002\t\t\n", {}, "has no header: its first line begins with the family 'K00001'"),
    (
        "A.txt",
        "gene_oid\tbits\tko_id\n1\t9\tKO:K00001\n",
        {},
        "is of no known .* or columns genome and family",
    ),
    ("A.txt", TBLOUT + "a - b - 1e-9 50\n", {}, "has hits of 'a' and 'b' without accessions, .*'# Program: hmmsearch'"),
    ("A.tsv", "\tfasta\tscaffold\tpeptidase_id\nb1_1\tb1\ts1\tM\n", {}, "has no KO, CAZy or Pfam: run DRAM annotate"),
    ("A.ko", "g1\tK00001\ng2 K00002\n", {}, "line 2: has one field, 'g2 K00002': gene and KO must be separated"),
    ("A.ko", "g1\tK00001\ng2\tK00002/x\n", {}, "is of no known format"),
    ("A.tsv", "class\tKO\tA\tB\nx\tK00001\t1\t2\ny\tK00002\t1\t0\n", {}, "is of no known format"),
    ("A.tsv", "gene\tKO\tthrshld\tscore\ng\tK00001\t30\t20\n", {}, "lacks KofamScan's marks of hits"),
    ("A.tsv", "KO\tA\tB\nK00001\t1\t50%\nK00002\t1\t1\n", {}, "line 2: column 'B' is '50%', it must be a whole"),
    ("A.csv", ",genome,K00001,K00002\n1,A,1,0\n2,B,0,2\n", {}, "column '' only counts: leave it out, so that 'genome'"),
    ("A.txt", COGCLASSIFIER + "p9\n", {}, "line 5: has 1 fields, the header has 9: is the file cut off?"),
    ("A.txt", COGCLASSIFIER.replace("COG0083", "c8"), {}, "line 3: column 'COG_ID' is 'c8', it must"),
    ("t.tsv", "allele_name\tgene_family\tA\ng_1\tg\ta1\n", {}, "lists names of genes: give what PIRATE_to_Rtab.pl"),
    ("t.tsv", "# feature\tassembly\tlocus_tag\nCDS\tA\tt1\n", {}, "lists features, which are no families: annotate"),
    ("t.tsv", "Orthogroup\tA\tB\nOG0\ta1, a2\tb1\n", {}, "is of no known format: .* counts in place of names of genes"),
    ("t.biom", HDF5, {}, "is an HDF5 file, such as BIOM or h5ad: .* biom convert --to-tsv"),
    ("t.biom", '{"format": "Biological Observation Matrix 1.0.0"}', {}, "is JSON, such as BIOM 1.0"),
    ("t.csv", b"PK\x03\x04" + bytes(99), {}, "is a zip archive, such as an Excel workbook: save the sheet as CSV"),
    ("t.tsv", gzip.compress(MAPPER.encode(), mtime=0), {}, "is compressed: let its name end in .gz"),
]


@pytest.mark.parametrize(("name", "text", "options", "message"), BAD)
def test_bad_files_of_tools(name, text, options, message, tmp_path):
    with pytest.raises(ValueError, match=f"{name}: (?:{message})"):
        list(GenomeFile(write(tmp_path / name, text), **options))


# ---------------------------------------------------------------------- comments, several identifiers, spreadsheets


def read(folder, name, text, **options):
    file = GenomeFile(write(folder / name, text), **options)
    return content(file), file.warnings


def test_genes_whose_names_begin_with_a_hash_are_read(tmp_path):
    gene = "#g9\tK00009\n"
    for text in (MAPPER + gene, MAPPER + "#" + gene, gene + MAPPER, "#g8\n" + gene + MAPPER):
        assert read(tmp_path, "D.ko", text)[0] == [("D", KOS | {"K00009": 1})]
    assert read(tmp_path, "D.ko", "#g1\tK00001\n##g2\tK00002\n")[0] == [("D", {"K00001": 1, "K00002": 1})]
    for kind in ("eggNOG 2", "COGclassifier", "DRAM", "anvi'o functions", "anvi'o matrix"):
        name, text, *_, genomes = FILES[kind]
        *lines, last = (line for line in text.rstrip("\n").split("\n"))
        while last.startswith("##"):
            last = lines.pop()
        for hashes in ("#", "##"):
            assert read(tmp_path, name, "\n".join([*lines, hashes + last]) + "\n")[0] == genomes, (kind, hashes)


def test_comments_of_eggnog_are_skipped_where_it_writes_them(tmp_path):
    name = "A.emapper.annotations"
    spread = "\n".join(line + "\t" * 13 if line.startswith("##") else line for line in EGGNOG2.split("\n"))
    for text in (EGGNOG2, spread, EGGNOG2.replace("## ", "# "), EGGNOG2.replace("g3\t", "## half\ng3\t")):
        assert read(tmp_path, name, text)[0] == [("A", COGS)]


def test_hits_of_kofamscan(tmp_path):
    for mark in ("* ", "*", " * "):
        assert read(tmp_path, "D.txt", KOFAM.replace("* ", mark))[0] == [("D", KOS)]
    quoted = "\n".join(
        "\t".join(f'"{field}"' for field in line.replace('"', "").split("\t")) if line[0] != "#" else line
        for line in KOFAM_TSV.rstrip("\n").split("\n")
    )
    assert read(tmp_path, "D.tsv", quoted)[0] == [("D", KOS)]
    several = KOFAM_TSV.replace("*\tgene4\tK00003", "*\tgene4\tK00003/K00004")
    assert read(tmp_path, "D.tsv", several)[0] == [("D", KOS | {"K00004": 1})]


@pytest.mark.parametrize(
    "field", ["K05845/K05846", "K05845,K05846", "K05845;K05846", "K05845 K05846", "ko:K05845, K05846"]
)
def test_a_gene_of_several_families(field, tmp_path):
    kos = [("D", {"K05845": 1, "K05846": 1, "K00003": 1})]
    assert read(tmp_path, "D.ko", f"g0\ng1\t{field}\ng2\tK00003\n")[0] == kos
    assert read(tmp_path, "D.ko", "g0\n" * 99 + f"g1\t{field}\ng2\tK00003\n")[0] == kos
    eggnog = EGGNOG2.replace("ko:K01845,ko:K00002", field)
    found = read(tmp_path, "A.emapper.annotations", eggnog, identifiers="KO")[0]
    assert found == [("A", {"K05845": 1, "K05846": 1, "K01845": 1})]
    dram = DRAM.replace("K00001,K00003", field.replace("ko:", ""))
    assert read(tmp_path, "a.tsv", dram)[0][0] == ("b1", {"K00001": 1, "K05845": 1, "K05846": 1})
    cogs = field.replace("ko:", "").replace("K0", "COG")
    found = read(tmp_path, "A_cog_classify.tsv", COGCLASSIFIER.replace("COG0083", cogs))[0]
    assert found == [("A", {"COG0527": 2, "COG5845": 1, "COG5846": 1})]
    found = read(tmp_path, "E.txt", FUNCTIONS.replace("COG0187!!!COG0188", cogs))[0]
    assert found == [("E", {"COG5845": 1, "COG5846": 1, "COG0187": 1})]


def test_a_gene_on_several_lines_has_each_family_once(tmp_path):
    found = read(tmp_path, "D.ko", "g1\tK00001\ng1\tK00002\ng1\tK00001\ng2\tK00001\n")[0]
    assert found == [("D", {"K00001": 2, "K00002": 1})]
    again = FUNCTIONS + "0\tCOG14_FUNCTION\tCOG0187\tDNA gyrase B\t4e-136\n"
    assert read(tmp_path, "E.txt", again)[0] == [("E", {"COG0187": 2, "COG0188": 1})]


def test_a_header_above_genes_and_their_kos(tmp_path):
    for header in ("gene\tKO\n", "#gene\tKO\n", "#query\tKO\n"):
        assert read(tmp_path, "D.ko", header + "g1\tK00001\n")[0] == [("D", {"K00001": 1})]


def quoted(text, separator="\t"):
    rows = [line.split("\t") for line in text.rstrip("\n").split("\n")]
    return "\n".join(separator.join('"' + field.replace('"', '""') + '"' for field in row) for row in rows) + "\n"


@pytest.mark.parametrize("separator", ["\t", ",", ";"])
@pytest.mark.parametrize("kind", ["COGclassifier", "DRAM", "anvi'o functions", "mapper", "eggNOG 2 without comments"])
def test_what_a_spreadsheet_quotes(kind, separator, tmp_path):
    name, text, form, _, genomes = FILES[kind]
    lines = text.rstrip("\n").split("\n")
    width = max(line.count("\t") for line in lines)
    text = "".join(line + "\t" * (width - line.count("\t")) + "\n" for line in lines)
    if kind == "mapper":
        text = "".join(line + "\n" for line in text.split("\n") if line.strip("\t"))
    for changed in (quoted(text, separator), "\ufeff" + quoted(text, separator).replace("\n", "\r\n")):
        file = GenomeFile(write(tmp_path / name, changed), format=form)
        assert content(file) == genomes


def test_entries_without_an_identifier_are_told(tmp_path):
    found, told = read(tmp_path, "a.tsv", DRAM.replace("K00001,K00003", "k00001"))
    assert found[0] == ("b1", {"K00001": 1})
    assert "1 entries hold no identifier of kind KO and were left out" in told[0]
    longer = DRAM.replace("GT4; GH13_31", "GT2_Glycos_transf_2; GH13_e5")
    found, _ = read(tmp_path, "a.tsv", longer, identifiers="CAZy")
    assert found[0] == ("b1", {"GT2": 1, "GH13": 1})


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_what_bakta_leaves_beside_its_main_file_is_left_out(tmp_path, nested, packed):
    columns = {".tsv": "DbXrefs\n{}COG:COG0187", ".hypotheticals.tsv": "Mol Weight\n{}9", ".inference.tsv": "X\n{}x"}
    columns |= {".txt": "\nbases: 9", ".tbl": "\n1\t9"}
    head = "# Annotated with Bakta\n#Sequence Id\tType\tStart\tStop\tStrand\tLocus Tag\tGene\tProduct\t"
    row = "c1\tcds\t1\t9\t+\tt1\tgyrB\tGyrase\t"
    for name in ("A", "B"):
        for end, last in columns.items():
            path = (tmp_path / name if nested else tmp_path) / f"{name}{end}{packed}"
            write(path, head + last.format(row) + "\n")
    with pytest.warns(UserWarning, match="8 files such as A.hypotheticals.tsv.* were left out"):
        found = read_table(tmp_path)
    assert (found.names, found.families) == (["A", "B"], ["COG0187"])
