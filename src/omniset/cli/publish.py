"""`omniset publish`: a model as one file, for others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from omniset.cli.options import Saving, takes

LICENSE = re.compile(r"\A(---\n(?:(?!---).*\n)*?license: ).*")
LISTED = "https://huggingface.co/docs/hub/repositories-licenses"  # the hub's own list: not that of SPDX, and it grows


@takes(Saving)
def publish(model: Path, out: Path = Path("model.zip"), license: str | None = None, **options: Any) -> None:  # noqa: A002
    """Pack a model for others into a zip, which --model takes: its own files and its card, and no reports.

    Example: omniset publish run --out model.zip --license cc-by-4.0

    Args:
        model: Folder that fit wrote.
        out: The zip.
        license: Of the model, for its card: a name of the Hugging Face hub, or other. null: as README.md there has it.
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
        if not re.fullmatch(r"[a-z\d][a-z\d.-]*", license, flags=re.IGNORECASE | re.ASCII):
            raise ValueError(f"license must be an identifier such as mit, or other, got {license!r}; all: {LISTED}")
        text, found = LICENSE.subn(lambda match: match[1] + json.dumps(license.lower()), text)
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
    if license is not None:
        say(f"license: {license.lower()}; the hub takes those that it lists: {LISTED}")
    for holds in re.findall(r"^- (The model holds .*)", text, flags=re.MULTILINE):
        say(f"warning: {holds}")
