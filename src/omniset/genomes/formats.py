"""What the header of a file says: which format it is, which columns it has, which way round a table is; and whose
identifiers its families are.

`FORMATS` has a row for each format. One that holds a gene, or a hit, on each line is read by its columns alone, see
`omniset.genomes.readers`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice

from omniset.core.features import MISSING
from omniset.tables.files import TableFile, TextFile, listed
from omniset.tables.sheets import NUMBER, Sheet

Names = tuple[str, ...]
IDENTIFIER = re.compile(
    r"(?P<COG>COG\d{4,5})|(?P<arCOG>arCOG\d{5})|(?P<KOG>KOG\d{4})|(?P<KO>(?:[kK][oO]:)?K\d{5})"
    r"|(?P<Pfam>PF\d{5}(?:\.\d+)?)|(?P<TIGRFAM>TIGR\d{5}(?:\.\d+)?)|(?P<NCBIfam>NF\d{6}(?:\.\d+)?)"
    r"|(?P<InterPro>IPR\d{6})|(?P<EC>(?:EC[: ]?)?\d+\.(?:\d+|-)\.(?:\d+|-)\.(?:[nB]?\d+|-))"
    r"|(?P<CAZy>(?:GH|GT|PL|CE|AA|CBM)\d+(?:_\d+)?)|(?P<GO>GO:\d{7})|(?P<eggNOG>ENOG\w+)|(?P<UniRef>UniRef\d+_\w+)"
)
BETWEEN = re.compile(r"!!!|[\s,;/|+]+")  # what stands between several identifiers in one field
KINDS = tuple(IDENTIFIER.groupindex)
COGS = ("COG", "arCOG", "KOG")  # one naming scheme for three parts of life
SUMS = re.compile(r"(?:(?:grand|row|column) )?(?:total|sum)s?", re.IGNORECASE)
MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
SPREADSHEET = re.compile(  # dates, errors, and numbers that were cut to a few digits
    rf"\d{{1,2}}-(?:{MONTHS})(?:-\d{{2,4}})?|(?:{MONTHS})-\d{{2}}|#(?:N/A|REF!|NAME\?|VALUE!|DIV/0!|NUM!|NULL!)"
    r"|\d[.,]\d+E\+\d{2,}"
)


@dataclass(frozen=True)
class Format:
    """A kind of file that holds gene content."""

    title: str  # what it is, or who writes it
    # It is recognised by a column out of each of these groups; (): by one of genomes and one of families, or by more
    # than names of columns.
    header: tuple[Names, ...] = ()
    # The columns that may have identifiers, by their kind; the first kind is the one that is taken where none is asked
    # for. Empty: the file has any kind, and all are taken.
    families: Mapping[str, Names] = field(default_factory=dict)
    genome: Names = ()  # The column of genomes. (): such a file is one genome.
    gene: Names = ()  # columns that may name the gene; contig, category, description: and what else is told of it
    contig: Names = ()
    category: Names = ()
    description: Names = ()
    # How identifiers stand in a field: "only" ones of the kind that is wanted, all others are an error; "wanted" ones
    # among others; "inside" longer texts; "prefixed" with the name of their database; as "roots" of orthologous groups.
    # "": lines are not read by their columns alone.
    pick: str = ""


FORMATS = {
    "genomes-by-families": Format("a table, one genome per row, one column per family, such as PICRUSt2's"),
    "families-by-genomes": Format("its transpose, one family per row, such as gene_presence_absence.Rtab"),
    "long": Format("a table with columns genome, family and, if wanted, count"),
    "eggnog": Format(
        "eggNOG-mapper's .emapper.annotations, one genome per file",
        header=(("query", "query_name"), ("eggnog_ogs", "cog_category", "kegg_ko", "seed_eggnog_ortholog")),
        families={
            **{"COG": ("eggnog_ogs", "matching_ogs", "ogs"), "arCOG": ("eggnog_ogs", "matching_ogs", "ogs")},
            **{"KO": ("kegg_ko", "kegg_kos"), "EC": ("ec", "ec_number"), "CAZy": ("cazy",)},
            **{"Pfam": ("pfams", "pfam"), "GO": ("gos", "go_terms")},
        },
        gene=("query", "query_name"),
        category=("cog_category", "cog_cat", "cog_functional_cat", "cog_functional_category", "cog"),
        description=("description", "desc", "eggnog_free_text_desc", "eggnog_hmm_model_annotation"),
        pick="roots",
    ),
    "cogclassifier": Format(
        "COGclassifier's cog_classify.tsv, one genome per file",
        header=(("query_id",), ("cog_id",)),
        families={"COG": ("cog_id",)},
        gene=("query_id",),
        category=("cog_letter",),
        description=("cog_name",),
        pick="only",
    ),
    "kofamscan": Format("KofamScan's detail or detail-tsv, one genome per file", families={"KO": ()}),
    "ko-mapper": Format(
        "gene<TAB>KO as KofamScan's mapper, BlastKOALA and GhostKOALA write it, or a KO a line, one genome per file",
        families={"KO": ("ko", "kos", "ko_id", "kegg_id", "k_number", "kegg_ko", "kegg_kos")},
    ),
    "dram": Format(
        "DRAM's annotations.tsv",
        families={
            "KO": ("ko_id", "kegg_id", "kofam_id"),
            "CAZy": ("cazy_ids", "cazy_id", "cazy_best_hit", "cazy_hits", "dbcan_id", "dbcan_ids"),
            "Pfam": ("pfam_hits", "pfam_id", "pfam_ids"),
        },
        genome=("fasta", "input_fasta"),
        contig=("scaffold",),
        pick="inside",
    ),
    "anvio-matrix": Format("a matrix of anvi-script-gen-function-matrix-across-genomes"),
    "anvio-functions": Format(
        "anvi-export-functions, one genome per file",
        header=(("gene_callers_id",), ("accession",)),
        families=dict.fromkeys((*KINDS, "other"), ("accession",)),
        gene=("gene_callers_id",),
        description=("function",),
        pick="wanted",
    ),
    "prokka": Format(
        "Prokka's .tsv, one genome per file",
        header=(("locus_tag",), ("ftype",), ("product",)),
        families={"COG": ("cog",), "EC": ("ec_number",)},
        pick="wanted",
    ),
    "bakta": Format(
        "Bakta's .tsv, one genome per file",
        header=(("type",), ("locus_tag",), ("dbxrefs",)),
        families=dict.fromkeys(KINDS, ("dbxrefs",)),
        contig=("sequence_id",),
        pick="prefixed",
    ),
    "dbcan": Format(
        "dbCAN's overview, one genome per file",
        header=(("gene_id",), ("hmmer", "dbcan_hmm"), ("diamond",)),
        families={"CAZy": ("hmmer", "dbcan_hmm")},
        gene=("gene_id",),
        pick="inside",
    ),
    "interproscan": Format("InterProScan's .tsv, one genome per file", families=dict.fromkeys(("Pfam", *KINDS), ())),
    "hmmscan": Format("--tblout or --domtblout of hmmscan or hmmsearch, or pfam_scan.pl's table, one genome per file"),
}
REFUSED = (  # files beside those that can be read: a column out of each group, none of these, and what to give instead
    ((("letter",), ("count",)), "cog_id",
     "counts letters (functional categories) only: give COGclassifier's cog_classify.tsv"),
    ((("gene",), ("non_unique_gene_name",), ("annotation",)), "",
     "lists names of genes, not counts: give the file gene_presence_absence.Rtab that stands beside it"),
    ((("allele_name",), ("gene_family",)), "", "lists names of genes: give what PIRATE_to_Rtab.pl makes of it"),
    ((("ko",), ("thrshld",), ("score",)), "",
     "lacks KofamScan's marks of hits above their thresholds: give the file as KofamScan writes it (-f detail-tsv)"),
    ((("feature",), ("assembly",), ("locus_tag",)), "",
     "lists features, which are no families: annotate the proteins with eggNOG-mapper or KofamScan"),
)  # fmt: skip
CHOICES = {kind.lower(): kind for kind in (*KINDS, "other")} | {  # what may be asked for, also by names of columns
    **{"cog_id": "COG", "eggnog_ogs": "COG", "ko_id": "KO", "kegg_ko": "KO", "kegg_id": "KO", "kegg": "KO"},
    **{"pfams": "Pfam", "pfam_hits": "Pfam", "cazy_ids": "CAZy", "cazy_id": "CAZy", "gos": "GO"},
}

GENOME_NAMES = (
    *("genome_id", "genome", "genome_name", "user_genome", "assembly", "assembly_accession", "accession"),
    *("bin_id", "bin", "bin_name", "mag", "mag_id", "mag_name", "fasta", "name", "sequence", "sample", "sample_id"),
    *("isolate", "strain", "organism"),
)
FAMILY_NAMES = (
    *("family", "gene_family", "families", "family_id", "function", "orthogroup", "cog", "cog_id", "ko", "ko_id"),
    *("enzyme", "pgfam_id", "kegg_ko", "kegg_id"),
    *("pfam", "ec", "ec_number", "cluster", "gene_cluster", "gene_cluster_id", "feature", "gene", "otu_id", "key"),
)
COUNT_NAMES = ("count", "counts", "copies", "copy_number", "gene_count", "n", "number")
AMOUNTS = ("present", "presence", "presence_absence", "value", "hits", "abundance", "coverage", "reads", "tpm", "rpkm")
DESCRIPTIONS = ("description", "definition", "annotation", "product", "name")  # of families, beside their counts
PRESENCE = dict.fromkeys(("true", "present", "yes", "x", "+"), 1.0) | dict.fromkeys(("false", "absent", "no", "-"), 0.0)
NO_GENES = (*DESCRIPTIONS, "taxonomy", "lineage", "class", "category", "pathway", "module")
METADATA = ("metadata_nsti",)  # PICRUSt2's distance to the nearest sequenced taxon
COMMAS = re.compile(r"[+-]?\d+(?:[, '_]\d+)+(?:\.\d*)?", re.ASCII)  # of decimals or of thousands: refused as a count
HITS = {  # what a line of the header is by, and where target, accession, query and accession stand
    re.compile(r"#\s*target name\s+accession\s+query name\b"): (0, 1, 2, 3),  # HMMER's --tblout
    re.compile(r"#\s*target name\s+accession\s+tlen\b"): (0, 1, 3, 4),  # --domtblout: a gene counts once all the same
    re.compile(r"#\s*<seq id> <alignment start>"): (6, 5, 0, 0),  # pfam_scan.pl
}
EGGNOG = [  # columns of eggNOG-mapper 2.1
    *("query", "seed_ortholog", "evalue", "score", "eggNOG_OGs", "max_annot_lvl", "COG_category", "Description"),
    *("Preferred_name", "GOs", "EC", "KEGG_ko", "KEGG_Pathway", "KEGG_Module", "KEGG_Reaction", "KEGG_rclass"),
    *("BRITE", "KEGG_TC", "CAZy", "BiGG_Reaction", "PFAMs"),
]
ROOT = re.compile(r"@1\|root\b|@2\|Bacteria\b|@2157\|Archaea\b")
ACCESSION = re.compile(r"GC[AF]_\d{6}")  # of an assembly
MD5 = re.compile(r"[0-9a-f]{32}")
KOFAM = re.compile(r"#\s*gene name\s+KO\b")


def detect(sheet: Sheet) -> str:
    """The format, by the columns. Wide tables are "genomes-by-families" whichever way round they are.

    Raises:
        ValueError: None of those that can be read.
    """
    keys = set(sheet.keys)

    def has(groups: tuple[Names, ...]) -> bool:
        return bool(groups) and all(keys & set(names) for names in groups)

    if is_kofam(sheet):
        return "kofamscan"
    if columns_of_hits(sheet) is not None:
        return "hmmscan"
    for groups, but, why in REFUSED:
        if has(groups) and but not in keys:
            raise sheet.file.error(None, why)
    for name, form in FORMATS.items():
        if has(form.header or (form.genome, tuple(chain.from_iterable(form.families.values())))):
            return name
    if is_beheaded_eggnog(sheet):
        return "eggnog"
    if len(sheet.columns) >= 11 and MD5.fullmatch(sheet.columns[1]):
        return "interproscan"
    if has((FORMATS["dram"].genome, FORMATS["dram"].contig)):
        raise sheet.file.error(None, "has no KO, CAZy or Pfam: run DRAM annotate with KOfam, dbCAN or Pfam")
    if sheet.keys[0] == "key" and text_columns(sheet):
        return "anvio-matrix"
    if sheet.first(GENOME_NAMES) is not None and sheet.first(FAMILY_NAMES) not in (None, sheet.first(GENOME_NAMES)):
        return "long"
    if _is_mapper(sheet):
        return "ko-mapper"
    if len(sheet.columns) > 1 or sheet.shifted:
        cells = [cell for fields in sheet.rows[:8] for cell in fields[1:]]
        named = next((cell for cell in cells if kind_of_identifier(cell) not in ("other", "EC")), None)
        if named is None and 2 * sum(map(_is_count, cells)) >= len(cells):
            return "genomes-by-families"
    raise sheet.file.error(
        None,
        f"is of no known format: its columns are {listed(sheet.columns, 3)}. What can be read: {', '.join(FORMATS)}. "
        "Give the format, counts in place of names of genes, or columns genome and family",
    )


def is_kofam(sheet: Sheet) -> bool:
    """It begins like KofamScan's detail."""
    return sheet.marked and KOFAM.match("\t".join(["#", *sheet.columns])) is not None


def columns_of_hits(sheet: Sheet) -> tuple[int, int, int, int] | None:
    """Of a table of hits, by its header among the first lines, each with a # before it: see `HITS`."""
    head = [] if isinstance(sheet.file, TableFile) else [line for _, line in islice(sheet.file.lines(), 32)]
    return next((at for header, at in HITS.items() if any(map(header.match, head))), None)


def is_beheaded_eggnog(sheet: Sheet) -> bool:
    """eggNOG-mapper's annotations without their header."""
    return len(sheet.columns) == len(EGGNOG) and bool(ROOT.search(sheet.columns[EGGNOG.index("eggNOG_OGs")]))


def _is_count(cell: str) -> bool:
    return cell.lower() in (*MISSING, *PRESENCE) or bool(NUMBER.fullmatch(cell) or COMMAS.fullmatch(cell))


def text_columns(sheet: Sheet) -> list[int]:
    """Columns of words, the first one not counted. Numbers in another writing, such as 50%, are none."""

    def words(at: int) -> int:
        return sum(at < len(f) and not _is_count(f[at]) and not f[at][:1].isdigit() for f in sheet.rows)

    return [at for at in range(1, len(sheet.columns)) if 2 * words(at) > len(sheet.rows)]


def is_list_of_kos(sheet: Sheet) -> bool:
    """A KO alone on each line."""
    lines = [sheet.columns, *sheet.rows]
    return all(len(fields) == 1 and kind_of_identifier(fields[0]) == "KO" for fields in lines)


def _is_mapper(sheet: Sheet) -> bool:
    """Lines of a gene and at most one KO or more, no header; the first KO may come late. Or of KOs alone."""
    some = False
    if is_list_of_kos(sheet):
        return True
    if sheet.keys[0] in (*GENOME_NAMES, *NO_GENES) or isinstance(sheet.file, TableFile):
        return False
    header = len(sheet.columns) > 1 and sheet.keys[1] in FORMATS["ko-mapper"].families["KO"]
    for fields in [*([] if header else [sheet.columns]), *sheet.rows]:
        names = several(fields[1]) if len(fields) > 1 else []
        if any(kind_of_identifier(name) != "KO" for name in names):
            return False
        some = some or bool(names)
    if some:
        return True
    for _, line in sheet.file.lines():
        gene, *kos = line.split(sheet.separator)
        if names := several(kos[0]) if kos else []:
            return bool(gene.strip()) and all(kind_of_identifier(name) == "KO" for name in names)
    return False


def orientation(sheet: Sheet, known: Collection[str]) -> tuple[str, str | None]:
    """Which way round a wide table is, and a warning if that is a guess.

    Raises:
        ValueError: Both ways are equally right.
    """
    across = sheet.titles[1:]
    down = [fields[0] for fields in sheet.rows]
    by_genomes, by_families = "genomes-by-families", "families-by-genomes"

    def shares(what: str, belongs: Callable[[str], bool]) -> tuple[float, float]:
        here, there = (sum(map(belongs, names)) / max(len(names), 1) for names in (across, down))
        if min(here, there) > 0.5:
            raise sheet.file.error(
                None, f"has families ({what}) in its header and in its first column: one of them must be genomes"
            )
        return here, there

    of_model = shares("known to the model", lambda name: name in known or normalise(name) in known)
    named = shares("by their identifiers", lambda name: kind_of_identifier(name) not in ("other", "CAZy"))
    cazy = [sum(kind_of_identifier(name) == "CAZy" for name in names) for names in (across, down)]
    first = "" if sheet.shifted else sheet.keys[0]
    if of_model[0] != of_model[1]:
        return (by_genomes if of_model[0] > of_model[1] else by_families), None
    if max(named) <= 0.5 and first in (*FAMILY_NAMES, *GENOME_NAMES):
        return (by_families if first in FAMILY_NAMES else by_genomes), None
    genomes = [sum(map(bool, map(ACCESSION.search, names))) for names in (down, across)]  # are on the other side
    for here, there in (named, genomes, cazy):  # the latter last, since strains may have such names too (CE10)
        if here != there:
            return (by_genomes if here > there else by_families), None
    return by_genomes, (
        f"{sheet.file.path}: nothing tells whether rows are genomes or families; rows were taken for genomes: "
        'if they are families, say format="families-by-genomes"'
    )


def twice(file: TextFile, row: int, name: str, first: TextFile, at: int) -> ValueError:
    before = f"in {first.path}" if first.path != file.path else f"first at {first.where(at)}"
    return file.error(
        row if row >= 0 else None, f"genome {name!r} is there twice ({before}): each must have its own name"
    )


# ---------------------------------------------------------------------- identifiers of families


def kind_of_identifier(family: str) -> str:
    """Whose identifier this is: "COG", "arCOG", "KO", "Pfam", "EC", "TIGRFAM", "CAZy" and the like, or "other".

    Example:
        >>> [kind_of_identifier(f) for f in ("COG0001", "ko:K00001", "PF00001.21", "group_17")]
        ['COG', 'KO', 'Pfam', 'other']
    """
    match = IDENTIFIER.fullmatch(family)
    return match.lastgroup or "other" if match else "other"


def unlike(family: str, known: str) -> str:
    """For messages, where a model knows none of the families."""
    kinds = kind_of_identifier(family), kind_of_identifier(known)
    return f"they are such as {family!r} ({kinds[0]}), the model's such as {known!r} ({kinds[1]})"


@lru_cache(1 << 18)
def normalise(family: str) -> str:
    """An identifier as we keep it: without spaces around it, version or database prefix.

    Example:
        >>> [normalise(f) for f in ("ko:K00001", " PF00001.21", "2.7.1.1", "group.1")]
        ['K00001', 'PF00001', 'EC:2.7.1.1', 'group.1']
    """
    family = family.strip()
    kind = kind_of_identifier(family)
    if kind == "KO":
        return family[-6:]
    if kind in ("Pfam", "TIGRFAM", "NCBIfam"):
        return family.partition(".")[0]
    if kind == "EC":
        return "EC:" + family.removeprefix("EC").lstrip(": ")
    return family


def several(field: str) -> list[str]:
    """The identifiers in one field, as tools join them.

    Example:
        >>> several("K05845/K05846"), several(" COG0187!!!COG0188, COG0187 "), several("-")
        (['K05845', 'K05846'], ['COG0187', 'COG0188'], [])
    """
    return [name for name in dict.fromkeys(BETWEEN.split(field)) if name.lower() not in (*MISSING, "-")]


def summary_of_kinds(kinds: Counter[str]) -> str:
    """One word for the kinds of many families: the main one, or "mixed"."""
    if not kinds:
        return "other"
    return "mixed" if len(mixture(kinds)) > 1 else kinds.most_common(1)[0][0]


def mixture(kinds: Counter[str]) -> list[str]:
    """The naming schemes of which at least one family in a hundred is; names of no scheme do not count as one."""
    groups: Counter[str] = Counter()
    for kind, count in kinds.items():
        groups["COG" if kind in COGS else kind] += count
    del groups["other"]
    return [kind for kind, count in groups.most_common() if count * 100 >= kinds.total()]


def distinct(names: Sequence[str], known: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Families of different columns (or rows), each of another name. Names that are `known` stay as they stand.

    Names of one family that differ in their version only are often columns that were renamed since they had the same
    name (PF00001 and PF00001.1): the second is kept apart, as it stands.

    Returns:
        The families, and those that were kept apart.

    Raises:
        ValueError: A name is there twice or is empty.
    """
    taken: dict[str, str] = {}
    spelled = set()
    for name in names:
        if not name:
            raise ValueError("has a family without a name")
        if name in spelled:
            header = ": is there a header?" if name.isdigit() else ""
            raise ValueError(f"family {name!r} is there twice{header}")
        spelled.add(name)
    apart = []
    families = []
    for name in names:
        family = name if name in known else normalise(name)
        if family != name and (family in spelled or family in taken):
            family = name
            apart.append(name)
        taken[family] = name
        families.append(family)
    return families, apart


def odd_names(what: str, names: Collection[str]) -> Iterator[str]:
    """A sentence for each kind of such names.

    Example:
        >>> list(odd_names("genomes", ["A", "Total"]))
        ["genomes such as 'Total' seem to be sums: leave them out of the table if they are"]
    """
    spelled: dict[str, str] = {}
    alike = []
    for name in sorted(names):
        other = spelled.setdefault(" ".join(name.casefold().split()), name)
        if other != name:
            alike.append((other, name))
    if alike:
        first, second = alike[0]
        yield (
            f"{len(alike)} {what} such as {second!r} differ from another one ({first!r}) in case or spaces only, and "
            "were kept apart: give them one name if they are the same"
        )
    if sums := [name for name in sorted(names) if SUMS.fullmatch(name)]:
        yield f"{what} such as {sums[0]!r} seem to be sums: leave them out of the table if they are"
    if changed := [name for name in sorted(names) if SPREADSHEET.fullmatch(name)]:
        yield f"{len(changed)} {what} such as {changed[0]!r} seem to be what a spreadsheet made of names: restore them"
