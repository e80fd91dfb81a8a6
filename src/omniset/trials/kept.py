"""What an evaluation has done, unit by unit, so that an interrupted one goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from omniset.runs.files import plain, replacing, writable_folder
from omniset.runs.folders import only_training


@dataclass
class Done:
    """What one unit, such as a method on the split of a seed, has given."""

    facts: dict[str, Any] = field(default_factory=dict)  # what JSON can hold, NaN included
    rows: pd.DataFrame | None = None  # a table of scores
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # by name


class Kept:
    """The units that are done, in the folder `rows` of an evaluation.

    A unit is up to three files: NAME.json with the settings that it was made with and its facts, NAME.parquet and
    NAME.npz. The first is written last, and is there only if the others are.

    Args:
        folder: Of the evaluation. None: nothing is kept on disk.
        resume: Take what the folder has; else it must be empty.
        say: Is given the line of each unit that is done.

    Raises:
        ValueError: resume without a folder; without resume there are rows.
    """

    def __init__(self, folder: str | Path | None, resume: bool, say: Callable[[str], None] = lambda line: None) -> None:
        if resume and folder is None:
            raise ValueError("resume needs the folder that has the rows")
        self.say = say
        self._folder = None if folder is None else Path(folder) / "rows"
        if self._folder is not None:
            writable_folder(self._folder)
            if not resume and any(self._folder.iterdir()):
                raise ValueError(
                    f"{self._folder} holds what an earlier evaluation has done: go on with resume=True, or "
                    "choose another folder"
                )

    def do(
        self,
        name: str,
        settings: Mapping[str, Any],
        work: Callable[[], Done],
        *,
        line: str = "",
        needs: Sequence[str] = (),
    ) -> Done:
        """The unit as it was kept; or it is done now, and kept.

        Args:
            settings: All that it depends on; device and progress are left out.
            line: Said before it is done.
            needs: Arrays that it must have: without, it is done again.

        Raises:
            ValueError: What is kept was made with other settings.
        """
        plain_settings = plain({key: value for key, value in settings.items() if key not in ("device", "progress")})
        done = self._find(name, plain_settings)
        if done is None or not set(needs) <= done.arrays.keys():
            if line:
                self.say(line)
            done = self._keep(name, plain_settings, work())
        scratch = self.scratch(name)
        if scratch is not None and scratch.is_dir() and only_training(scratch):
            shutil.rmtree(scratch, ignore_errors=True)  # here, as an earlier run may have ended before it did
        return done

    def scratch(self, name: str) -> Path | None:
        """A folder for checkpoints of a unit, removed when the unit is kept. None: nothing is kept on disk."""
        return None if self._folder is None else self._folder / name

    def _find(self, name: str, settings: dict[str, Any]) -> Done | None:
        if self._folder is None or not (path := self._folder / f"{name}.json").is_file():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            before, facts = stored["settings"], dict(stored["facts"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: remove it, and what it says is done again") from error
        for key in {**settings, **before}:  # in the order of the settings
            if before.get(key) != settings.get(key):
                raise ValueError(
                    f"{path} is of another evaluation and cannot be resumed: {key} was {before.get(key)!r}, is "
                    f"{settings.get(key)!r}. Start anew, not resuming"
                )
        rows, arrays = path.with_suffix(".parquet"), path.with_suffix(".npz")
        done = Done(facts, pd.read_parquet(rows) if rows.is_file() else None)
        if arrays.is_file():
            with np.load(arrays, allow_pickle=False) as archive:
                done.arrays = dict(archive)
        return done

    def _keep(self, name: str, settings: dict[str, Any], done: Done) -> Done:
        if self._folder is None:
            return done
        if done.rows is not None:
            with replacing(self._folder / f"{name}.parquet") as temporary:
                done.rows.to_parquet(temporary)
        if done.arrays:
            with replacing(self._folder / f"{name}.npz") as temporary:
                np.savez(temporary, **done.arrays)  # type: ignore[arg-type]
        with replacing(self._folder / f"{name}.json") as temporary:
            text = json.dumps({"settings": settings, "facts": done.facts}, indent=1)
            temporary.write_text(text, encoding="utf-8")
        return done
