"""Training states on disk, and what is taken out of a run. The last two states are kept; a torn one is set aside."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from mcddpm.models.card import ModelCard
from mcddpm.models.store import checkpoints_of, model_folder, read_model, read_part, write_model, write_part
from mcddpm.system import files
from mcddpm.training import log

KEPT = 2


def save_training(
    run: Path, step: int, model: dict[str, Tensor], card: ModelCard, state: dict[str, Tensor], notes: dict[str, Any]
) -> Path:
    """A checkpoint of a run: the model as it would be exported, and all that training needs to go on."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    with files.whole(folder) as part:  # the same step of an earlier stretch, since replayed, makes room
        part.mkdir()
        write_model(part, model, card)
        write_part(part, "training", state, notes | {"step": step})
    for old in checkpoints_of(run)[KEPT:]:
        files.remove(old)
    return folder


def load_training(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint of a run: notes, training state and model weights."""
    notes, state = read_part(folder, "training")
    return notes, state, read_model(folder)[1]


def set_torn_aside(run: Path, whole: Path) -> None:
    """Rename what is newer than the newest whole checkpoint, so that it is neither kept for whole nor in the way."""
    for folder in checkpoints_of(run):
        if folder.name > whole.name:
            aside = folder.with_name(f".torn-{folder.name}")
            files.remove(aside)
            folder.rename(aside)


# --- out of a run ---------------------------------------------------------------------------------------------------


def export(run: Path, folder: Path, best: bool = False) -> None:
    """The newest model of a run, or the best on its validation slices, as a folder to ship: weights and card, with
    its quality on them, its configuration and its logs."""
    if not (run / "checkpoints").is_dir():
        raise ValueError(f"{run} is not the folder of a run: it has no checkpoints")
    if best and not (run / "best").is_dir():
        raise ValueError(f"{run} holds no best model: it has not been validated (data.validation, validate_every)")
    card, weights = read_model(model_folder(run / "best" if best else run))
    manifest = json.loads((run / "manifest.json").read_text())
    for data in manifest["data"].values():
        data["name"] = Path(data["name"]).name  # where it lay on this machine is nobody's business
    with files.whole(folder, fresh=True) as part:
        part.mkdir()
        write_model(part, weights, replace(card, validation=validation_of(run, card.step)))
        (part / "config.json").write_text(json.dumps(manifest, indent=1) + "\n")
        for name in ("log.jsonl", "validation.jsonl"):
            if (run / name).exists():
                shutil.copy(run / name, part / name)


def validation_of(folder: Path, step: int) -> dict[str, float]:
    """What was measured on validation slices (PSNR in dB), last before a step or at it; nothing if there was none."""
    rows = [row for row in log.rows(folder / "validation.jsonl") if row["step"] <= step]
    return {key: value for key, value in rows[-1].items() if key != "on"} if rows else {}
