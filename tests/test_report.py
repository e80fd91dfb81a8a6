import json
import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from omniset.report import Cell, Facts, Note, Plot, Report, Section, Table, multiqc, render, write
from omniset.report.blocks import text_of
from omniset.report.data import DataSummary, quantiles
from omniset.report.frame import Run
from omniset.report.sets import Example, SetRun, compose
from omniset.trials import outcomes as evaluation
from omniset.trials.comparison import OURS, Comparison, Score
from omniset.trials.outcomes import Outcome

EVIL = '<script>alert(1)</script> & "q" $x_1$ \\frac'
VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """Elements with their attributes and text; fails where tags do not close what they opened."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", **dict(attributes)})

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag):
        return [e for e in self.elements if e["tag"] == tag]


def data(targets=None, sets=53, seed=0):
    r = np.random.default_rng(seed)
    sizes = r.integers(0, 997, sets)
    features = ["height", EVIL]
    copies = quantiles(r.geometric(0.5, 101))
    return DataSummary(
        sets, int(sizes.sum()), 2.0 * sizes.sum(), sizes, copies, {"left out: NaN": 7}, features, targets or {}
    )


def classified(classes, rows=211, seed=0, name="kind"):
    r = np.random.default_rng(seed)
    truth = r.integers(0, len(classes), rows)
    p = r.dirichlet(np.ones(len(classes)), rows)
    labels = np.array(classes)
    return Outcome(name, labels[truth], labels[p.argmax(1)], np.arange(rows), r.integers(1, 97, rows), classes, p)


def regressed(rows=211, seed=0):
    r = np.random.default_rng(seed)
    truth = r.normal(size=rows)
    return Outcome("weight", truth, truth + r.normal(size=rows), np.arange(rows), r.integers(1, 97, rows))


def compared(outcomes):
    of = {outcome.name: outcome for outcome in outcomes}
    rows = [
        pd.DataFrame({"condition": o.name, "method": OURS, "set": o.sets, "at": np.arange(len(o.sets))})
        for o in outcomes
    ]

    def scored(name, measure):
        def formula(rows, draws):
            outcome = of[rows["condition"].iloc[0]]
            known = name in outcome.measures
            return measure.of(outcome.rows(rows["at"].to_numpy()), draws) if known else np.full(len(draws), np.nan)

        return Score(name, name, measure.larger, measure.share, formula, 100, measure.within)

    measures = {name: measure for outcome in outcomes for name, measure in outcome.measures.items()}
    scores = [scored(name, measure) for name, measure in measures.items()]
    return Comparison(pd.concat(rows), scores, "set", "set", ["set"])


def a_run(*outcomes, **options):
    r = np.random.default_rng(0)
    history = [{"epoch": e, "train_loss": 2 / e, "val_loss": 3 / e, "learning_rate": 1e-3} for e in range(1, 8)]
    rows = [f"row {i}" for i in range(23)]
    example = Example("s1", "a", None, 29, rows, r.integers(1, 3, 23), r.random(23), {"height": r.normal(size=23)})
    about = {
        "system": "sets",
        "kind": "fit",
        "title": "Kinds of things",
        "command": "omniset train sets.csv --out 'a b'",
        "provenance": {"omniset": "1.2.3", "seed": 0},
        "warnings": ["one feature is constant"],
    }
    run = {
        "on": "validation sets",
        "data": data({o.name: o.truth for o in outcomes}),
        "history": history,
        "kept_epoch": 5,
        "outcomes": list(outcomes),
        "comparison": compared(outcomes) if outcomes else None,
        "examples": [example],
    }
    settings = options.pop("arguments", {"dim": 64, "learning_rate": 0.001, "shard_size": None})
    told = {name: options.pop(name) for name in [*about] if name in options}
    return Run(**(about | told)), SetRun(**(run | options)), settings


def rendered(made):
    text = render(compose(*made)[0])
    return text, Page(text)


@cache
def made(name):
    parts = RUNS[name]()
    return parts[1], *rendered(parts)


def cells(page, caption):
    start = next(i for i, e in enumerate(page.elements) if e["tag"] == "caption" and e["text"] == caption)
    rows = []
    for element in page.elements[start + 1 :]:
        if element["tag"] == "caption":
            break
        if element["tag"] == "tr":
            rows.append([])
        elif "data-value" in element:
            rows[-1].append(element["data-value"])
    return rows[1:]


METRICS = "Intervals are of what other sets would give."
RUNS = {
    "classes": lambda: a_run(classified(["a", "b", "c", "d"])),
    "numbers": lambda: a_run(regressed()),
    "many numbers": lambda: a_run(regressed(2503)),
    "60 classes": lambda: a_run(classified([f"class {i}" for i in range(60)], 97)),
    "17 classes": lambda: a_run(classified([f"class {i}" for i in range(17)])),
    "several": lambda: a_run(classified(["a", "b"]), regressed(), classified(["c", "d", "e"], name="other")),
    "one set": lambda: a_run(regressed(1), data=data({"weight": np.ones(1)}, sets=1)),
    "no row": lambda: a_run(regressed(0), data=data({"weight": np.ones(0)}, sets=0)),
    "no row of classes": lambda: a_run(classified(["a", "b"], 0), history=[{"epoch": 1, "train_loss": float("nan")}]),
    "nothing": lambda: (Run("sets", "fit", "Nothing"), SetRun(data()), {}),
    "evil": lambda: named(EVIL),
}


@pytest.mark.parametrize("name", RUNS)
def test_page(name):
    """Well formed, closed to the network, and every id and reference has its one place."""
    _, text, page = made(name)
    for word in ("http:", "https:", "//www", "@import", "url(http", "src="):
        assert word not in text
    assert [s["text"] for s in page.all("script")] != []
    assert len(page.all("script")) == len(page.all("style")) == len(page.all("h1")) == len(page.all("main")) == 1
    assert not page.all("img") + page.all("iframe")
    assert all(e["href"].startswith("data:image/png;base64,") for e in page.all("image"))
    ids = Counter(e["id"] for e in page.elements if "id" in e)
    assert max(ids.values()) == 1
    wanted = [e["href"] for e in page.elements if "href" in e]
    wanted += [e[k] for e in page.elements for k in e if k != "text" and "url(#" in (e[k] or "")]
    wanted = [re.search(r"#([^)]*)", w)[1] for w in wanted if not w.startswith("data:")]
    wanted += [w for e in page.elements for k in ("aria-labelledby", "aria-describedby") for w in e.get(k, "").split()]
    assert set(wanted) <= set(ids)
    for picture in page.all("svg"):
        assert picture["role"] == "img"
        assert picture["aria-labelledby"]
    for table in page.all("th"):
        assert table["scope"] in ("col", "row")
    assert len(page.all("caption")) == len(page.all("table"))
    headings = [h["text"] for h in page.all("h2")]
    assert headings[0] == "Contents"
    ends = ["Data", "Learning curves", "Settings", "How it was made"]
    assert headings[-4:] == ends if name != "nothing" else headings == ["Contents", "Data", "How it was made"]
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy


def test_labels_are_no_markup():
    _, text, page = made("evil")
    assert "<script>alert" not in text
    assert len(page.all("script")) == 1
    assert page.all("h1")[0]["text"] == page.all("title")[0]["text"] == EVIL
    assert page.all("code")[0]["text"] == EVIL
    drawn = "\n".join(e["text"] for e in page.all("text"))
    assert "<script>aler…" in drawn  # cut to a length that fits
    for caption in (f"Set {EVIL}: predicted {EVIL}, truth {EVIL}.", f"Target {EVIL}: how often each label occurs."):
        assert any(c["text"] == caption for c in page.all("caption"))


ODD = {  # names, and what stands for the odd character in them
    "controls": ("\0a\x07\x1b[31m\x7f\x85", "\\x00a\\x07\\x1b[31m\\x7f\\x85"),
    "no characters": ("a\ufffe\uffffb", "aU+FFFEU+FFFFb"),
    "half a character": ("a\ud800b", "aU+D800b"),
    "override": ("a\u202eb", "aU+202Eb"),
    "right to left": ("\u200fא\u200f", "\u200fא\u200f"),
    "formula": ("$x_1$ $", "$x_1$ $"),
    "broken formula": ("$\\frac{$ \\", "$\\frac{$ \\"),
    "markup": ("<b>&amp;", "<b>&amp;"),
    "unknown to fonts": ("漢字 \U0001f9ec", "漢字 \U0001f9ec"),
}


def named(name, classes=7):
    """A run that has this name wherever one can be."""
    r = np.random.default_rng(0)
    features = {name: r.normal(size=5), f"{name}2": r.normal(size=5)}
    elements = [name, *(f"{name}{i}" for i in range(4))]
    example = Example(name, name, name, 5, elements, np.arange(1, 6), r.random(5), features)
    options = {"title": name, "on": name, "warnings": [name], "arguments": {name: name}, "provenance": {name: name}}
    history = [{"epoch": 1, "train_" + name: 0.5}]
    outcomes = classified([name, "b"], name=name), classified([f"{name}{i}" for i in range(classes)], name="many")
    summary = data({o.name: o.truth for o in outcomes} | {f"{name}2": r.normal(size=53)})
    return a_run(*outcomes, data=summary, examples=[example], history=history, command=name, **options)


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_shown(name, tmp_path):
    """The page is written, with what is no character as its number; the JSON beside it has the name as it is."""
    odd, expected = ODD[name]
    write(tmp_path, *compose(*named(odd)))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff\ufffe\uffff]", text)
    page = Page(text)
    assert page.all("h1")[0]["text"].strip() == page.all("code")[0]["text"].strip() == expected
    drawn = [e["text"] for e in page.all("text")]
    assert max(Counter(drawn)[label] for label in (expected, f"1: {expected}")) >= 1
    assert json.loads((tmp_path / "report.json").read_text())["examples"][0]["set"] == odd


def test_text_of_any_figure_is_drawn():
    """Also of one that knows nothing of our style: labels of ticks, titles, legends, notes."""
    figure = Figure()
    axes = figure.subplots()
    odd = "$\\frac{\x07\ud800$"
    axes.plot([1, 2], [3, 4], label=odd)
    axes.set(xlabel=odd, title=odd)
    axes.set_xticks([1, 2], [odd, odd])
    axes.text(1, 3, odd)
    axes.legend()
    for _ in range(2):  # a figure may be drawn again
        page = Page(render(Report("T", "", [Section("S", "", [Plot(figure, odd, odd)])])))
    assert Counter(e["text"] for e in page.all("text"))["$\\frac{\\x07U+D800$"] == 6


@pytest.mark.parametrize("name", ["classes", "numbers", "one set", "no row"])
def test_numbers_are_those_of_the_evaluation(name):
    run, _, page = made(name)
    (outcome,) = run.outcomes
    found = run.metrics(outcome)
    shown = cells(page, METRICS)
    write = lambda value: "" if np.isnan(value) else str(value)  # noqa: E731
    assert [row[:3] for row in shown] == [[m, write(i.value), write(i.low)] for m, i in found.items()]
    for metric, interval in found.items():
        assert interval.value == pytest.approx(evaluation.score(outcome, metric, 2).value, rel=1e-12, nan_ok=True)


def test_confusion_and_classes_are_those_of_the_evaluation():
    run, _, page = made("classes")
    (outcome,) = run.outcomes
    bins, classes = evaluation.calibration(outcome), evaluation.by_class(outcome)
    assert [row[1] for row in cells(page, "Class by class.")] == classes["true"].astype(str).tolist()
    (target,) = compose(*RUNS["classes"]())[1]["targets"]
    assert target["confusion"] == evaluation.confusion(outcome).tolist()
    assert [one["count"] for one in target["calibration"]] == bins["count"].tolist()
    json.dumps(target, allow_nan=False)


def test_most_frequent_confusions():
    truth = np.repeat([f"class {i:02d}" for i in range(31)], 5)
    predicted = truth.copy()
    predicted[:3] = "class 07"
    predicted[5] = "class 09"
    classes = sorted(set(truth))
    outcome = Outcome("k", truth, predicted, np.arange(155), np.ones(155, int), classes, np.full((155, 31), 1 / 31))
    _, page = rendered(a_run(outcome))
    expected = [["class 00", "class 07", "3", "0.6"], ["class 01", "class 09", "1", "0.2"]]
    assert cells(page, "The most frequent confusions.") == expected
    (target,) = compose(*a_run(outcome))[1]["targets"]  # of many classes no matrix: pairs that are there
    assert "confusion" not in target
    found = {(true, called): number for true, called, number in target["confusions"]}
    assert found == Counter(zip(truth.tolist(), predicted.tolist(), strict=True))


def test_what_is_missing_is_said():
    _, text, _ = made("nothing")
    assert "How good the predictions are is not known" in text
    assert [row[2] for row in cells(made("one set")[2], METRICS)] == [""] * 5


def test_the_same_run_gives_the_same_page():
    with matplotlib.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path", "text.parse_math": True}):
        assert rendered(RUNS["classes"]())[0] == made("classes")[1]


def test_files(tmp_path):
    parts = a_run(regressed(), history=[{"epoch": 1, "train_loss": float("nan")}], arguments={"out": Path("a")})
    page = write(tmp_path / "new", *compose(*parts))
    assert page.read_text(encoding="utf-8") == render(compose(*parts)[0])
    read = json.loads((tmp_path / "new" / "report.json").read_text())
    assert read["targets"][0]["metrics"][0]["value"] == parts[1].metrics(parts[1].outcomes[0])["R2"].value
    assert read["history"] == [{"epoch": 1, "train_loss": None}]
    assert read["arguments"] == {"out": "a"}
    example = parts[1].examples[0]
    assert read["examples"][0]["scores"] == example.scores.tolist()


def test_blocks():
    table = Table("t", ["name", "n", "x"], [["a", 10, None], ["b", 9, Cell("nine", 9)], ["c", None, 1.5]])
    assert table.numeric() == [False, True, True]
    with pytest.raises(ValueError, match="table 't': a row of 1 cells for 2 columns"):
        Table("t", ["a", "b"], [[1]])
    blocks = [table, Note("warning", "<b>"), Facts([("rate", 0.001)])]
    page = Page(render(Report("T", "lead", [Section("Same", blocks=blocks), Section("Same"), Section("?")])))
    assert cells(page, "t") == [["a", "10", ""], ["b", "9", "9"], ["c", "", "1.5"]]
    assert [s["id"] for s in page.all("section")] == ["same", "same-1", "section", "page:made"]
    said = [d["text"] for d in page.all("dd")]
    assert said == ["0.001"]


def test_values_as_text():
    values = [np.int64(1234567), np.float32(0.25), np.nan, np.inf, False]
    assert [text_of(value) for value in values] == ["1,234,567", "0.2500", "\N{EN DASH}", "inf", "no"]


def test_contrast():
    """The contrast ratio of WCAG 2, for text of any size."""

    def luminance(code):
        parts = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    for colour in ("#1b1f24", "#57606a", "#0a5c91", "#a33c00", "#5f6670"):
        assert colour in made("classes")[1]
        for ground in ("#ffffff", "#f5f7f9"):
            assert (luminance(ground) + 0.05) / (luminance(colour) + 0.05) >= 4.5, (colour, ground)


def test_multiqc_files(tmp_path):
    run = RUNS["several"]()[1]
    history = [*run.history, {"epoch": 8, "train_loss": float("nan"), "val_loss": None}]
    written = multiqc.write(tmp_path, "run 1", multiqc.of_ours(run.comparison), {"": history})
    names = ["omniset_metrics_mqc.json", "omniset_loss_mqc.json", "omniset_learning_rate_mqc.json"]
    assert [p.name for p in written] == names
    table, loss, rate = (json.loads(p.read_text()) for p in written)
    assert [p["id"] for p in (table, loss, rate)] == ["omniset_metrics", "omniset_loss", "omniset_learning_rate"]
    row = table["data"]["run 1"]
    assert set(row) == set(table["headers"])
    assert row["weight: R2"] == run.metrics(run.outcomes[1])["R2"].value
    assert loss["data"]["run 1 training"] == {str(e): 2 / e for e in range(1, 8)}
    assert loss["data"]["run 1 validation"] == {str(e): 3 / e for e in range(1, 8)}
    assert list(rate["data"]) == ["run 1"]
    assert multiqc.write(tmp_path / "empty", "run 2", {}, {}) == []
