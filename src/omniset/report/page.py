"""From a report to one HTML file: nothing is loaded, and no text of the data is ever markup."""

from __future__ import annotations

import io
import re
import warnings
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2
import matplotlib
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG

import omniset
from omniset.report.blocks import Plot, Report, fact_of, shown, text_of, value_of
from omniset.report.figures import BETWEEN, NAMED, STYLE, legible
from omniset.runs.files import plain, replacing, writable_folder, write_json


def write(folder: str | Path, report: Report, numbers: dict[str, Any]) -> Path:
    """Write report.html, and what it shows as plain numbers to report.json. Returns the path of the page.

    In the JSON, NaN and infinite numbers are null, and objects that it does not know are text.
    """
    folder = writable_folder(folder)
    page = folder / "report.html"
    text = render(report)
    with replacing(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    write_json(folder / "report.json", plain(numbers))
    return page


def render(report: Report) -> str:
    """The page as text. The same report gives the same text."""
    slugs = _slugs([section.title for section in report.sections])
    numbered = count(1)
    return _template().render(
        report=report,
        sections=list(zip(slugs, report.sections, strict=True)),
        version=omniset.__version__,
        svg=lambda plot: Markup(svg(plot, f"figure:{next(numbered)}")),  # titles of sections yield no colon
    )


def svg(plot: Plot, prefix: str) -> str:
    """The figure as an <svg> element whose ids all start with the prefix, so that many can share a page."""
    drawn = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # whoever opens the page has fonts of their own
        legible(plot.figure)
        # savefig would draw twice, first for the layout alone, which drawing makes anyway.
        FigureCanvasSVG(plot.figure).print_svg(drawn, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(drawn.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):  # a <style> would hold for the whole page
                parent.remove(child)
    for element in [e for e in root.iter() if e.get("id", "").startswith(NAMED)]:
        names = element.attrib.pop("id").removeprefix(NAMED).split(BETWEEN)
        drawn_as = element.findall(".//{*}use") or [element]
        for one, name in zip(drawn_as, names, strict=False):  # what lies outside the axes is not drawn
            ElementTree.SubElement(one, "title").text = name
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(k): _own(_local(k), v, prefix) for k, v in element.attrib.items()}
    for place, (tag, text) in enumerate((("title", plot.caption), ("desc", plot.alt))):
        described = ElementTree.Element(tag, {"id": f"{prefix}-{tag}"})
        described.text = shown(text)
        root.insert(place, described)
    root.attrib |= {"role": "img", "aria-labelledby": f"{prefix}-title", "aria-describedby": f"{prefix}-desc"}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _own(name: str, value: str, prefix: str) -> str:
    """An attribute with the ids in it made the figure's own."""
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href" and value.startswith("#"):
        return f"#{prefix}-{value[1:]}"
    return value.replace("url(#", f"url(#{prefix}-")


def _slugs(titles: list[str]) -> list[str]:
    slugs: list[str] = []
    for title in titles:
        slug = base = re.sub(r"\W+", "-", title.lower()).strip("-") or "section"
        while slug in slugs:
            slug = f"{base}-{len(slugs)}"
        slugs.append(slug)
    return slugs


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        fact=fact_of, text=text_of, value=value_of, kind=lambda block: type(block).__name__.lower()
    )
    return environment.from_string(files("omniset.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
