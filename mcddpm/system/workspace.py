"""A folder of resumable work: reconstruct, evaluate, calibrate and figures stand on it.

    FOLDER/KIND.json       what the work is: the same command again goes on, another one is refused
    FOLDER/parts/          pieces that are done, each whole or not there

Every piece depends on what was asked and on its name alone. So processes share pieces without talking to each other,
on any machines that see the folder, and nothing that is done is done again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.system import files, settings
from mcddpm.system.processes import Share
from mcddpm.system.progress import Progress, Quiet

FORMAT = 2  # counts up when the layout changes, so that older folders are not taken for new ones
Meaning = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """What was kept under one name: arrays, each read when it is asked for, and notes."""

    path: Path

    def __getitem__(self, key: str) -> np.ndarray:
        with np.load(self.path, allow_pickle=False) as kept:
            return np.asarray(kept[key])

    def get(self, key: str) -> np.ndarray | None:
        return self[key] if key in self else None  # noqa: SIM401 (it is no dictionary)

    def __contains__(self, key: str) -> bool:
        with np.load(self.path, allow_pickle=False) as kept:
            return key in kept

    @cached_property
    def notes(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(str(self["notes"]))
        return result


@dataclass(frozen=True)
class Workspace:
    """kind: reconstruction, evaluation or calibration. hidden: pieces, and what the work is, go to a hidden folder,
    because results lie beside them."""

    folder: Path
    kind: str
    share: Share = field(default_factory=Share)
    hidden: bool = False

    @property
    def parts(self) -> Path:
        return self.folder / (".parts" if self.hidden else "parts")

    @property
    def meaning_path(self) -> Path:
        return (self.parts if self.hidden else self.folder) / f"{self.kind}.json"

    # What the work is.

    def meaning(self) -> dict[str, Any]:
        """As the folder has it; nothing if it is new."""
        if not self.meaning_path.exists():
            return {}
        try:
            result: dict[str, Any] = json.loads(self.meaning_path.read_text())
            if result["format"] != FORMAT:
                raise ValueError
            return result
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self.meaning_path} is of another version of mcddpm, and cannot be gone on with: choose another --out"
            ) from error

    def claim(self, fixed: Meaning, named: Mapping[str, Meaning], **beside: Any) -> None:
        """Make the folder this work's, or find that it is.

        fixed: must be what it was, where both have it. named: sections of names, each of which keeps its meaning; new
        ones are added. beside: written down, and not compared.
        """
        Workspace(self.folder, "evaluation").meaning()  # calibrations of before were evaluations: refused as those are
        files.check_writable(self.folder)
        fixed, named = settings.plain(fixed), settings.plain(named)
        with files.locked(self.parts / f".{self.kind}.lock"):
            was = self.meaning()
            known = {"fixed": was.get("fixed", {}), "named": was.get("named", {})}
            self._compare(known, {"fixed": fixed, "named": named})
            sections = {key: known["named"].get(key, {}) | named.get(key, {}) for key in {**known["named"], **named}}
            content = {"format": FORMAT, "fixed": known["fixed"] | fixed, "named": sections}
            content |= {"beside": was.get("beside", {}) | settings.plain(beside)}
            if content != was:
                files.write_json(self.meaning_path, content)

    def _compare(self, known: dict[str, Any], asked: dict[str, Any]) -> None:
        changed: dict[str, tuple[Any, Any]] = {}
        for where, old, new in (
            ("", known["fixed"], asked["fixed"]),
            *((f"{key}.", known["named"].get(key, {}), new) for key, new in asked["named"].items()),
        ):
            both = [name for name in new if name in old]
            changed |= settings.differences({k: old[k] for k in both}, {k: new[k] for k in both}, where)
        if changed:
            message = "; ".join(f"{key} was {before!r}, is {now!r}" for key, (before, now) in changed.items())
            raise ValueError(f"{self.folder} holds another {self.kind}: {message}. Choose another --out")

    # Pieces.

    def path(self, name: str) -> Path:
        return self.parts / f"{name}.npz"

    def has(self, name: str) -> bool:
        """Whether a piece is there; one that cannot be read is removed."""
        path = self.path(name)
        if not path.exists():
            return False
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:  # which leaves torn files open
                if "notes" in kept:
                    return True
        except (OSError, EOFError, ValueError, zipfile.BadZipFile):
            pass
        path.unlink(missing_ok=True)
        return False

    def all_there(self, names: Iterable[str]) -> bool:
        return all(self.path(name).exists() for name in names)

    def keep(self, name: str, arrays: Mapping[str, np.ndarray], notes: Mapping[str, Any]) -> None:
        try:
            with files.whole(self.path(name)) as part, part.open("wb") as file:
                np.savez(file, notes=np.array(json.dumps(settings.plain(notes))), **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise OSError(f"{self.path(name)} cannot be written: {error.strerror or error}") from error

    def read(self, name: str) -> Piece:
        return Piece(self.path(name))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of this process's share that are not done."""
        return [name for name in self.share.of(names) if not self.has(name)]

    def work(self, names: Sequence[str], make: Callable[[str], None], progress: Progress | None = None) -> bool:
        """Make what is missing of this process's share; True if everything is there then."""
        missing = self.missing(names)
        for done, name in enumerate(missing):
            make(name)
            (progress or Quiet()).at(done + 1, len(missing))
        return self.all_there(names)
