"""Qualities and taxonomies of genomes out of tables; what is wrong is named."""

import pandas as pd
import pytest
from genome_oracle import write

from omniset.genomes.metadata import RANKS, completeness_of, is_whole, read_qualities, read_taxonomy

CHECKM2 = "Name\tCompleteness\tContamination\tCompleteness_Model_Used\nA\t95.5\t0.0\tNeural Network\nB\t50\t120.25\tx\n"
QUALITIES = {
    "CheckM2": CHECKM2,
    "CheckM": "Bin Id\tMarker lineage\t# genomes\t0\t5+\tCompleteness\tContamination\tStrain heterogeneity\n"
    "A\tk__Bacteria (UID1)\t9\t1\t0\t95.50\t0.00\t0.00\nB\troot (UID2)\t9\t1\t0\t50.00\t120.25\t0.00\n",
    "GTDB": "accession\tcheckm_completeness\tcheckm2_completeness\tcheckm2_contamination\tcheckm_contamination\n"
    "A\t1\t95.5\t0\t2\nB\t1\t50\t120.25\t2\n",
    "upper case, csv": "GENOME,CONTAMINATION,COMPLETENESS\nA,0,95.5%\nB,120.25,50\n",
    "CheckM2, both models": "Name\tCompleteness_General\tContamination\tCompleteness_Specific\tCompleteness_"
    "Model_Used\nA\t95.5\t0\t9\tGradient Boost (General Model)\nB\t9\t120.25\t50\tNeural Network (Specific Model)\n",
    "anvi'o": "bins\tpercent_completion\tpercent_redundancy\nA\t95.5\t0\nB\t50\t120.25\n",
    "index": ",completeness,contamination\nA,95.5,0\nB,50,120.25\n",
}


@pytest.mark.parametrize("kind", QUALITIES)
def test_qualities(kind, tmp_path):
    frame = read_qualities(write(tmp_path / "q.tsv.gz", QUALITIES[kind]))
    assert frame.index.name == "genome"
    assert frame.to_dict("list") == {"completeness": [95.5, 50.0], "contamination": [0.0, 120.25]}
    assert frame.index.tolist() == ["A", "B"]


def test_a_contamination_of_half_a_percent_is_percent(tmp_path):
    frame = read_qualities(write(tmp_path / "q.tsv", "genome\tcompleteness\tcontamination\nA\t95\t0.05\nB\t0.9\t0.5\n"))
    assert frame.to_numpy().tolist() == [[95, 0.05], [0.9, 0.5]]


def test_whole_genomes():
    names = ["a", "RS_b", "c", "d", "e"]
    quality = pd.DataFrame({"completeness": [99.0, 98.99, None, 100.0]}, index=["b.fna", "a", "c", "e"])
    found = completeness_of(quality, names)
    assert found == pytest.approx([0.9899, 0.99, float("nan"), float("nan"), 1.0], nan_ok=True)
    assert is_whole(found).tolist() == [False, True, False, False, True]  # nothing is known of c and d
    assert completeness_of(None, names) is None
    with pytest.raises(ValueError, match="such as 'x': it has none of them, its names are such as 'b.fna'"):
        completeness_of(quality, ["x"])
    with pytest.raises(ValueError, match="completeness is 101, it must be from 0 to 100"):
        completeness_of(pd.DataFrame({"completeness": [101.0]}, index=["a"]), names)


def test_qualities_that_are_not_given(tmp_path):
    frame = read_qualities(write(tmp_path / "q.tsv", "genome\tcompleteness\nA\t90\nB\tNA\n"))
    assert frame["completeness"].fillna(-1).tolist() == [90, -1]
    assert frame["contamination"].isna().all()
    table = pd.DataFrame({"genome": ["A"], "completeness": [90], "contamination": [1.5]})
    table.to_parquet(tmp_path / "q.parquet", index=False)
    assert read_qualities(tmp_path / "q.parquet").loc["A"].tolist() == [90, 1.5]


FRACTIONS = CHECKM2.replace("95.5", "1.0").replace("50\t", ".5\t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (CHECKM2.replace("95.5", text), f"line 2: column 'Completeness' is '{text}', it must be a number from 0 to")
            for text in ("100.5", "-1", "high", "9_5", "95,5", "0x5F", "inf", "1e3")
        ),
        (CHECKM2.replace("120.25", "-0.5"), "line 3: column 'Contamination' is '-0.5', it must be a number >= 0"),
        (CHECKM2.replace("120.25", "inf"), "line 3: column 'Contamination' is 'inf'"),
        (CHECKM2 + "A\t1\t1\tx\n", "line 4: genome 'A' is there twice .first at line 2"),
        (CHECKM2 + "\t1\t1\tx\n", "line 4: column 'Name' is empty"),
        (FRACTIONS, "column 'Completeness' is at most 1, so it seems to hold fractions: multiply completeness by"),
        (FRACTIONS.replace("120.25", ".5"), "so it seems to hold fractions: multiply completeness and contamination"),
        (CHECKM2.replace("Name", "Who"), "has no column with genomes .named genome_id, .* it has 'Who', .*rename it"),
        (CHECKM2.replace("Completeness\t", "Full\t"), "has no column with completeness, it has 'Name', 'Full'"),
        ("Name\tCompleteness\tCompleteness\nA\t95\t40\n", "has two columns 'Completeness': leave one of them out"),
        ("Name\tCompleteness\n", "has no genomes"),
        ("-----------\n  Bin Id   Marker lineage\n", "is CheckM's table for readers: write it with --tab_table"),
    ],
)
def test_bad_qualities(text, message, tmp_path):
    with pytest.raises(ValueError, match=f"q.tsv: .*{message}"):
        read_qualities(write(tmp_path / "q.tsv", text))


# ---------------------------------------------------------------------- taxonomy

AEROPYRUM = (
    "d__Archaea;p__Thermoproteota;c__Thermoprotei_A;o__Sulfolobales;f__Acidilobaceae;g__Aeropyrum;s__Aeropyrum pernix"
)
KNOWN = [part[3:] for part in AEROPYRUM.split(";")]
UNNAMED = "d__Bacteria;p__Bacillota;c__;o__;f__;g__;s__"
TAXONOMIES = {
    "GTDB metadata": f"accession\tncbi_taxonomy\tgtdb_taxonomy\nA\tx\t{AEROPYRUM}\nB\tx\t{UNNAMED}\n",
    "GTDB-Tk": f"user_genome\tclassification\tfastani_ani\nA\t{AEROPYRUM}\t99\nB\t{UNNAMED}\tN/A\n",
    "GTDB without header": f"A\t{AEROPYRUM}\nB\t{UNNAMED}\n",
    "words": f"#genome\tLineage\nA\t{'; '.join(KNOWN)}\nB\tBacteria;Bacillota\n",
    "NCBI": f"genome\ttaxonomy\nA\tcellular organisms;Archaea;Thermoproteati;{';'.join(KNOWN[1:])}\n"
    "B\tcellular organisms; Bacteria; Bacillati; Bacillota\n",
    "MMseqs2": f"genome\tlineage\nA\t-_x y;{AEROPYRUM.replace('__', '_')}\nB\td_Bacteria;-_x;p_Bacillota\n",
    "superkingdoms": f"genome\tlineage\nA\t{AEROPYRUM.replace('d__', 'sk__')}\nB\tsk__Bacteria;k__;p__Bacillota\n",
    "NCBI, groups": f"genome\ttaxonomy\nA\troot;cellular organisms;Archaea;TACK group;{';'.join(KNOWN[1:])}\n"
    "B\tcellular organisms;Bacteria;Bacillota;unclassified Bacillota;uncultured\n",
    "BAT": "# bin_classification_lineage_superkingdom_phylum_class_order_family_genus_species\n"
    f"A_taxid assigned_1;131567;2157_{': 0.97_'.join(k.replace('_', '-') for k in KNOWN)}: 1.00\n"
    "B_taxid assigned_1;2_Bacteria: 1.00_Bacillota_no support_NA___\n".replace("_", "\t").replace("-", "_"),
    "columns": "genome,Superkingdom,Phylum,Class,Order,Family,Genus,Species\n"
    + f"A,{','.join(KNOWN)}\nB,Bacteria,Bacillota,,,NA,,\n",
}


@pytest.mark.parametrize("kind", TAXONOMIES)
def test_taxonomy(kind, tmp_path):
    frame = read_taxonomy(write(tmp_path / "t.tsv", TAXONOMIES[kind]))
    assert (list(frame.index), frame.index.name, tuple(frame.columns)) == (["A", "B"], "genome", RANKS)
    assert frame.loc["A"].tolist() == KNOWN
    assert frame.loc["B"].tolist() == ["Bacteria", "Bacillota", None, None, None, None, None]


def test_taxonomy_as_far_as_it_is_known(tmp_path):
    frame = read_taxonomy(write(tmp_path / "t.csv", "Bin Id,family,order\nA,f__X,o__Y\n"))
    assert frame.to_dict("index") == {"A": {"order": "Y", "family": "X"}}
    frame = read_taxonomy(write(tmp_path / "t.tsv", f"name\ttaxonomy\nA\tUnclassified\nB\t{AEROPYRUM};t__X1\nC\t\n"))
    assert frame.isna().sum(axis=1).tolist() == [7, 0, 7]


def test_empty_ranks_are_empty_whatever_the_prefix(tmp_path):
    text = "genome\ttaxonomy\nA\tD_0__Bacteria;D_1__;D_2__Bacilli\nB\tD__Bacteria;P__;C__Bacilli\n"
    frame = read_taxonomy(write(tmp_path / "t.tsv", text))
    assert frame[["domain", "phylum", "class"]].to_numpy().tolist() == [["Bacteria", None, "Bacilli"]] * 2


def test_kingdoms_beneath_domains_are_none_of_our_ranks(tmp_path):
    text = "genome\ttaxonomy\nA\td__Bacteria;k__Bacillati;p__Bacillota\nB\tk__Bacteria|p__Bacillota|t__x\n"
    frame = read_taxonomy(write(tmp_path / "t.tsv", text))
    assert frame[["domain", "phylum"]].to_numpy().tolist() == [["Bacteria", "Bacillota"]] * 2
    text = "genome,superkingdom,kingdom,phylum\nA,Bacteria,Bacillati,Bacillota\n"
    frame = read_taxonomy(write(tmp_path / "t.csv", text))
    assert frame.to_dict("index") == {"A": {"domain": "Bacteria", "phylum": "Bacillota"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (f"genome\ttaxonomy\nZ\td__B;p__X\nA\t{lineage}\n", f"line 3: column 'taxonomy' {message}")
            for lineage, message in (
                ("d__B;p__X;p__Y;c__Z", "has the rank phylum twice .'p__X', 'p__Y'.: a lineage has each rank once"),
                ("D_0__B;D_1__X;D_1__Y", "has the rank phylum twice"),
                ("d__B;d__B;p__X", "has the rank domain twice"),
                ("d__B,p__X,c__Y", "is 'd__B,p__X,c__Y', it must be a lineage"),
                ("d__B;Bacilli", "is 'd__B;Bacilli', it must be a lineage"),
                (
                    "Bacteria;Bacillota;Bacillales;Bacillaceae",
                    "is 'Bac.*, it must be a lineage .* none left out between",
                ),
                ("131567;2;1239", "is '131567;2;1239', it must be a lineage"),
                ("a;b;c;d;e;f;g;h", "is 'a;b;c;d;e;f;g;h', it must be a lineage"),
            )
        ),
        ("A\td__B;p__X\nB\td__B;p__X;p__X\n", "line 2: column 'lineage' has the rank phylum twice"),
        ("genome\tphylum\nA\tp__X\nB\tp__X;p__Y\n", "line 3: column 'phylum' is 'p__X;p__Y', it must"),
        ("genome\tphylum\nA\tc__Y\n", "line 2: column 'phylum' is 'c__Y', it must be one name, of this rank"),
        ("genome\tphylum\tPhylum\nA\tX\tY\n", "has two columns of the rank 'phylum': leave one of them out"),
        ("genome\ttaxonomy\nA\t562\n", "line 2: column 'taxonomy' is '562', it must be a lineage"),
        (TAXONOMIES["GTDB-Tk"] * 2, "line 4: is the header again: remove it"),
        ("genome\tcolour\nA\tred\n", "has no column with lineages .gtdb_taxonomy, .* it has 'genome', 'colour'"),
        (
            "genome" + ("\t" + "x" * 99) * 20 + "\nA" + "\tb" * 20 + "\n",
            "has .* 'genome', ('x+...', ){4}'x+...' and 15 more$",
        ),
        ("who\ttaxonomy\nA\td__B;p__\n", "has no column with genomes"),
        (TAXONOMIES["GTDB-Tk"] + "A\t\t\n", "line 4: genome 'A' is there twice"),
        ("genome\ttaxonomy\n", "has no genomes"),
    ],
)
def test_bad_taxonomies(text, message, tmp_path):
    with pytest.raises(ValueError, match=f"t.tsv: {message}"):
        read_taxonomy(write(tmp_path / "t.tsv", text))
