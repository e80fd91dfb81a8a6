"""Runs the notebooks that come with their outputs, in their place: of real data, found through OMNISET_DATA, and of
slides that are simulated. `python -m benchmarks notebooks [NAME ...]`.

The picture of the cell with the tag "answer" goes to the top, to the cell with the tag "first".
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results import ROOT

FOLDER = ROOT / "docs" / "notebooks"


def main() -> None:
    import nbformat

    names = sys.argv[2:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        notebook = nbformat.read(path, 4)
        nbformat.write(executed(notebook), path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB", file=sys.stderr, flush=True)


def executed(notebook: Any) -> Any:
    """The notebook with new outputs. IPython's settings are nobody's."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as settings:
        profile = Path(settings, "profile_default")
        profile.mkdir()
        (profile / "ipython_kernel_config.py").write_text("get_config().IPKernelApp.log_level = 40\n", encoding="utf-8")
        os.environ["IPYTHONDIR"] = settings
        how: dict[str, Any] = {"timeout": 1800, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": place}}, **how).execute()
    first, answer = (
        next(cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())) for tag in ("first", "answer")
    )
    first.outputs, answer.outputs = answer.outputs, []
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook
