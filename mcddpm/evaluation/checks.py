"""Self-checks of cases, kept on disk: `calibrate` learns from them what is usual, `evaluate` compares with it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from mcddpm.data.cases import Case
from mcddpm.models.denoiser import Denoiser
from mcddpm.physics.operator import kind_of
from mcddpm.system import files
from mcddpm.uncertainty import conformal, selfcheck
from mcddpm.uncertainty.selfcheck import How


def path_of(out: Path, method: str, case: Case, how: How, operator: str = "") -> Path:
    name = f"self-check {conformal.VERSION}, {'-'.join(map(str, (*how, *filter(None, [operator]))))}"
    return out / "parts" / f"{method}, {name}" / f"{case.name}.json"


def make(path: Path, model: Denoiser, case: Case, how: How, seed: int, operator: str = "") -> None:
    """The statistics of one slice and what they cost; null if it has too few lines to hide, or was measured otherwise
    than by the operator that is asked for."""
    m, found, calls, start = case.make(), None, 0, time.monotonic()
    with suppress(selfcheck.Unchecked):
        if operator in ("", kind_of(m.operator)):
            checked = selfcheck.surprise(model, m, **how._asdict(), seed=seed)
            found, calls = checked.statistics, checked.calls
    kept = {"statistics": found, "calls": calls, "seconds": round(time.monotonic() - start, 3)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(path) as part:
        part.write_text(json.dumps(kept) + "\n")


def read(path: Path) -> dict[str, float] | None:
    kept = json.loads(path.read_text())
    found: dict[str, float] | None = kept["statistics"] if kept and "statistics" in kept else kept  # before: they alone
    return found


def cost(path: Path) -> dict[str, float]:
    """Network calls and seconds, where they were kept."""
    kept = json.loads(path.read_text()) or {}
    return {f"self_check_{key}": kept[key] for key in ("calls", "seconds") if key in kept}
