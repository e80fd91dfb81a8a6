#!/usr/bin/env python3
"""Release the repository of the current folder: make release VERSION=1.2.3

Sets the version, dates the changelog, runs the checks, commits and tags. It publishes nothing: pushing the tag does.
"""

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

VERSIONS = {  # of the package, from which all else takes it, and of files that must say it themselves
    "src/omniset/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "packaging/conda/recipe.yaml": r'^  version: "(.+)"$',
}
CHANGELOG = "CHANGELOG.md"
UNRELEASED = r"^## (?:(?P<version>\S+) \(unreleased\)|\[?unreleased\]?)$"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--checks", default="make check test", help="what must succeed before the commit")
    arguments = parser.parse_args()
    tag, today = f"v{arguments.version}", datetime.date.today().isoformat()
    made = texts(arguments.version, tag, today)
    try:
        for file, text in made.items():
            Path(file).write_text(text, encoding="utf-8")
        subprocess.run(arguments.checks, shell=True, check=True)
        git("commit", "--quiet", "--message", f"Release {arguments.version}", "--", *made)
    except BaseException as error:
        git("restore", "--staged", "--worktree", "--", *made)
        if isinstance(error, subprocess.CalledProcessError):
            sys.exit(f"nothing is released, and all files are as they were: {error.cmd} ended with {error.returncode}")
        raise
    git("tag", "--annotate", tag, "--message", f"Omniset {arguments.version}")
    print(f"committed, and tagged {tag}; to publish it: git push --follow-tags")


def texts(version: str, tag: str, today: str) -> dict[str, str]:
    """What is to be in each file; the first thing that is in the way ends the program."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?", version):
        sys.exit(f"the version must be like 1.2.3 or 1.2.3rc1, got {version!r}")
    if changed := git("status", "--porcelain"):
        sys.exit(f"commit or stash what has changed, or is new, before a release:\n{changed}")
    if git("tag", "--list", tag):
        sys.exit(f"{tag} is a tag already; choose a later version")
    made = {file: Path(file).read_text(encoding="utf-8") for file in (*VERSIONS, CHANGELOG)}
    for file, pattern in VERSIONS.items():
        found = re.findall(pattern, made[file], flags=re.MULTILINE)
        if len(found) != 1:
            sys.exit(f"{file} must have one line like {pattern}, it has {len(found)}")
        if order(found[0]) > order(version):
            sys.exit(f"{file} is at {found[0]} already, which is later than {version}")
        made[file] = re.sub(pattern, lambda m: m[0].replace(m[1], version), made[file], flags=re.MULTILINE)
    headings = list(re.finditer(UNRELEASED, made[CHANGELOG], flags=re.MULTILINE | re.IGNORECASE))
    if len(headings) != 1:
        wanted = f"one section '## Unreleased', or '## {version} (unreleased)'"
        sys.exit(f"{CHANGELOG} must have {wanted}, it has {len(headings)}")
    heading = headings[0]
    if heading["version"] not in (None, version):
        sys.exit(f"{CHANGELOG} has '{heading[0]}', which is not version {version}")
    if re.match(r"\s*(##\s|\Z)", made[CHANGELOG][heading.end() :]):
        sys.exit(f"{CHANGELOG} says nothing below '{heading[0]}'; write what is new for users")
    dated = f"## {version} ({today})"
    made[CHANGELOG] = made[CHANGELOG][: heading.start()] + dated + made[CHANGELOG][heading.end() :]
    citation = re.sub(r"^date-released: .+\n", "", made["CITATION.cff"], flags=re.MULTILINE)
    citation = re.sub(r"^version: .+\n", rf"\g<0>date-released: {today}\n", citation, flags=re.MULTILINE)
    made["CITATION.cff"] = citation
    return made


def order(version: str) -> tuple[int | str, ...]:
    """By which versions are sorted: 1.2.0rc1 comes before 1.2.0."""
    numbers, stage, number = re.fullmatch(r"([\d.]+?)(?:(a|b|rc)(\d+))?", version).groups()
    return (*map(int, numbers.split(".")), stage or "release", int(number or 0))


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
