"""The documentation is that of this version: options, commands and Python code of the pages."""

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

import omniset
from omniset import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "paper" / "README.md", *sorted(DOCS.glob("*.md"))]


def test_every_promise_has_its_test():
    """Each row of docs/promises.md that promises something names tests, and they exist."""
    promised = (DOCS / "promises.md").read_text().split("## What the fuzzer found")[0]
    rows = [line for line in promised.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split("|")[-2])
        assert named, row
        for file, name in named:
            assert f"\ndef {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"


@pytest.fixture(scope="module")
def option_tables():
    pytest.importorskip("sphinx")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        import option_tables
    yield option_tables
    del sys.modules["option_tables"]


@pytest.fixture(scope="module")
def known(option_tables):
    """Names of the options of each command."""
    return {name: names_of(parts) for name, parts in option_tables.commands().items()}


def blocks(path, language):
    """Code blocks of a page, each with the number of its first line."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [(text[: m.start(1)].count("\n") + 1, m[1]) for m in found]


def names_of(parts):
    return [option.name.removeprefix("--") for options in parts.values() for option in options]


def test_every_option_is_on_the_page(option_tables):
    """With what it is about, what it does and its default."""
    found = option_tables.commands()
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```\{command-options\} (.+)$", page, flags=re.MULTILINE)
    assert sorted(shown) == sorted(found)
    for name, parts in found.items():
        lines = option_tables.markdown(name, parts)
        shown = [line.split()[1].removeprefix("--") for line in lines if line.startswith(":::{option}")]
        assert shown == names_of(parts)
        assert all(option.text for options in parts.values() for option in options)


def test_each_command_has_its_page(option_tables):
    """In a table that stands for the sections; what an installation lacks has neither."""
    text, found = (DOCS / "commands.md").read_text(encoding="utf-8"), option_tables.commands()
    for known in (found, found.keys() - {"studies list", "studies run", "studies table"}):
        pages, index = option_tables.pages(text, known), option_tables.index(text, known)
        assert set(pages) == {name.replace(" ", "-") for name in known}
        assert all(f"(commands/{page}.md) | " in index and f"\ncommands/{page}\n" in index for page in pages)
        assert "{command-options}" not in index
        assert "## Exit codes" in index
    assert "](../genomes.md)" in pages["genomes-fit"]


def test_methods_that_are_shown_exist():
    from omniset import SetSurvival, cells, genomes, microbiomes, regions

    conf = (DOCS / "conf.py").read_text(encoding="utf-8")
    shown = re.search(r'SHOWN = """(.*?)"""', conf, flags=re.DOTALL)[1].split()
    classes = [SetSurvival, omniset.SetClassifier, cells.CellAnnotator, cells.CellEmbedder, cells.CellPerturber]
    classes += [genomes.GenomeCompleter, microbiomes.TaxonClassifier, regions.ConnectivityPredictor]
    assert [name for name in shown if not any(hasattr(one, name) for one in classes)] == []


def command_lines():
    found = []
    for page in PAGES:
        for line, block in blocks(page, "sh"):
            for number, command in enumerate(block.replace("\\\n", "  ").splitlines()):
                words = shlex.split(command, comments=True)
                if words[:1] == ["omniset"]:
                    found.append(pytest.param(words[1:], id=f"{page.name}:{line + number}"))
    return found


@pytest.mark.parametrize("words", command_lines())
def test_commands_are_accepted(words, known, tmp_path, monkeypatch, capsys):
    """They parse; nothing is run. Files of settings that a page makes with --print_config are made first."""
    monkeypatch.chdir(tmp_path)
    if ">" in words:
        words = words[: words.index(">")]
    name = words[0] if words[0] in known else " ".join(words[:2])
    if "--config" in words:
        Path(words[words.index("--config") + 1]).write_text("sets: sets.parquet\ntarget: labels.csv\n")
    if "--print_config" not in words:
        words = [*words, "--print_config"]
    with pytest.raises(SystemExit) as done:
        cli.main(words)
    out, err = capsys.readouterr()
    assert done.value.code == 0, err
    config = yaml.safe_load(out)
    assert set(config) - {"config"} == set(known[name])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["python.md", "encoders.md", "coming-from.md"])
def test_python_runs(page, tmp_path, monkeypatch):
    """All blocks of a page, one after the other, as a reader would. (README and first hour: tests/test_readme.py.)"""
    if page == "coming-from.md":
        pytest.importorskip("torch_geometric")
    monkeypatch.chdir(tmp_path)
    parts = blocks(DOCS / page, "python")
    with_onnx = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "onnxscript"))
    run_python(page, [part for part in parts if with_onnx or "onnx" not in part[1]])


def walked(text, system, small, code=lambda words: 0):
    """Run those commands of a page that have options which make them small; the verbs of all that it shows."""
    verbs = []
    for line in re.findall(rf"^omniset (?:{system}|example) .*$", text.replace("\\\n", " "), flags=re.MULTILINE):
        words = shlex.split(line)[1:]
        if (verb := words[words[0] == system]) in small:
            if (system, verb) == ("genomes", "explain"):  # another genome than among many
                words[2] = Path("simulated/mags.tsv").read_text().splitlines()[1].split("\t")[0]
            assert cli.main([*words, *small[verb]]) == code(words)
        verbs.append(verb)
    return verbs


def run_python(page, parts):
    assert parts
    exec(compile("\n".join(block for _, block in parts), page, "exec"), {"__name__": "page"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are not in the model's vocabulary")
@pytest.mark.filterwarnings("ignore:.*far from the model's reference genomes")  # so few references
def test_genomes_page_runs(tmp_path, monkeypatch):
    """Its walk on simulated data, as small as can be, then its Python. (evaluate: test_contract.)"""
    monkeypatch.chdir(tmp_path)
    small = {
        "example": [],
        "fit": ["--epochs=1", "--device=cpu", "--progress=false"],
        "complete": ["--progress=false"],
        "explain": ["--progress=false"],
    }
    text = (DOCS / "genomes.md").read_text(encoding="utf-8")
    verbs = walked(text[: text.index("## With your genomes")], "genomes", small)
    assert verbs == ["example", "fit", "complete", "explain", "evaluate"]
    assert Path("completed/report.html").is_file()
    run_python("genomes.md", blocks(DOCS / "genomes.md", "python"))


@pytest.mark.slow
def test_cells_page_runs(tmp_path, monkeypatch):
    """It makes its files, then its walk, as small as can be, then its class. (evaluate: tests/cells.)"""
    pytest.importorskip("scanpy")
    from omniset.cells import projection

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(projection.importlib.util, "find_spec", lambda name: None)  # UMAP takes long to import
    make, use, in_place, donors = blocks(DOCS / "cells.md", "python")
    run_python("cells.md", [make])
    small = {verb: ["--progress=false"] for verb in ("inspect", "fit", "embed", "annotate", "explain")}
    small["fit"] += ["--dim=8", "--embedding_dim=4", "--epochs=1", "--device=cpu"]
    text = (DOCS / "cells.md").read_text(encoding="utf-8").partition("All of these cells")[0]
    # Its X is scaled: refused, as shown.
    verbs = walked(text, "cells", small, lambda words: 0 if "raw" in words else 2)
    assert verbs == ["inspect", "inspect", "fit", "embed", "annotate", "explain", "evaluate"]
    assert Path("annotation/calls.tsv").is_file()
    run_python("cells.md", [use, in_place])
    run_python("cells.md", [donors])
    walk = (DOCS / "cells.md").read_text(encoding="utf-8").partition("## A patient is a set of cells")[2]
    lines = re.findall(r"^omniset .*$", walk.partition("\n## ")[0].replace("\\\n", " "), flags=re.MULTILINE)
    for line in lines:
        words = [*shlex.split(line)[1:], "--progress=false"]
        words += ["--method=pooled-forest"] if "--out patients" in line else []  # in place of networks
        words += ["--folds=2"] if words[0] == "fit" else []
        words += ["--steps=1"] if words[0] == "explain" else []
        assert cli.main(words) == 0
    assert [line.split()[1] for line in lines] == ["cells", "fit", "fit", "explain"]


@pytest.mark.slow
def test_regions_page_runs(tmp_path, monkeypatch):
    """Its walk on a small simulated brain, then its class. (evaluate: tests/regions.)"""
    from omniset.regions import blend, kernel_ridge, methods, set_attention

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods, "ITERATIONS", 5)
    monkeypatch.setattr(blend, "FOLDS", 2)
    monkeypatch.setattr(set_attention, "STEPS", 3)
    for choice in ("PENALTIES", "RATES", "WIDTHS"):
        monkeypatch.setattr(kernel_ridge, choice, getattr(kernel_ridge, choice)[:2])
    text = (DOCS / "regions.md").read_text(encoding="utf-8")
    pairs, *_ = [block for _, block in blocks(DOCS / "regions.md", "text")]
    Path("pairs.csv").write_text(pairs, encoding="utf-8")
    small = {
        "example": [],
        "fit": ["--device=cpu", "--progress=false"],
        "predict": ["--progress=false"],
        "explain": ["--progress=false"],
    }
    verbs = walked(text[: text.index("### In Python")], "regions", small)
    assert verbs == ["example", "fit", "predict", "predict", "predict", "evaluate", "explain", "fit"]
    run_python("regions.md", blocks(DOCS / "regions.md", "python"))


def test_columns_are_those_on_the_cells_page():
    from omniset.cells.metrics import BATCH, BIO

    text = (DOCS / "cells.md").read_text(encoding="utf-8")
    table = text[text.index("| score | asks |") :]
    found = re.findall(r"`(\w+)`", table[: table.index("\n\n")])
    assert {*BIO, *BATCH, "bio", "batch", "total"} == set(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of scanpy
def test_notebook_of_cells_runs(tmp_path, monkeypatch):
    """All but the drawings, which take most of the time, in fewer epochs: the build of the docs runs it whole."""
    pytest.importorskip("scanpy")
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "notebooks" / "cells-in-scanpy.md").read_text(encoding="utf-8")
    found = re.findall(r"^```\{code-cell\} ipython3\n((?:.*\n)*?)```$", text, flags=re.MULTILINE)
    cells = [cell for cell in found if "sc.pl." not in cell]
    assert len(cells) == len(found) - 2 > 8
    same = 'assert not np.abs(same.transform(new, layer="raw") - new.obsm["X_omniset"]).any()'
    assert "epochs=30" in text
    run_python("cells-in-scanpy.md", [("", cell.replace("epochs=30", "epochs=2")) for cell in [*cells, same]])
    assert Path("blood", "config.json").is_file()


# What makes each notebook that comes with its outputs small, when it is run here.
BOOKS = {
    "a-damaged-genome": {"GenomeCompleter(": "GenomeCompleter(epochs=1, "},
    "cell-types-across-chemistries": {"epochs=30": "epochs=1"},
    "genes-and-connectivity": {"folds=4": "folds=2"},
    "patients-by-their-microbiome": {"--vectors": "--folds 2 --epochs 1 --vectors"},
    "survival-of-slides": {"--task": "--epochs 1 --task"},
}


def code_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_notebooks_come_with_their_outputs():
    """All cells were run in their order, without an error; the answer stands at the top with its picture."""
    assert sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb")) == sorted(BOOKS)
    for path in (DOCS / "notebooks").glob("*.ipynb"):
        cells = code_of(path)
        assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)], path
        outputs = [output for cell in cells for output in cell["outputs"]]
        assert not [output for output in outputs if output["output_type"] == "error"], path
        text, picture = (output["data"] for output in cells[0]["outputs"])
        assert ("text/markdown" in text, "image/png" in picture) == (True, True), path
        assert path.stat().st_size < 250_000
        assert not re.search(r"/(home|root|tmp|work)/", json.dumps(outputs)), path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BOOKS)
def test_notebooks_run(name, tmp_path, monkeypatch):
    """As `python -m benchmarks notebooks` does it, in this process, and in small."""
    plt = pytest.importorskip("matplotlib.pyplot")
    pytest.importorskip("IPython")
    cells = ["".join(cell["source"]) for cell in code_of(DOCS / "notebooks" / f"{name}.ipynb")]
    if any("OMNISET_DATA" in cell for cell in cells) and "OMNISET_DATA" not in os.environ:
        pytest.skip("needs the data that OMNISET_DATA names")
    plt.switch_backend("agg")
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    shown, known = [], {"__name__": "page"}
    known["display"] = shown.append
    for cell in cells:
        for large, small in BOOKS[name].items():
            cell = cell.replace(large, small)
        monkeypatch.chdir(tmp_path)
        if not cell.startswith("%%bash"):
            exec(compile(cell, name, "exec"), known)
            continue
        for line in os.path.expandvars(cell.replace("\\\n", " ")).splitlines():
            if line.startswith("cd "):
                monkeypatch.chdir(tmp_path / line.removeprefix("cd "))
            if line.startswith("omniset "):
                assert cli.main(shlex.split(line)[1:]) == 0
    assert shown[-1].data.startswith("**")


def test_formats_are_those_on_the_genomes_page():
    from omniset.genomes.formats import FORMATS

    text = (DOCS / "genomes.md").read_text(encoding="utf-8")
    table = text[text.index("| `--format` |") :]
    found = re.findall(r"^\| `([a-z][a-z0-9-]+)` \|", table[: table.index("\n\n")], flags=re.MULTILINE)
    assert sorted(found) == sorted(FORMATS)


def test_columns_are_those_on_the_genomes_page():
    from omniset.genomes.completion import SUMMARY

    text = (DOCS / "genomes.md").read_text(encoding="utf-8")
    table = text[text.index("`summary`, one row per genome") : text.index("## How to read it")]
    assert set(SUMMARY) - {"genome"} <= set(re.findall(r"`(\w+)`", table))
