"""Taxa: read as databases and tools write them, cut at a rank, and numbered with their clades at every rank above."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from omniset.tables.counts import FEATURE, RANK_COLUMNS, TAXON
from omniset.tables.dna import Record, name_of, read_fasta
from omniset.tables.files import TextFile, short
from omniset.tables.sheets import NUMBER, key, look, split_loosely

RANKS = ("domain", "phylum", "class", "order", "family", "genus", "species")
WITH_KINGDOM = (RANKS[0], "kingdom", *RANKS[1:])
PR2_4 = ("kingdom", "supergroup", "division", *RANKS[2:])
PR2_5 = ("domain", "supergroup", "division", "subdivision", *RANKS[2:])
KNOWN_RANKS = tuple(dict.fromkeys((*PR2_5, *WITH_KINGDOM)))
# The second names of PR2's lineages of eukaryotes: of version 4 alone, of version 5 alone, of both.
OLD = {"Alveolata", "Apusozoa", "Hacrobia", "Opisthokonta", "Protalveolata", "Rhizaria", "Stramenopiles"}
NEW = {"Cryptista", "Haptista", "Obazoa", "Provora", "TSAR"}
EVER = {"Amoebozoa", "Archaeplastida", "CRuMs", "Eukaryota_X", "Excavata"}

PREFIX = re.compile(r"^(?:(sk|sh|[dkpcofgst])__|D_(\d+)__)")
LETTERS = {"sk": "domain", "k": "kingdom", **{rank[0]: rank for rank in RANKS}, "t": "strain", "sh": "strain"}
LETTER_OF = {rank: letter for letter, rank in LETTERS.items()} | {"superkingdom": "d"}
SINTAX = re.compile(r"(?:tax=)?[dkpcofgs]:")
PARTED = re.compile(rf"[;|]|__|{SINTAX.pattern}")  # what lineages have, and single names do not
RANK_WORD = re.compile(rf"rootrank|no ?rank|(?:super|sub|infra)?(?:kingdom|tribe|{'|'.join(RANKS)})", re.IGNORECASE)
WORD_BEFORE = re.compile(rf"({RANK_WORD.pattern})__(.*)", re.IGNORECASE)  # domain__Bacteria
IN_HEADER = re.compile(
    r"[;\s](tax=(?:[^;]*;(?=[dkpcofgs]:))*[^;]*)|\bLineage=(.*)"
    r"|[|;\s]((?:sk|[dk]|D_0|domain|rootrank)__.*?)(?: \[\w+=.*)?$"
    r"|\|((?:Eukaryota|Bacteria|Archaea)(?::\w+)?\|.*)"
)
ALONE = re.compile(r"[^;=|\t]+;[^=|\t]*")  # a header that is a lineage
ACCESSION = re.compile(r"\S+\.\d+\.\d+")
SILVA = re.compile(rf"{ACCESSION.pattern}\s+(Archaea|Bacteria|Eukaryota);(.*)")
CONFIDENCE = re.compile(r"\(\d+(\.\d+)?\)$")
ORGANELLE = re.compile(r":[a-z]+$")  # PR2's Eukaryota:plas
ROOTS = ("root", "cellular organisms")
UNASSIGNED = "Unassigned"
# What databases write where they have no name. "uncultured Ruminococcus" is a name, and so are RDP's
# "Lachnospiracea_incertae_sedis" and the like, which are genera there.
NOTHING = re.compile(
    r"""\W*|na|n/a|nan|none|null|other|unassigned|undefined|ambiguous\ taxa|no\ (blast\ )?hit
    |(unclassified|unidentified|undetermined|unknown)(\ .*)?|.*\ (unclassified|unidentified)
    |(.*\ (phy|cls|ord|fam|gen)\ )?incertae\ sedis
    |uncultured|uncultivated|environmental(\ (samples?|clones?|sequences?))?|(.*\ )?metagenome
    |(.*\ )?(bacterium|archaeon|prokaryote|eukaryote|organism|microorganism|fungus|sp\.?)""",
    re.VERBOSE | re.IGNORECASE,
)
EPITHET = re.compile(r"[a-z-]{3,}(/[a-z-]+)*")  # the second word of a species' name
FAMILY = re.compile("aceae$", re.IGNORECASE)  # what the codes of nomenclature have families of all but animals end in
ORDER = re.compile("ales$")
DOMAINS = ("Bacteria", "Archaea", "Eukaryota", "Fungi")
Lineage = tuple[str, ...]  # a name for each rank from the first on, as the file spells it
Lineages = Mapping[str, Lineage | str] | str | Path  # taxa by name, as tuples or as text, or a table of them
Names = list[str] | dict[str, str]  # of a taxon: in the order of the ranks, or by the letters of LETTERS


class Taxonomy(dict[str, Lineage]):
    """Lineages by the names of what they are of.

    Attributes:
        ranks: Their names, from the first on.
        notes: What was decided in reading, a sentence each.
    """

    def __init__(self, ranks: Sequence[str] = RANKS) -> None:
        super().__init__()
        self.ranks = tuple(ranks)
        self.notes: list[str] = []


def read_taxonomy(path: str | Path, ranks: Sequence[str] | None = None) -> Taxonomy:
    """The lineage of each feature, from a tab-separated table of names and taxa such as QIIME 2's, or from the headers
    of a FASTA file.

    A taxon is names with semicolons between, with prefixes of their ranks (d__, k__, D_0__) or without, with RDP's
    words for the ranks before or behind the names, with mothur's confidences in brackets, or as SINTAX has it
    (d:Bacteria,p:Bacillota). Ranks without a name at the end are left away, and so are words that are none, such as
    uncultured, metagenome or Incertae Sedis; one between others keeps its place.

    Args:
        ranks: Their names, from the first on. None: domain, phylum, class, order, family, genus, species; with a
            kingdom below the domain where taxa have both; or PR2's eight or nine, recognised by its supergroups.

    Raises:
        OSError: The file is not there or may not be read.
        ValueError: A line without a taxon, a name that comes twice, ranks out of order, more names than ranks, names of
            families at another rank, a damaged file.
    """
    file = TextFile(path)
    texts: dict[str, str] = {}
    row_of: dict[str, int] = {}
    for row, name, text in _lines(file):
        if name in texts:
            raise file.error(row, f"has {name!r} a second time")
        texts[name], row_of[name] = text, row
    if not any(text and (PARTED.search(text) or text in DOMAINS or _says_nothing(text)) for text in texts.values()):
        such = f", but such as {short(next(iter(texts.values())))}" if any(texts.values()) else ""
        raise file.error(None, f"has no taxa{such}: it needs lines of a name and a taxon with a tab between")
    silva = {name: text.split(";") for name, text in texts.items() if text[-1:] != ";" and ACCESSION.fullmatch(name)}
    if 2 * sum(_is_species(names) or _says_nothing(names[-1]) for names in silva.values()) > len(texts):
        texts |= {name: ";".join(_without_organism(names)) for name, names in silva.items()}
    return _taxonomy(texts, ranks, lambda name, message: file.error(row_of[name], message))


def read_references(
    path: str | Path, ranks: Sequence[str] | None = None, progress: bool = False
) -> tuple[dict[str, str], Taxonomy]:
    """Sequences by name, and their lineages, from the headers of one FASTA file as databases publish it:

        >seq1;tax=d:Bacteria,p:Bacillota;    SINTAX, PR2's UTAX
        >seq1 Bacteria;Bacillota;Bacilli     SILVA, GTDB, Greengenes, RDP (Lineage=..., domain__Bacteria; ...)
        >a|seq1|k__Fungi;p__Ascomycota       UNITE
        >seq1|18S_rRNA|Eukaryota|TSAR        PR2
        >Bacteria;Bacillota;Bacilli;         DADA2; sequences are called by their number

    Raises:
        OSError, ValueError: As `read_taxonomy` and `read_fasta`.
    """
    file = TextFile(path)
    taxa: dict[str, str] = {}
    row_of: dict[str, int] = {}

    def called(record: Record) -> str:
        name, taxon = _of_header(file, record.row, record.header)
        name = name or str(len(taxa) + 1)
        taxa[name], row_of[name] = taxon, record.row
        return name

    texts = read_fasta(path, progress, called)
    return texts, _taxonomy(taxa, ranks, lambda name, message: file.error(row_of[name], message))


def _lines(file: TextFile) -> Iterator[tuple[int, str, str]]:
    """Row, name and taxon of each line, or of each header of FASTA."""
    if next((line for _, line in file.lines() if line.strip()), "").startswith(">"):
        for row, line in file.lines():
            if line.startswith(">"):
                name, taxon = _of_header(file, row, line[1:])
                if not name:
                    raise file.error(row, "has a taxon and no name: give the file as references, without a taxonomy")
                yield row, name, taxon
        return
    sheet = look(file.path, comments=False, spaces=True)
    titles = [key(title) for title in sheet.titles]
    ranked = NUMBER.fullmatch("".join(sheet.titles[4:5])) and all(map(RANK_WORD.fullmatch, sheet.titles[3::3]))  # RDP's
    taxa = [at for at, title in enumerate(titles) if title in TAXON][:1]
    at = taxa or [at for at, title in enumerate(titles) if title in RANK_COLUMNS]
    headed = not ranked and (titles[0] in FEATURE or len(taxa or at[1:]) > 0)
    named = [place for place, title in enumerate(titles) if title in FEATURE and place not in at]
    if (headed and not at) or (not headed and sheet.separator != "\t"):
        has = f"must name a column Feature ID and one Taxon, has {', '.join(sheet.titles)}"
        raise file.error(sheet.header, has)
    name_at, at = (named[0] if named else 0, at) if headed else (0, [1])
    for row, line in file.lines():
        if row < sheet.header + headed or not line.strip() or line.startswith("#q2:types"):
            continue
        cells = split_loosely(line, "\t") if sheet.separator == "\t" else sheet.split(row, line)
        cells = [cell.strip().strip('"') for cell in cells]
        few = len(cells) <= max(name_at, *at) or not cells[name_at]
        if few or (sheet.separator != "\t" and len(cells) > len(titles)):
            raise file.error(row, f"must have a name and a taxon with a tab between, is {short(line[:60])}")
        if ranked:
            cells[1] = ";".join(cell for place, cell in enumerate(cells[2:]) if place % 3 < 2)
        # vsearch and usearch write all names with their confidences, the strand, and the names that are confident.
        called = len(cells) > 3 and cells[2] in "+-" and SINTAX.match(cells[at[0]]) is not None
        taxon = cells[at[0]] if taxa or not headed else _of_columns({titles[place]: cells[place] for place in at})
        yield row, cells[name_at], cells[3] if called else taxon


def _of_columns(names: dict[str, str]) -> str:
    """A taxon of its names by rank. A kingdom is the first rank where there is no other."""
    first = next(rank for rank in ("superkingdom", "domain", "kingdom", *names) if rank in names)
    ours = {"domain" if rank == first else rank: name for rank, name in names.items()}
    genus, species = (ours.get(rank, "") for rank in RANKS[-2:])
    if EPITHET.fullmatch(species) and genus[:1].isupper() and not any(map(_says_nothing, (genus, species))):
        ours["species"] = f"{genus} {species}"  # as DADA2's addSpecies has them
    return ";".join(ours.get(rank, "") for rank in RANKS) if ours.keys() <= {*RANKS} else ";".join(names.values())


def _of_header(file: TextFile, row: int, header: str) -> tuple[str, str]:
    """Name and taxon; the name is empty where the header is the taxon."""
    match = IN_HEADER.search(header)
    if match is None and ALONE.fullmatch(header.split(None, 1)[0]):
        return "", header
    name, taxon, *_ = [*header.split(None, 1), "", ""]
    if match:
        taxon = match[1] or match[2] or match[3] or (match[4] or "").replace("|", ";")
    elif of_silva := SILVA.fullmatch(header):
        # Lineages of eukaryotes have other ranks.
        names = _without_organism(f"{of_silva[1]};{of_silva[2]}".rstrip(";").split(";"))
        taxon = "" if of_silva[1] == "Eukaryota" else ";".join(names) + ";"
    if not name or not (match or ";" in taxon or (not taxon and of_silva)):
        raise file.error(
            row,
            "must have a name and a taxon, as in '>seq1;tax=d:Bacteria,p:Bacillota;' or '>seq1 Bacteria;Bacillota', is "
            f"{short(header[:60])}; or give a table of taxa as taxonomy",
        )
    return name_of(name), taxon


def lineage_of(text: str, ranks: Sequence[str] | None = None) -> Lineage:
    """A taxon in its parts.

    Raises:
        ValueError: Prefixes of ranks that are not one below the other, or more names than ranks.

    >>> lineage_of("k__Bacteria; p__; c__Bacilli; o__")
    ('k__Bacteria', 'p__', 'c__Bacilli')
    >>> lineage_of("tax=d:Bacteria,p:Bacillota(0.98),g:Bacillus(0.4);")
    ('d__Bacteria', 'p__Bacillota', 'c__', 'o__', 'f__', 'g__Bacillus')
    >>> lineage_of('Root;rootrank;Bacteria;domain;"Firmicutes";phylum')
    ('d__Bacteria', 'p__Firmicutes')
    >>> lineage_of("Unassigned")
    ()
    """
    return _taxonomy({"": text}, ranks, lambda _, message: ValueError(message))[""]


def lineages_of(taxonomy: Mapping[str, Any], ranks: Sequence[str] | None = None) -> Taxonomy:
    """Taxa by name, as text or as the names of their ranks.

    Raises:
        ValueError: As `lineage_of`, with the name; or something that is neither.
    """
    if isinstance(taxonomy, Taxonomy):
        return taxonomy
    return _taxonomy(taxonomy, ranks, lambda name, message: ValueError(f"taxonomy: {name!r}: {message}"))


def _taxonomy(
    taxa: Mapping[str, Any], ranks: Sequence[str] | None, error: Callable[[str, str], ValueError]
) -> Taxonomy:
    parsed: dict[str, Names] = {}
    for name, taxon in taxa.items():
        try:
            parsed[name] = _parsed(taxon)
        except ValueError as wrong:
            raise error(name, str(wrong)) from None
    made = Taxonomy(_ranks_of([*parsed.values()]) if ranks is None else check_ranks(ranks))
    if "family" in made.ranks and made.ranks not in (PR2_4, PR2_5):
        made.notes += _put_right(parsed, made.ranks)
    if ranks is None:
        _check_families(parsed, made.ranks, error)
        if made.ranks != RANKS:
            made.notes.append(f"the taxonomy has {len(made.ranks)} ranks: {', '.join(made.ranks)}")
    for name, names in parsed.items():
        try:
            whole = _placed(names, made.ranks, taxa[name])
        except ValueError as wrong:
            raise error(name, str(wrong)) from None
        made[name] = ended(whole, len(whole))
    return made


def _parsed(taxon: Any) -> Names:
    """The names of a taxon, by rank where it says of which each is."""
    if not isinstance(taxon, str):
        names = taxon if isinstance(taxon, Sequence) else [taxon]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"the taxon {taxon!r} is no text and no tuple of names")
        return [name.strip() for name in names]
    text = taxon.strip().strip(";")
    if SINTAX.match(text):
        parts = re.split("[,;]", text.removeprefix("tax=").strip(",;"))  # SINTAX has commas, some have semicolons
        entries = [entry.strip().partition(":") for entry in parts]
        if [letter for letter, _, _ in entries[:2]] == ["k", "d"]:  # PR2's k is its domain, its d what is below
            entries[:2] = [("d", *entries[0][1:]), ("k", *entries[1][1:])]
        return _by_letter([(letter, _cleaned(name)) for letter, _, name in entries], taxon)
    separator = "|" if ";" not in text and "|" in text and PREFIX.match(text) else ";"
    parts = [_cleaned(part) for part in text.split(separator)]
    named = [match.groups() for part in parts if (match := WORD_BEFORE.fullmatch(part))]
    if len(named) < len(parts):  # words stand behind the names; a last name without its rank goes
        words = parts[1::2]
        named = [*zip(words, parts[::2], strict=False)] if all(map(RANK_WORD.fullmatch, words)) else []
    if named:
        ranks = [(LETTER_OF.get(word.lower()), name) for word, name in named]
        return _by_letter([(letter, name) for letter, name in ranks if letter], taxon)
    return parts[1:] if parts[0].lower() in ROOTS else parts


def _cleaned(name: str) -> str:
    """Without a confidence in brackets and without quotes."""
    return CONFIDENCE.sub("", name.strip()).strip("\"' ")


def _by_letter(entries: list[tuple[str, str]], text: object) -> dict[str, str]:
    names = dict(entries)
    if len(names) < len(entries) or not names.keys() <= LETTERS.keys():
        raise ValueError(f"the taxon {text!r} must have one name for each rank, by letters such as d, p, c, o, f, g, s")
    return names


def _ranks_of(parsed: Sequence[Names]) -> tuple[str, ...]:
    """The ranks that taxa seem to have."""
    letters = [list(names) if isinstance(names, dict) else [_letter(name) for name in names[:2]] for names in parsed]
    if any("k" in some and {"d", "sk"} & {*some} for some in letters):
        return WITH_KINGDOM
    plain = [names for names in parsed if isinstance(names, list) and len(names) > 1 and _letter(names[0]) is None]
    second = {ORGANELLE.sub("", n[1]) for n in plain if ORGANELLE.sub("", n[0]) == "Eukaryota"}
    if second and second <= OLD | NEW | EVER and (longest := max(map(len, plain))) <= len(PR2_5):
        newer = bool(second & NEW) and not second & OLD
        return PR2_5 if newer or longest == len(PR2_5) else PR2_4
    return RANKS


def _put_right(parsed: dict[str, Names], ranks: Sequence[str]) -> list[str]:
    """Put names without prefixes at their ranks where lineages lack one between others, as SILVA's do. And a sentence.

    The endings of families and orders tell; the name of an organism behind its genus; and in what place, and below
    what, a name stands in those lineages that have a family at its rank.
    """
    plain = {n: names for n, names in parsed.items() if isinstance(names, list) and not any(map(PREFIX.match, names))}
    family = ranks.index("family")
    above: dict[str, set[Lineage]] = {}
    for names in plain.values():
        if len(names) > family and FAMILY.search(names[family]):
            for at, name in enumerate(names):
                if not _says_nothing(name):
                    above.setdefault(name, set()).add(tuple(names[:at]))
    moved = []
    for feature, names in plain.items():
        if not names or names[0] not in DOMAINS:
            continue
        new: list[str] = []
        for at, name in enumerate(names):
            elders = above.get(name, set())
            place = _place_of(names, at, ranks, {len(elder) for elder in elders})
            if place is not None and place < at and FAMILY.search(name):
                del new[place:]  # a suborder before it
            gap = 0 if place is None else place - len(new)
            if gap < 0:
                break
            fitting = [elder for elder in elders if len(elder) == place and elder[: len(new)] == tuple(new)]
            new += fitting[0][len(new) :] if len(fitting) == 1 else gap * [""]
            new.append(name)
        else:
            if new != names and len(new) <= len(ranks):
                parsed[feature] = new
                moved.append(feature)
    if not moved:
        return []
    what = f"{len(moved):,} of {len(parsed):,} lineages lack a rank, or have one more, such as that of {moved[0]!r}"
    return [f"{what}: their names are put at the ranks that endings and other lineages tell"]


def _place_of(names: list[str], at: int, ranks: Sequence[str], places: set[int]) -> int | None:
    """Of a name: where it belongs; None: behind the one before."""
    name, family = names[at], ranks.index("family")
    if FAMILY.search(name) and (at <= family or not FAMILY.search(names[family])):
        return family
    if ORDER.search(name) and ranks[family - 1] == "order" and at < family:
        return family - 1
    if ranks[-2:] == ("genus", "species") and _is_species(names) and at >= len(names) - 2:
        return len(ranks) + at - len(names)
    return next(iter(places)) if len(places) == 1 and at <= min(places) else None


def _without_organism(names: list[str]) -> list[str]:
    """SILVA's lineages end in an organism, wherever they end: a species behind its genus, or in the seventh place."""
    return names if len(names) == len(RANKS) or _is_species(names) else names[:-1]


def _is_species(names: Sequence[str]) -> bool:
    """Whether the last name is that of an organism of the genus before."""
    return len(names) > 1 and bool(names[-2]) and names[-1].startswith(f"{names[-2]} ")


def _check_families(parsed: Mapping[str, Names], ranks: Sequence[str], error: Callable[[str, str], ValueError]) -> None:
    """Raise the error of names without prefixes that would be taken for those of another rank."""
    places: dict[int, tuple[str, str]] = {}
    times: Counter[int] = Counter()
    for feature, names in parsed.items():
        for place, name in enumerate(names if isinstance(names, list) else []):
            if FAMILY.search(name) and PREFIX.match(name) is None:
                places.setdefault(place, (feature, name))
                times[place] += 1
    if times and (place := times.most_common(1)[0][0]) != ranks.index("family"):
        (feature, name), belongs = places[place], (*ranks, "none")[min(place, len(ranks))]
        raise error(
            feature,
            f"has {name!r}, by its ending the name of a family, at rank {place + 1}, {belongs} belongs "
            "there: give ranks, the names of all ranks from the first on",
        )


def _placed(names: Names, ranks: Sequence[str], text: object) -> Lineage:
    """A name for each rank from the first on."""
    if isinstance(names, dict):
        places = [_place(letter, ranks) for letter in names]
        if places != sorted(set(places)) or places[-1] >= len(ranks):
            raise ValueError(f"the taxon {text!r} has ranks that are not one below the other, of {', '.join(ranks)}")
        at = dict(zip(places, names.items(), strict=True))
        empty = [f"{LETTER_OF[rank]}__" if rank in LETTER_OF else "" for rank in ranks]
        return tuple("__".join(at[place]) if place in at else empty[place] for place in range(places[-1] + 1))
    parts = [*names]
    while parts and not parts[-1]:
        parts.pop()
    for place, part in enumerate(parts):
        letter = _letter(part)
        if letter is not None and (int(letter) if letter.isdigit() else _place(letter, ranks)) != place:
            belongs = (*ranks, "none")[min(place, len(ranks))]
            raise ValueError(f"the taxon {text!r} has {part!r} at rank {place + 1}, {belongs} belongs there")
    if len(parts) > len(ranks) and _letter(parts[len(ranks)]) not in ("t", "sh"):
        raise ValueError(
            f"the taxon {text!r} has {len(parts)} names for {len(ranks)} ranks, {', '.join(ranks)}: give ranks, the "
            "names of all from the first on"
        )
    return tuple(parts)


def _letter(part: str) -> str | None:
    """Of a prefix: its letters, or the number of its rank."""
    match = PREFIX.match(part)
    return None if match is None else match[1] or match[2]


def _place(letter: str, ranks: Sequence[str]) -> int:
    rank = LETTERS[letter]
    if rank in ("domain", "kingdom") and rank not in ranks:  # k__Bacteria
        return 0
    return ranks.index(rank) if rank in ranks else len(ranks)


def check_ranks(ranks: Sequence[str]) -> tuple[str, ...]:
    """Names of ranks, if they are some.

    Raises:
        ValueError: Fewer than two, or one that is empty or comes twice.
    """
    if isinstance(ranks, str) or len(ranks) < 2 or len(set(ranks)) < len(ranks) or not all(ranks):
        raise ValueError(f"ranks must be at least 2 different names, from the first rank on, got {ranks!r}")
    return tuple(ranks)


@lru_cache(maxsize=1 << 16)
def _says_nothing(word: str) -> bool:
    return NOTHING.fullmatch(word.replace("_", " ").strip()) is not None


def has_name(lineage: Sequence[str], place: int) -> bool:
    """Whether there is a name at a place, and not a word that stands for none.

    >>> has_name(("d__Bacteria", "p__uncultured"), 1), has_name(("Dinophyceae", "Dinophyceae_X"), 1)
    (False, False)
    """
    word = bare(lineage[place])
    if _says_nothing(word):
        return False
    above, word = (ORGANELLE.sub("", name) for name in (bare(lineage[place - 1]) if place else "", word))
    return not word.endswith("X") or word.rstrip("X") != re.sub("_X+$", "", above) + "_"  # PR2 hands names down


def ended(lineage: Lineage, depth: int) -> Lineage:
    """The lineage down to a rank, or to its last name above.

    >>> ended(("d__A", "p__", "c__C"), 2), ended(("d__A", "p__P"), 2)
    (('d__A',), ('d__A', 'p__P'))
    """
    names = lineage[:depth]
    while names and not has_name(names, len(names) - 1):
        names = names[:-1]
    return names


def bare(name: str) -> str:
    """A name without its prefix.

    >>> bare("g__Bacillus"), bare("Bacillus"), bare("D_5__Bacillus")
    ('Bacillus', 'Bacillus', 'Bacillus')
    """
    return PREFIX.sub("", name)


def joined(lineage: Lineage) -> str:
    """As QIIME 2 reads it."""
    return "; ".join(lineage) or UNASSIGNED


@dataclass
class Taxa:
    """The taxa that a model knows, with their clades."""

    lineages: list[Lineage]  # of each taxon, down to its rank, or less deep if it ends above
    ranks: Sequence[str]  # names of the ranks
    clade: Int[np.ndarray, "ranks taxa"]  # number of the taxon's clade at each rank

    @classmethod
    def of(cls, lineages: Sequence[Lineage], ranks: Sequence[str] = RANKS) -> Taxa:
        """`ranks` has the names of at least as many as the deepest."""
        depth = max(map(len, lineages))
        clade = []
        for rank in range(1, depth + 1):
            number = {prefix: i for i, prefix in enumerate(dict.fromkeys(lineage[:rank] for lineage in lineages))}
            clade.append([number[lineage[:rank]] for lineage in lineages])
        return cls([*lineages], tuple(ranks[:depth]), np.array(clade))

    def __len__(self) -> int:
        return len(self.lineages)


def depth_of(rank: str, ranks: Sequence[str] = RANKS) -> int:
    """How many names a lineage down to this rank has."""
    if rank not in ranks:
        raise ValueError(f"rank must be one of {', '.join(ranks)}, got {rank!r}")
    return ranks.index(rank) + 1


def names_at(lineages: Mapping[str, Lineage], rank: int) -> Iterator[tuple[str, str]]:
    """Feature and bare name at a rank (from 0), of those that have one."""
    for feature, lineage in lineages.items():
        if len(lineage) > rank and has_name(lineage, rank):
            yield feature, bare(lineage[rank])
