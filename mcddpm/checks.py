"""Self-checks of cases, kept on disk: `calibrate` learns from them what is usual, `evaluate` compares with it."""

from __future__ import annotations

import json
from pathlib import Path

from mcddpm import conformal, runtime, selfcheck
from mcddpm.cases import Case
from mcddpm.denoiser import Denoiser
from mcddpm.selfcheck import How


def path_of(out: Path, method: str, case: Case, how: How) -> Path:
    name = f"self-check {conformal.VERSION}, {'-'.join(map(str, how))}"
    return out / "parts" / f"{method}, {name}" / f"{case.name}.json"


def make(path: Path, model: Denoiser, case: Case, how: How, seed: int) -> None:
    """The statistics of one slice, written as they are; null if it has too few lines to hide."""
    try:
        found = selfcheck.surprise(model, case.make(), **how._asdict(), seed=seed).statistics
    except selfcheck.TooFewLines:
        found = None
    path.parent.mkdir(parents=True, exist_ok=True)
    with runtime.whole(path) as part:
        part.write_text(json.dumps(found) + "\n")


def read(path: Path) -> dict[str, float] | None:
    found: dict[str, float] | None = json.loads(path.read_text())
    return found
