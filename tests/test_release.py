"""What a release changes, and what it refuses; the recipe for conda asks for what pyproject.toml does."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FILES = "src/omniset/__init__.py", "CITATION.cff", "packaging/conda/recipe.yaml", "CHANGELOG.md"
WHO = {f"GIT_{role}_{what}": "a@b.example" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
TODAY = r"\d{4}-\d\d-\d\d"


@pytest.fixture
def repository(tmp_path):
    """A small one with the files that a release changes, at version 0.1.0."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / file).read_text(encoding="utf-8")
        text = re.sub(r'^(__version__ = "|version: |  version: ")[\w.]+', r"\g<1>0.1.0", text, flags=re.MULTILINE)
        (tmp_path / file).write_text(re.sub("^date-released.*\n", "", text, flags=re.MULTILINE), encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.0.1 (2026-01-01)\n\n- Old.\n"
    )
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Start")
    return tmp_path


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, text=True, capture_output=True, env=os.environ | WHO)


def release(folder, version, checks="true"):
    command = [sys.executable, ROOT / "tools" / "release.py", version, "--checks", checks]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, env=os.environ | WHO)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.1.0", "0.2.0rc1"])
def test_release_sets_the_version_dates_the_changelog_and_tags(repository, version):
    done = release(
        repository, version, checks=f"grep -q {version} src/omniset/__init__.py"
    )  # they see what is released
    assert done.returncode == 0, done.stderr
    texts = [git(repository, "show", f"v{version}:{file}").stdout for file in FILES]
    assert f'\n__version__ = "{version}"\n' in texts[0]
    assert re.search(rf"^version: {re.escape(version)}\ndate-released: {TODAY}$", texts[1], flags=re.MULTILINE)
    assert f'\n  version: "{version}"\n' in texts[2]
    assert re.search(rf"^## {re.escape(version)} \({TODAY}\)\n\n- New\.\n\n## 0\.0\.1", texts[3], flags=re.MULTILINE)
    assert git(repository, "cat-file", "-t", f"v{version}").stdout == "tag\n"  # annotated: pushed with --follow-tags
    assert git(repository, "status", "--porcelain").stdout == ""


def untracked(folder):
    (folder / "new.py").touch()


def released(folder):
    git(folder, "tag", "v0.2.0")


def changelog(text):
    def change(folder):
        (folder / "CHANGELOG.md").write_text(text)
        git(folder, "commit", "--quiet", "--all", "--message", "Changelog")

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "version", "checks", "said"),
    [
        (None, "2", "true", "the version must be like 1.2.3"),
        (None, "0.1.0rc1", "true", "is at 0.1.0 already"),
        (None, "0.2.0", "exit 3", "all files are as they were: exit 3 ended with 3"),
        (untracked, "0.2.0", "true", "new.py"),
        (released, "0.2.0", "true", "v0.2.0 is a tag already"),
        (changelog("# Changelog\n\n## 0.1.0 (2026-01-01)\n\n- Old.\n"), "0.2.0", "true", "one section '## Unreleased'"),
        (changelog("# Changelog\n\n## 0.3.0 (unreleased)\n\n- New.\n"), "0.2.0", "true", "which is not version 0.2.0"),
        (changelog("# Changelog\n\n## Unreleased\n\n## 0.1.0\n\n- Old.\n"), "0.2.0", "true", "says nothing below"),
    ],
)
def test_release_refuses_and_changes_nothing(repository, change, version, checks, said):
    if change:
        change(repository)
    before = [git(repository, *words).stdout for words in (["status", "--porcelain"], ["log"], ["tag"])]
    done = release(repository, version, checks)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert before == [git(repository, *words).stdout for words in (["status", "--porcelain"], ["log"], ["tag"])]


def test_recipe_asks_for_what_the_tables_need():
    """Under the names that conda's packages have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [
        *project["dependencies"],
        *project["optional-dependencies"]["tables"],
        f"python{project['requires-python']}",
    ]
    named = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    expected = {}
    for line in asked:
        name, floor = re.fullmatch(r"([\w-]+)(?:\[\w+\])?(>=[\w.]+)", line).groups()
        expected[named.get(name, name.lower())] = floor
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    needs = dict(line.split() for line in recipe["requirements"]["run"])
    brings = {"typeshed-client", "docstring_parser"}  # jsonargparse[signatures]
    assert {name: floor for name, floor in needs.items() if name not in brings} == expected
    assert brings <= set(needs)
