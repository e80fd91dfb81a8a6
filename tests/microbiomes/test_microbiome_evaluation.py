"""The comparison with other methods: splits that share nothing, scores as they are defined, rows that are kept."""

import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
from benchmarks.programs import PROGRAMS, RdpClassifier, installed
from conftest import FEW, SMALL
from sklearn.metrics import f1_score, roc_auc_score

from omniset.cli import main
from omniset.microbiomes import TaxonClassifier
from omniset.microbiomes.evaluate import BINS, KNOWN, NEW, UNKNOWN, Answers, Evaluation, communities, evaluate, split
from omniset.microbiomes.taxonomy import Taxa

TAXA = Taxa.of([("d", "f1", "a"), ("d", "f1", "b"), ("d", "f2", "c"), ("e", "f3", "g")])


@pytest.fixture(scope="module")
def parts(references):
    model = TaxonClassifier(**SMALL)
    every, _ = model.prepare(*references)
    return every, split(every, model.taxa_, seed=3)


def test_splits_share_nothing(references, parts):
    found = parts[1]
    known = found.references
    train, test = ({known.texts[known.sequence[i]] for i in pairs} for pairs in (found.train, found.test))
    assert not train & test
    assert not (train | test) & set(found.unknown)
    assert len(found.taxa) == known.taxa == 8
    assert len(found.unknown) == len({*references[0].values()}) - len(known.texts)
    text_of = dict(zip(references[0].values(), references[1].values(), strict=True))
    for pair in (*found.train, *found.test):
        assert text_of[known.texts[known.sequence[pair]]] == found.taxa.lineages[known.taxon[pair]]
    assert {text_of[t] for t in found.unknown}.isdisjoint(found.taxa.lineages)


@pytest.mark.parametrize(
    ("some", "message"),
    [
        (slice(None, None, 12), "no taxon has two distinct sequences, one of which could be tested"),
        (slice(24), "references must be of at least 3 taxa, .*, there are 2"),
    ],
)
def test_too_little_to_hold_out(references, some, message):
    texts, lineages = references
    model = TaxonClassifier(**SMALL)
    few, _ = model.prepare({name: texts[name] for name in [*texts][some]}, lineages)
    with pytest.raises(ValueError, match=message):
        split(few, model.taxa_, seed=3)


def test_samples_are_of_tested_sequences_and_their_taxa(references, parts):
    found = parts[1]
    taxon_of = dict(zip(references[0].values(), references[1].values(), strict=True))
    profiles, tests = communities(found, (64, 128), 3)
    assert profiles.shape == (1000, 8)
    assert len(tests) == 5 * 20
    for sample in tests:
        assert sample.reads.sum() == sample.size
        for row, taxon in zip(sample.rows, sample.taxon, strict=True):
            lineage = taxon_of[found.texts[row]]
            assert lineage not in found.taxa.lineages if taxon < 0 else found.taxa.lineages[taxon] == lineage
        assert np.isclose(sample.reads[sample.taxon < 0].sum(), 0.1 * sample.size * (sample.kind == UNKNOWN), atol=0.5)
    places = {kind: [(t.community, t.replicate) for t in tests if t.kind == kind] for kind in (KNOWN, NEW, UNKNOWN)}
    assert places[UNKNOWN] == [(i, j) for i in range(10) for j in range(2)]
    assert places[KNOWN] == 2 * places[UNKNOWN]
    assert places[NEW] == 2 * [(i, 0) for i in range(10, 30)]


def answers(seed, samples=6):
    rng = np.random.default_rng(seed)
    made = []
    for n in rng.integers(5, 12, samples):
        truth = rng.integers(-1, 4, n)
        called = np.where(rng.random(n) < 0.6, np.maximum(truth, 0), rng.integers(0, 4, n))
        made.append(Answers(called, rng.random(n), truth, 1.0 + rng.multinomial(50 - n, np.full(n, 1 / n))))
    return made


def test_scores_are_those_of_reads():
    """Read by read, all of a seed's samples together; mean over seeds."""
    rows, pooled, by_hand = [], [], []
    for seed in (0, 1):
        reads = []
        for i, sample in enumerate(several := answers(seed)):
            place = {"condition": "known communities, 50 reads", "kind": KNOWN, "reads": 50}
            rows.append({**place, "method": "omniset", "seed": seed, "community": f"{seed}.{i}", "replicate": 0})
            rows[-1] |= sample.sums(TAXA)
            for c, p, t, n in zip(sample.called, sample.confidence, sample.truth, sample.reads, strict=True):
                reads += int(n) * [(c, p, t)]
        called, sure, truth = (np.array(values) for values in zip(*reads, strict=True))
        known = truth >= 0
        alike = [TAXA.lineages[c][:2] == TAXA.lineages[t][:2] for c, t in zip(called[known], truth[known], strict=True)]
        bins = np.minimum((sure * BINS).astype(int), BINS - 1)
        gaps = [np.mean(bins == b) * abs((sure - (called == truth))[bins == b].mean()) for b in np.unique(bins)]
        once = [(c, t) for s in several for c, t in zip(s.called, s.truth, strict=True) if t >= 0]
        by_hand.append(
            [np.mean((called == truth)[known]), np.mean([c == t for c, t in once]), np.mean(alike), sum(gaps)]
        )
        together = Answers.pooled(several).pooled_scores(TAXA)
        macro = f1_score(truth[known], called[known], labels=np.unique(truth[known]), average="macro")
        assert np.isclose(together["class_macro_f1"], macro)
        assert np.isclose(together["rejection_auroc"], roc_auc_score(known, sure))
        pooled.append(
            {"method": "omniset", "seed": seed, "condition": rows[0]["condition"], "seconds": 1.0, **together}
        )
    made = Evaluation(pd.DataFrame(rows), pd.DataFrame(pooled), ["class", "phylum"]).comparison
    names = ("class_accuracy", "class_accuracy_by_sequence", "phylum_accuracy", "calibration_error")
    for name, expected in zip(names, np.mean(by_hand, 0), strict=True):
        interval = made.interval(name, "known communities, 50 reads", "omniset")
        assert np.isclose(interval.value, expected, rtol=1e-12)
        assert (interval.units, interval.how) == (12, "Wilson")


METHODS = ["omniset", "with-profiles", "no-network", "naive-bayes", "naive-bayes-community", "nearest"]


def test_evaluation_resumes(references, tmp_path, monkeypatch):
    monkeypatch.setattr(TaxonClassifier, "FRACTIONS", (0.4, 0.4))
    monkeypatch.setattr("omniset.microbiomes.evaluate.REPLICATES", 10)
    model = TaxonClassifier(**SMALL | FEW)
    every, _ = model.prepare(*references)
    options = {"seeds": 2, "sizes": (64, 256), "folder": tmp_path, "methods": METHODS}
    whole = evaluate(model, every, **options)
    assert len(whole.rows) == 2 * 6 * 5 * 20
    assert len(whole.pooled) == 2 * 6 * 5
    assert whole.smallest == [f"{KNOWN}, 64 reads", f"{NEW}, 64 reads", f"{UNKNOWN}, 8,192 reads"]
    made, told = whole.comparison, f"{KNOWN}, 64 reads, with profiles"
    assert made.table("genus_accuracy", told).index.tolist() == ["omniset", "naive-bayes-community"]
    untold = ["omniset", "no-network", "naive-bayes", "nearest"]
    assert sorted(made.table("genus_accuracy", f"{NEW}, 64 reads").index) == sorted(untold)
    gates = {gate.condition: gate for gate in made.gates}
    misled = f"{NEW}, 64 reads, with profiles of others"
    assert list(gates) == [f"{NEW}, 64 reads", f"{KNOWN}, 64 reads", f"{KNOWN}, 256 reads", told, misled]
    for name in (f"{NEW}, 64 reads", f"{KNOWN}, 64 reads"):
        values = {m: made.interval("genus_accuracy", name, m).value for m in untold}
        best = max(("naive-bayes", "nearest"), key=values.get)
        assert (gates[name].opponent, gates[name].bound) == (best, 0)
        assert np.isclose(gates[name].interval.value, values["omniset"] - values[best])
    large = made.interval("genus_accuracy", f"{KNOWN}, 256 reads", "omniset").value
    assert np.isclose(gates[f"{KNOWN}, 256 reads"].interval.value, large - values["omniset"])
    assert (gates[told].opponent, gates[told].bound) == ("naive-bayes-community", 0.02)
    assert (gates[misled].opponent, gates[misled].bound) == ("omniset, without profiles", -0.005)

    def of(name, method):
        rows = whole.rows[(whole.rows["condition"] == name) & (whole.rows["method"] == method)]
        return np.mean([r["genus_right_reads"].sum() / r["known_reads"].sum() for _, r in rows.groupby("seed")])

    in_known = of(f"{KNOWN}, 64 reads", "with-profiles")
    assert np.isclose(made.interval("genus_accuracy", told, "omniset").value, in_known)
    in_new = [of(f"{NEW}, 64 reads", method) for method in ("with-profiles", "omniset")]
    assert np.isclose(gates[misled].interval.value, in_new[0] - in_new[1])
    assert made.interval("genus_accuracy", f"{NEW}, 64 reads", "nearest").units == 40

    (tmp_path / "rows" / "ours.1.json").unlink()
    fitted = []
    fit = TaxonClassifier.fit_references
    monkeypatch.setattr(
        TaxonClassifier, "fit_references", lambda self, *a, **k: fitted.append(self.seed) or fit(self, *a, **k)
    )
    again = evaluate(model, every, resume=True, **options)
    assert fitted == [1]
    pd.testing.assert_frame_equal(again.rows, whole.rows)
    pd.testing.assert_frame_equal(again.pooled.drop(columns="seconds"), whole.pooled.drop(columns="seconds"))
    with pytest.raises(ValueError, match="is of another evaluation"):
        evaluate(model, every, resume=True, **options | {"sizes": (64,)})


def test_without_ours_there_are_no_gates(references):
    model = TaxonClassifier(**SMALL)
    every, _ = model.prepare(*references)
    made = evaluate(model, every, methods=["nearest"], seeds=1, sizes=(9, 5)).comparison
    assert made.conditions[0] == f"{KNOWN}, 9 reads"
    assert (made.methods, made.gates, made.verdict()) == (["nearest"], [], "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["bayes"]}, "methods must be among omniset, .*, got 'bayes'"),
        ({"methods": []}, "methods must be among"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
        ({"sizes": (64, 64)}, r"sizes must be different numbers of reads >= 1, got \[64, 64\]"),
    ],
)
def test_what_cannot_be_evaluated(parts, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(TaxonClassifier(**SMALL), parts[0], **options)


def vsearch(*words):
    """It names what it has read among the references."""
    given = dict(zip(words[1::2], words[2::2], strict=True))
    known, asked = (re.findall(r">(.*)\n(.*)\n", given[name].read_text()) for name in ("--db", "--sintax"))
    taxon = {text: re.search(r"tax=(.*);", header)[1].replace(",", "(0.75),") + "(0.75)" for header, text in known}
    given["--tabbedout"].write_text("".join(f"{name}\t{taxon.get(text, '')}\t+\t\n" for name, text in asked))


def java(*words):
    """Likewise; the RDP classifier learns a tree first, and has no line for a sequence that is too short."""
    verb, *words = words[words.index(RdpClassifier.entry) + 1 :]
    if verb == "train":
        given = dict(zip(words[::2], words[1::2], strict=True))
        nodes = [line.split("*") for line in given["-t"].read_text().splitlines()]
        ids = {node[0]: node for node in nodes}
        for _, _, parent, depth, rank in nodes[1:]:
            assert int(ids[parent][3]) == int(depth) - 1
            assert (rank == "genus") == (depth == "6")
        taxon = {text: names for names, text in re.findall(r">.*\tRoot;(.*)\n(.*)\n", given["-s"].read_text())}
        assert {name for names in taxon.values() for name in names.split(";")} == {node[1] for node in nodes[1:]}
        (given["-o"] / "all.json").write_text(json.dumps(taxon))
        return
    _, properties, _, out, queries = words
    taxon, rows = json.loads((properties.parent / "all.json").read_text()), []
    for name, text in re.findall(r">(.*)\n(.*)\n", queries.read_text()):
        if text in taxon:
            cells = [cell for part in taxon[text].split(";") for cell in (part, "rank", "0.75")]
            rows.append("\t".join([name, "", "Root", "rootrank", "1.0", *cells]) + "\n")
    out.write_text("".join(rows))


@pytest.mark.parametrize(("name", "program"), [("sintax", vsearch), ("rdp", java)])
def test_programs_are_given_what_is_known(parts, monkeypatch, name, program):
    found, method = parts[1], PROGRAMS[name]()
    with pytest.raises(RuntimeError, match="ended with status 1: no memory"):
        method._run(sys.executable, "-c", "raise SystemExit('no memory')")
    monkeypatch.setattr(method, "_run", program)
    method.fit(found.references, found.train, np.ones((1, 8)), found.taxa)
    learned = found.train[::3]
    method.read([found.references.texts[i] for i in found.references.sequence[learned]] + ["ACGT" * 20])
    called, sure = method.call(np.arange(len(learned) + 1), np.ones(len(learned) + 1))
    assert called[:-1].tolist() == found.references.taxon[learned].tolist()
    assert sure.tolist() == [0.75] * len(learned) + [0]
    monkeypatch.setenv("PATH", "")
    assert not installed()


def test_at_the_shell(classifier, files, tmp_path, capsys, monkeypatch):
    """The options are those of the model, but for those that are given."""
    monkeypatch.setattr(TaxonClassifier, "FRACTIONS", (0.4, 0.4))
    classifier.save(tmp_path / "model")
    words = ["--references", files / "refs.fasta.gz", "--taxonomy", files / "tax.tsv", "--region", "515F-806R"]
    words += ["--model", tmp_path / "model"]
    words += ["--methods", "omniset,naive-bayes", "--seeds", 1, "--sizes", "64,128", "--epochs", 1, "--device", "cpu"]
    out = tmp_path / "out"
    assert main(["microbiomes", "evaluate", *map(str, words), "--progress", "false", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "ours minus naive-bayes (the best baseline)" in captured.out
    assert captured.err == ""
    numbers, report = (json.loads((out / name).read_text()) for name in ("metrics.json", "report.json"))
    assert {row["method"] for row in numbers["pooled"]} == {"omniset", "naive-bayes"}
    assert report["notes"] == ["region 515F-806R was found in 108 of 108 references"]
    asked = {"region": "515F-806R", "epochs": 1}
    assert report["arguments"] == json.loads(json.dumps(classifier.get_params())) | asked
    rows = pd.read_csv(out / "scores.csv.gz")
    assert len(rows) == (2 * 5 + 1) * 20  # ours, in small samples, is beside itself in large ones
    assert rows["community"].nunique() == 30
    assert "With unknown taxa" in (out / "report.html").read_text()
