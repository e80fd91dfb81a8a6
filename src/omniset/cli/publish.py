"""`omniset publish`: a model as one file, for others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from omniset.cli.options import Saving, takes

LICENSE = re.compile(r"\A(---\n(?:(?!---).*\n)*?license: ).*")


@takes(Saving)
def publish(model: Path, out: Path = Path("model.zip"), license: str | None = None, **options: Any) -> None:  # noqa: A002
    """Pack a model for others into a zip, which --model takes: its own files and its card, and no reports.

    Example: omniset publish run --out model.zip --license cc-by-4.0

    Args:
        model: Folder that fit wrote.
        out: The zip.
        license: Of the model, for its card, as the Hugging Face hub calls it. null: as README.md in the folder has it.
    """
    import hashlib
    import zipfile

    from omniset.runs import cards
    from omniset.runs.console import say
    from omniset.runs.files import replacing
    from omniset.runs.folders import new_file
    from omniset.training.artefacts import files_of
    from omniset.training.located import located

    folder = located(model)
    names, own = files_of(folder), folder / cards.NAME
    new_file(out)
    text = own.read_text(encoding="utf-8") if own.is_file() else cards.card(folder)
    if license is not None:
        text, found = LICENSE.subn(lambda match: match[1] + json.dumps(license), text)
        if not found:
            raise ValueError(f"{own} does not begin with ---, and a line `license: {license}` before the next ---")
    with replacing(out) as path, zipfile.ZipFile(path, "w") as packed:
        for name in [cards.NAME, *names]:
            about = zipfile.ZipInfo(name)  # of 1980
            about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            packed.writestr(about, text if name == cards.NAME else (folder / name).read_bytes())
    data = out.read_bytes()
    say(f"Written to {out}: {', '.join([cards.NAME, *names])}; {len(data):,} bytes")
    say(f"SHA-256 {hashlib.sha256(data).hexdigest()}")
    for holds in re.findall(r"^- (It holds .*)", text, flags=re.MULTILINE):
        say(f"warning: {holds}")
