"""Models on disk: safetensors for weights, JSON for everything else, a sha256 between them.

DIR/model.safetensors, DIR/model.json          a model: weights, and the card that says all there is to know of it
DIR/calibration.json                           how its error bars are to be read, where it was calibrated
RUN/checkpoints/step-00001000/                 the same with the EMA weights, plus training.safetensors and .json
"""

from __future__ import annotations

import json
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mcddpm.models.card import Model, ModelCard
from mcddpm.system import files
from mcddpm.system.settings import to_dict

ASSETS = Path(__file__).parents[1] / "assets"


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob("*/model.json"))


def load_model(name_or_path: str | Path = "default", device: str | torch.device = "cpu") -> Model:
    """A shipped model by name, a model folder, or a run folder (its newest whole checkpoint), ready to evaluate."""
    folder = model_folder(name_or_path)
    card, weights = read_model(folder)
    model = card.build()
    load_weights(model.network, weights, Path(name_or_path))
    model.card, model.folder = card, folder
    return model.to(device).eval().requires_grad_(False)


def model_folder(path: str | Path) -> Path:
    """Where a model's files lie: that of a shipped one, a model folder, or a run's newest whole checkpoint."""
    folder = ASSETS / path if str(path) in shipped() else Path(path)
    if not folder.exists():
        raise ValueError(f"no model {str(path)!r}: neither a folder nor one of those shipped ({', '.join(shipped())})")
    if (folder / "checkpoints").is_dir():
        newest = newest_whole(folder)
        if newest is None:
            raise ValueError(f"{folder} holds no whole checkpoint yet")
        folder = newest
    return folder


def read_model(folder: Path) -> tuple[ModelCard, dict[str, Tensor]]:
    """The card and the weights, checked against each other."""
    _, weights = read_part(folder, "model")
    return _card(folder), weights


def read_card(path: str | Path) -> ModelCard:
    """The card of a model whose weights are whole; read once for as long as its files are as they were."""
    folder = model_folder(path)
    check_part(folder, "model")
    return _card(folder)


def weights_of(path: str | Path) -> dict[str, Tensor]:
    """The weights of a shipped model, a model folder or a run folder, by name."""
    return read_model(model_folder(path))[1]


def _card(folder: Path) -> ModelCard:
    path = folder / "model.json"
    result = path.stat()
    return _read_card(path, result.st_mtime_ns, result.st_size)


@lru_cache(maxsize=64)
def _read_card(path: Path, time: int, size: int) -> ModelCard:
    return ModelCard.read(json.loads(path.read_text()), str(path))


def save_model(folder: Path, weights: dict[str, Tensor], card: ModelCard, *, fresh: bool = True) -> None:
    """Write a model folder; fresh: one that was not there before, otherwise in the place of an older one."""
    with files.whole(folder, fresh=fresh) as part:
        part.mkdir()
        write_model(part, weights, card)


def write_model(folder: Path, weights: dict[str, Tensor], card: ModelCard) -> None:
    """Into a folder that is being filled."""
    write_part(folder, "model", weights, {k: v for k, v in to_dict(card).items() if k != "sha256"})


def load_weights(network: torch.nn.Module, weights: dict[str, Tensor], source: Path) -> None:
    """Load a state dict, or say which entries do not fit."""
    expected = network.state_dict()
    wrong = [f"{key} is missing" for key in expected if key not in weights]
    wrong += [f"{key} is not part of the network" for key in weights if key not in expected]
    wrong += [
        f"{key} has shape {tuple(weights[key].shape)}, expected {tuple(expected[key].shape)}"
        for key in expected
        if key in weights and weights[key].shape != expected[key].shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ValueError(f"{source} is of another architecture: {'; '.join(wrong[:3])}{more}")
    network.load_state_dict(weights)


# --- one file of tensors, and its notes -----------------------------------------------------------------------------


def write_part(folder: Path, name: str, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """NAME.safetensors, and NAME.json with its sha256."""
    path = folder / f"{name}.safetensors"
    # Contiguous copies: the file knows neither channels_last nor shared storage.
    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # its word for a full or broken disk
        raise OSError(f"{path} cannot be written: {error}") from error
    text = json.dumps(notes | {"sha256": files.sha256_now(path)}, indent=1)
    (folder / f"{name}.json").write_text(text + "\n")


def read_part(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The notes and the tensors, checked against each other."""
    notes = check_part(folder, name)
    try:
        return notes, load_file(folder / f"{name}.safetensors")
    except SafetensorError as error:
        raise ValueError(f"{folder} is not a checkpoint of ours: {name} cannot be read ({error})") from error


def check_part(folder: Path, name: str) -> dict[str, Any]:
    """The notes, if the tensors are those that they were written for."""
    path = folder / f"{name}.safetensors"
    try:
        notes: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
        if notes["sha256"] != files.sha256(path):
            raise ValueError(f"{path} is damaged: its sha256 is not the one in {name}.json")
        return notes
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{folder} is not a model folder: {Path(error.filename).name} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is not a checkpoint of ours: {name} cannot be read ({error})") from error


# --- runs -----------------------------------------------------------------------------------------------------------


def newest_whole(run: Path) -> Path | None:
    """The newest checkpoint that can be read; None if the run has none yet."""
    folders = checkpoints_of(run)
    for folder in folders:
        try:
            for name in ("training", "model"):
                check_part(folder, name)
        except ValueError as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=2)
            continue
        return folder
    if folders:
        raise ValueError(f"no checkpoint of {run} is whole; restore one, or start again in another folder")
    return None


def checkpoints_of(run: Path) -> list[Path]:
    """Newest first."""
    return sorted((run / "checkpoints").glob("step-*"), reverse=True)
