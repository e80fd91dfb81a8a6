"""Definitions in KEGG's notation, and the probability of a module against all states of its families."""

import itertools

import numpy as np
import pandas as pd
import pytest
from genome_oracle import completion
from sklearn.linear_model import LogisticRegression

from omniset.genomes.calibration import Logistic
from omniset.genomes.kegg_modules import Module, Modules, Node, parse, read_modules


def holds(node, there):
    """Whether a definition is fulfilled by a set of families."""
    if node.kind == "family":
        return node.name in there
    return (all if node.kind == "and" else any)(holds(part, there) for part in node.parts)


@pytest.mark.parametrize(
    ("text", "enough", "too_little"),
    [
        ("K00001", ["K00001"], [""]),
        ("K00001 K00002", ["K00001 K00002"], ["K00001", "K00002"]),
        ("K00001,K00002", ["K00001", "K00002"], [""]),
        ("(K00001,K00002) K00003", ["K00001 K00003", "K00002 K00003"], ["K00001 K00002", "K00003"]),
        # A space binds more than a comma, but outside of parentheses.
        ("K01476,K27545 K01581", ["K01476 K01581", "K27545 K01581"], ["K01476", "K01476 K27545"]),
        ("K1,K2 K3,K4 K5", ["K1 K4 K5", "K2 K3 K5"], ["K1 K2 K5", "K3 K4 K5", "K1 K5"]),
        ("(K00001 K00002,K00003) K00004", ["K00003 K00004", "K00001 K00002 K00004"], ["K00001 K00004"]),
        ("K00001+K00002,K00003", ["K00003", "K00001 K00002"], ["K00001", "K00002"]),
        ("K00001+K00002-K00003", ["K00001 K00002"], ["K00001 K00003"]),
        ("K00001-(K00002,K00003) K00004", ["K00001 K00004"], ["K00001 K00002"]),
        ("K00001 -K00002 K00003", ["K00001 K00003"], ["K00001 K00002"]),
        ("K00001 -- K00002", ["K00001 K00002"], ["K00001"]),
        ("((K00001,K00002+(K00003,K00004)) K00005)", ["K00001 K00005", "K00002 K00004 K00005"], ["K00002 K00005"]),
        (" K00001  ( K00002 , K00003 ) ", ["K00001 K00002", "K00001 K00003"], ["K00001"]),
    ],
)
def test_definitions_mean_what_kegg_says(text, enough, too_little):
    node = Node("and", parts=parse(text))
    assert all(holds(node, families.split()) for families in enough)
    assert not any(holds(node, families.split()) for families in too_little)


def test_steps_have_their_texts():
    steps = parse("(K00001,K00002) K00003+K00004-K00005 -- K00006")
    assert [step.text for step in steps] == ["(K00001,K00002)", "K00003+K00004-K00005", "K00006"]
    assert [step.text for step in parse("K00001 K00002,K00003")] == ["K00001", "K00002,K00003"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("K00001,,K00002", "has ',' at character 8, where it cannot be"),
        ("(K00001", "ends too early"),
        ("K00001)", r"has '\)' at character 7, where it cannot be"),
        ("K00001;K00002", "has ';' at character 7"),
        ("", "ends too early"),
        ("(" * 60 + "K00001" + ")" * 60, "more than 50 parentheses"),
    ],
)
def test_what_is_not_in_the_notation(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def module_of(text):
    return Module("M1", "", parse(text))


@pytest.mark.parametrize("text", ["(K1,K2) K3+K4-K5", "(K1 K2,K3) (K2,K4) K1", "(K1,K2+K3) (K3,K1 K2) (K1,K4)", "K5"])
def test_probability_is_the_sum_over_all_states(text):
    rng = np.random.default_rng(0)
    module, families = module_of(text), [f"K{i}" for i in range(1, 6)]
    p = rng.random((5, 7))
    whole, steps = module.complete(lambda name: p[families.index(name)])
    expected, each = np.zeros(7), np.zeros((len(module.steps), 7))
    for state in itertools.product((0, 1), repeat=5):
        there = {family for family, s in zip(families, state, strict=True) if s}
        weight = np.prod([row if s else 1 - row for row, s in zip(p, state, strict=True)], axis=0)
        met = [holds(step, there) for step in module.steps]
        expected += weight * all(met)
        each += weight * np.array(met)[:, None]
    assert np.allclose(whole, expected, atol=1e-12)
    assert np.allclose(steps, each, atol=1e-12)


KEGG = """ENTRY       M00001            Pathway   Module
NAME        One way
DEFINITION  (K00001,K00002)
            K00003
///
ENTRY       M00002            Complex   Module
DEFINITION  M00001 K00004
///
"""


def test_files(tmp_path):
    (tmp_path / "kegg.txt").write_text(KEGG.replace("///\n", "", 1))  # joined by hand
    (tmp_path / "table.tsv").write_text("module\tname\tdefinition\nmd:M00001\tOne way\t(K00001,K00002) K00003\n")
    (tmp_path / "pathways.csv").write_text("pathway,family\nP1,ko:K00001\nP1,K00002\nP2,K00003\nP1,K00002\n")
    one, two = read_modules(tmp_path / "kegg.txt")
    assert (one.name, one.title) == ("M00001", "One way")
    assert [step.text for step in one.steps] == ["(K00001,K00002)", "K00003"]
    assert set(two.families()) == {"K00001", "K00002", "K00003", "K00004"}
    assert read_modules(tmp_path / "table.tsv") == [one]
    assert [set(m.families()) for m in read_modules(tmp_path / "pathways.csv")] == [{"K00001", "K00002"}, {"K00003"}]


def nested(definition, number):
    """Modules of which each is defined by the next one."""
    rows = [f"M{i}\t{definition.format(i, i + 1)}\n" for i in range(number)]
    return "module\tdefinition\n" + "".join(rows) + f"M{number}\tK1\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module\tdefinition\nM1\tK1,,K2\n", "line 2: module 'M1': definition 'K1,,K2' has ','"),
        ("module\tdefinition\nM1\tM2\nM2\tM1\n", "module 'M1' needs itself"),
        ("module\tdefinition\nM1\tK1\nM1\tK2\n", "module 'M1' is there twice"),
        ("module\tdefinition\nM1\t--\n", "module 'M1' needs no family"),
        ("a\tb\n1\t2\n", "must have the columns module and definition, or pathway and family"),
        ("module\tdefinition\n", "has no modules"),
        ("ENTRY  M1\nDEFINITION  K1\nDEFINITION  K2\n", "line 3: DEFINITION is there twice in an entry: indent"),
        ("ENTRY  M1\nNAME  x\n///\n", "an entry has no DEFINITION"),
        (nested("M{1} M{1}", 26), "line 14: module 'M12' needs 16,384 families, .*: at most 10,000 are taken"),
        ("module\tdefinition\nM1\t" + "K1 " * 150_000 + "\n", "line 2: module 'M1' needs 150,000 families"),
        ("module\tdefinition\nM1\t" + "K1," * 199_999 + "K1\n", "line 2: module 'M1' needs 200,000 families"),
        ("pathway,family\n" + "".join(f"P,K{i}\n" for i in range(10_001)), "line 2: module 'P' needs 10,001 families"),
        (
            nested("(M{1},K2) K3", 40),
            "line 17: module 'M15' has more than 50 parentheses and modules within each other",
        ),
        (nested("M{1}", 60), "line 53: module 'M51' is in more than 50 modules within each other"),
    ],
)
def test_files_that_cannot_be(tmp_path, text, message):
    (tmp_path / "m.tsv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_modules(tmp_path / "m.tsv")


def test_table():
    """By what was observed and called, and by probability; families outside the vocabulary count as observed."""
    modules = Modules([module_of("K1 (K2,K3) K9"), module_of("K3")], ["K1", "K2", "K3"])
    group = [
        completion("a", [1, 0, 0], [1, 1, 0], [0.9, 0.5, 0.2], unknown={"K9": 1}),
        completion("b", [0, 1, 1], [0, 1, 1], [0.4, 0.99, 0.9]),
    ]
    rows = modules.table(group)
    assert rows["genome"].tolist() == ["a", "a", "b", "b"]
    assert rows["probability"].tolist() == pytest.approx([0.9 * 0.6, 0.2, 0.0, 0.9])
    assert rows["observed"].tolist() == [0, 0, 0, 1]
    assert rows["called"].tolist() == [1, 0, 0, 1]
    assert rows["steps_observed"].tolist() == [2, 0, 1, 1]
    assert rows["steps_called"].tolist() == [3, 0, 1, 1]
    assert rows["doubtful_step"].tolist() == ["(K2,K3)", "K3", "K9", "K3"]
    assert rows["doubtful_probability"].tolist() == pytest.approx([0.6, 0.2, 0.0, 0.9])
    assert modules.sums["expected"].tolist() == pytest.approx([0.54, 1.1])
    assert rows["families"].tolist() == [4, 1, 4, 1]
    assert rows["families_known"].tolist() == [3, 1, 3, 1]
    assert modules.notes() == [
        "modules: 1 of their 4 families, such as 'K9', are not in the model's vocabulary: they are absent where they "
        "were not observed"
    ]
    together = modules.table(group[::-1]).sort_values(["genome", "module"], kind="stable", ignore_index=True)
    pd.testing.assert_frame_equal(together, rows)


def test_probabilities_are_those_of_families_that_come_together():
    """Genomes have both families of a module or none, so that a product of probabilities is too low: where it says
    0.35 it is 0.6. Calibrated on some genomes, it is right on others; of a regression of scikit-learn the same.
    """
    rng = np.random.default_rng(0)
    there, families = rng.random((4, 1200)) < 0.6, [f"K{i}" for i in range(1, 9)]
    truth = np.repeat(there, 2, axis=0).T.astype(float)
    p = 1 / (1 + np.exp(-(np.log(1.5) + rng.normal(size=truth.shape) * 0.2)))
    kinds = np.stack([p, truth])
    pairs = [module_of(f"K{i} K{i + 1}") for i in (1, 3, 5, 7)]
    plain, mapped = Modules(pairs, families), Modules(pairs, families, kinds[:, :600])

    def said(modules):
        return np.concatenate([whole[:, 600:] for whole, _ in modules.complete(kinds)], axis=1)

    product, was = said(plain)
    assert abs(product.mean() - 0.36) < 0.01
    assert abs(was.mean() - 0.6) < 0.03
    assert abs(said(mapped)[0].mean() - was.mean()) < 0.03
    x, y = (np.concatenate([whole[row, :600] for whole, _ in plain.complete(kinds)]) for row in (0, 1))
    oracle = LogisticRegression(C=np.inf).fit(np.log(x / (1 - x))[:, None], y)
    right = oracle.predict_proba(np.log(product / (1 - product))[:, None])[:, 1]
    assert np.abs(mapped.map(product) - right).mean() < 0.03
    assert mapped.map(np.array([0.0, 1.0])).tolist() == [0, 1]
    assert Modules(pairs, families, kinds[:, :0]).map == Logistic()  # of no genomes
    row = mapped.table([completion("a", [0] * 8, [0] * 8, p[0])]).iloc[0]
    assert row["doubtful_probability"] >= row["probability"] > p[0, 0] * p[0, 1]


def test_modules_of_other_identifiers_are_refused():
    module = module_of("K00001 K00002")
    with pytest.raises(ValueError, match=r"none of their families .* such as 'K00001' \(KO\), the model's .*\(Pfam\)"):
        Modules([module], ["PF00001", "PF00002"])
    assert len(Modules([module], ["PF00001", "K00002"]).notes()) == 1


def test_nothing_is_said_of_a_module_whose_parts_are_not_given():
    whole, part = module_of("K1 K2"), Module("M2", "", parse("M00003 K1"))
    modules = Modules([part, whole], ["K1", "K2"])
    assert modules.notes() == [
        "modules: 1 of 2 need modules that the file does not have, such as 'M2', which needs 'M00003': nothing is said "
        "of them; add these to the file"
    ]
    assert modules.table([completion("a", [1, 1], [1, 1], [0.9, 0.5])])["module"].tolist() == ["M1"]
    with pytest.raises(ValueError, match="1 of 1 need modules"):
        Modules([part], ["K1"])
