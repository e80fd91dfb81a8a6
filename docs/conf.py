"""Sphinx configuration: sphinx-build -W --keep-going -b html docs docs/_build/html"""

import atexit
import inspect
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import omniset
from omniset.estimators import SetEstimator

sys.path.insert(0, str(Path(__file__).parent))  # for option_tables
# Notebooks call `omniset` as at a shell: the one of this environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
# They run without the user's settings of IPython, and its kernel does not warn that it talks over TCP (to itself).
os.environ["IPYTHONDIR"] = folder = tempfile.mkdtemp(prefix="omniset-docs-")
atexit.register(shutil.rmtree, folder, ignore_errors=True)
profile = Path(folder, "profile_default")
profile.mkdir()
(profile / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 40\n", encoding="utf-8")

project = "Omniset"
author = "The Omniset authors"
copyright = "The Omniset authors"  # noqa: A001
version = release = omniset.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "option_tables",
]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]
nitpicky = False
default_role = "code"  # docstrings write `name`
smartquotes = False  # and strings with straight quotes
strip_signature_backslash = True  # keeps the last _ of history_

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "force"  # what a notebook shows is what this version does
nb_execution_excludepatterns = ["*.ipynb"]  # they come with their outputs: python -m benchmarks notebooks
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 900
nb_merge_streams = True
suppress_warnings = ["misc.highlighting_failure"]  # cells of notebooks that are of the shell: %%bash

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88  # longer ones have a line per argument
autosummary_ignore_module_all = False
# What users call of a class that is fitted and saved; its other methods are for the rest of the package.
SHOWN = """
fit fit_transform predict predict_proba predict_table predict_survival predict_matrix predictions score by_method
explain explanations explain_layers importance transform get_feature_names_out set_output save load
complete completions embed decode annotate study foretell treated shift populations largest_changes
classify calls
"""
autosummary_context = {"shown": SHOWN.split()}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes as a list of the class, beside its annotated members
napoleon_attr_annotations = False
napoleon_use_rtype = False

html_theme = "sphinx_book_theme"
html_title = "Omniset"
html_static_path = ["_static"]
html_css_files = ["omniset.css"]
html_show_sourcelink = False
html_theme_options = {"use_download_button": False, "use_fullscreen_button": False, "navbar_persistent": []}


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", arguments, priority=300)
    app.connect("autodoc-process-docstring", escape, priority=400)  # before napoleon
    app.connect("autodoc-skip-member", skip)
    app.connect("builder-inited", copy_results)
    app.connect("source-read", results_beside)


def copy_results(app: Any) -> None:
    """The pages of tables, which the benchmarks write beside their numbers, are pages of this site, found by links."""
    folder = Path(app.srcdir, "results")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for page in Path(app.srcdir).parent.glob("results/*.md"):
        (folder / page.name).write_text(
            f"---\norphan: true\n---\n\n{page.read_text(encoding='utf-8')}", encoding="utf-8"
        )


def results_beside(app: Any, page: str, source: list[str]) -> None:
    """Links between docs/ and results/, which lie in one folder here."""
    text = re.sub(r"\]\((?=(?:\.\./)+results/)\.\./", "](", source[0])
    source[0] = text.replace("](../docs/", "](../") if page.startswith("results/") else text


def skip(app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any) -> bool | None:
    """Methods that scikit-learn makes for metadata routing are its own; some parts of evaluations, the package's."""
    return True if re.fullmatch(r"set_\w+_request|own_numbers|of_kind|imprecise|check_arguments", name) else None


def arguments(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Classes whose arguments and attributes are those of SetEstimator have them on their own page."""
    if what == "class" and obj is not SetEstimator and issubclass(obj, SetEstimator):
        text = inspect.getdoc(SetEstimator)
        lines += ["", *text[text.index("Args:") :].splitlines()]


def escape(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """What would be taken for markup: stars in `dim, **options:` and "runs/*.h5ad", last _ of plain classes_ and d__,
    and `Cell`s. Tables are as in Markdown.
    """
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            line = line.replace(", **options:", r", \*\*options:").replace("/*.", r"/\*.")
            line = re.sub(r"(?<=[^\W_])_+(?=[\s.,;)])", lambda found: r"\_" * len(found[0]), line)
            lines[i] = re.sub(r"(?<!\w)(`\w+`)(?=s\b)", r"\1\\ ", line)
    for i in reversed([i for i, line in enumerate(lines) if re.fullmatch(r"\|[-|]+\|", line)]):  # below a header
        end = next((j for j in range(i, len(lines)) if not lines[j].startswith("|")), len(lines))
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[i - 1], *lines[i + 1 : end])]
        table = [f"   {'  -' if n else '* -'} {cell}" for row in rows for n, cell in enumerate(row)]
        lines[i - 1 : end] = [".. list-table::", "   :header-rows: 1", "", *table]
