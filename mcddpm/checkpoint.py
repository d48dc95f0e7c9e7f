"""Models and training states on disk: safetensors for tensors, JSON for everything else, a sha256 between them.

    DIR/model.safetensors, DIR/model.json          a model: weights, and a card that says all there is to know of it
    RUN/checkpoints/step-00001000/                 the same with the EMA weights, plus training.safetensors and .json

A folder is written under a temporary name and renamed when it is whole. Of the training states the last two are kept,
and a torn one is skipped with a warning.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mcddpm import __version__, config, logbook, runtime, schedules
from mcddpm.cascade import Cascade
from mcddpm.denoiser import NORMALISATION, Denoiser, Spectrum, Supervised, noise_gain
from mcddpm.fetch import file_sha256
from mcddpm.operators import Fourier, Operator, Radon
from mcddpm.schedules import Schedule
from mcddpm.unet import UNet

Card = dict[str, Any]
Model = Denoiser | Supervised


# --- a card, and the model it describes -----------------------------------------------------------------------------


def card_of(settings: config.Config, image_shape: tuple[int, int]) -> Card:
    """The card of a model that a configuration describes, for images of this shape (Radon's is fixed)."""
    channels, gain = 2, 1.0
    if settings.operator.kind == "radon":
        A = Radon(image_shape, settings.operator.views)
        channels, gain = 1, noise_gain(A, A.data_shape or (), is_complex=False)
    return {
        "format": 1,
        "kind": settings.model.kind,
        "conditional": settings.model.conditional,
        "residual": settings.model.kind == "supervised",
        "architecture": _architecture(settings, channels),
        "parameterisation": settings.model.parameterisation,
        "data_std": settings.model.data_std,
        "gain": gain,
        "schedule": config.to_dict(settings.schedule),
        "operator": {
            "kind": settings.operator.kind,
            "views": settings.operator.views,
            "trained_on": list(image_shape),
        },
        "normalisation": NORMALISATION,
        "data": config.to_dict(settings.data),
        "mask": config.to_dict(settings.mask),
        "licence": settings.data.licence or "not stated",
        "made_by": f"mcddpm {__version__}",
    }


def _architecture(settings: config.Config, channels: int) -> Card:
    """What `build` hands to the network: of a cascade's settings only those that it knows."""
    diffusion = settings.model.kind == "denoiser"
    if settings.model.kind not in ("denoiser", "supervised"):
        raise ValueError(f"model.kind is {settings.model.kind!r}, expected one of: denoiser, supervised")
    if settings.network.stages and not diffusion:
        raise ValueError("a supervised model is one U-Net: network.stages must be 0")
    chosen = config.to_dict(settings.network)
    chosen |= {"in_channels": 2 * channels if diffusion else channels, "out_channels": channels}
    if not settings.network.stages:
        return {key: value for key, value in chosen.items() if key != "stages"} | {"time": diffusion}
    known = inspect.signature(Cascade).parameters
    return {key: value for key, value in chosen.items() if key in known}


def build(card: Card) -> Model:
    """An untrained model as its card says."""
    try:
        kind = Cascade if "stages" in card["architecture"] else UNet
        network: UNet | Cascade = kind(**card["architecture"])
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        operator = operator_of(card["operator"])
        if card["kind"] == "supervised":
            return Supervised(network, operator=operator, residual=card.get("residual", False))
        return Denoiser(
            network,
            schedule_of(card["schedule"]),
            parameterisation=card["parameterisation"],
            data_std=card["data_std"],
            gain=card["gain"],
            operator=operator,
            spectrum=Spectrum(**card["spectrum"]) if card.get("spectrum") else None,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"the model's card is not one of ours: {error}") from error


def schedule_of(choice: dict[str, Any]) -> Schedule:
    name, T = choice["name"], choice["T"]
    if name not in schedules.SCHEDULES:
        raise ValueError(f"unknown schedule {name!r}; known: {', '.join(schedules.SCHEDULES)}")
    keys = ("sigma_min", "sigma_max") if name == "variance_exploding" else ("beta_scale",)
    return schedules.SCHEDULES[name](T, **{key: choice[key] for key in keys})


def operator_of(choice: dict[str, Any]) -> Operator | None:
    """None for Sense: its maps come with each scan."""
    kind = choice["kind"]
    if kind == "fourier":
        return Fourier()
    if kind == "sense":
        return None
    if kind == "radon":
        return Radon(choice["trained_on"], choice["views"])
    raise ValueError(f"unknown operator {kind!r}; known: fourier, sense, radon")


# --- models on disk -------------------------------------------------------------------------------------------------


ASSETS = Path(__file__).parent / "assets"


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in ASSETS.glob("*/model.json"))


def load_model(name_or_path: str | Path = "default", device: str | torch.device = "cpu") -> Model:
    """A shipped model by name, a model folder, or a run folder (its newest whole checkpoint), ready to evaluate."""
    card, weights = describe(name_or_path)
    model = build(card)
    load_weights(model.network, weights, Path(name_or_path))
    model.card = card
    return model.to(device).eval().requires_grad_(False)


def describe(path: str | Path) -> tuple[Card, dict[str, Tensor]]:
    """The card and the weights of a shipped model, a model folder, or a run's newest whole checkpoint."""
    return read_part(_model_folder(path), "model")


def read_card(path: str | Path) -> Card:
    """The card alone, of a model that `describe` has found to be whole: reading its weights again takes time."""
    card: Card = json.loads((_model_folder(path) / "model.json").read_text())
    return card


def _model_folder(path: str | Path) -> Path:
    folder = ASSETS / path if str(path) in shipped() else Path(path)
    if not folder.exists():
        raise ValueError(f"no model {str(path)!r}: neither a folder nor one of those shipped ({', '.join(shipped())})")
    if (folder / "checkpoints").is_dir():
        newest = newest_whole(folder)
        if newest is None:
            raise ValueError(f"{folder} holds no whole checkpoint yet")
        folder = newest
    return folder


def card_path(name_or_path: str | Path) -> Path:
    """The card of a shipped model or a model folder, which can be written to."""
    folder = ASSETS / name_or_path if str(name_or_path) in shipped() else Path(name_or_path)
    path = folder / "model.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a model folder; if it is a run, mcddpm weights export it first")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{folder} cannot be written to: copy the model, and calibrate the copy")
    return path


def annotate(name_or_path: str | Path, notes: Card) -> Path:
    """Add to the card of a shipped model or a model folder; its weights stay. What is None is taken from it.
    Returns the card's path."""
    card, _ = describe(name_or_path)
    path = card_path(name_or_path)
    with runtime.whole(path) as part:
        kept = {key: value for key, value in (card | notes).items() if key not in notes or value is not None}
        part.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def save_model(folder: Path, network_state: dict[str, Tensor], card: Card) -> None:
    """Write a model folder that was not there before."""
    write_folder(folder, lambda part: write_part(part, "model", network_state, card))


def replace_model(folder: Path, network_state: dict[str, Tensor], card: Card) -> None:
    """Write a model folder in the place of an older one, which goes once the new one is whole."""
    old = folder.with_name(f".{folder.name}.old")
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    save_model(new, network_state, card)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def export(run: Path, folder: Path, best: bool = False) -> None:
    """The newest model of a run, or the best on its validation slices, as a folder to ship: weights and card, with
    its quality on them, its configuration and its logs."""
    if not (run / "checkpoints").is_dir():
        raise ValueError(f"{run} is not the folder of a run: it has no checkpoints")
    if best and not (run / "best").is_dir():
        raise ValueError(f"{run} holds no best model: it has not been validated (data.validation, validate_every)")
    card, weights = describe(run / "best" if best else run)
    card |= {"validation": validation_of(run, card["step"])}

    def fill(part: Path) -> None:
        write_part(part, "model", weights, card)
        manifest = json.loads((run / "manifest.json").read_text())
        for data in manifest["data"].values():
            data["name"] = Path(data["name"]).name  # where it lay on this machine is nobody's business
        (part / "config.json").write_text(json.dumps(manifest, indent=1) + "\n")
        for name in ("log.jsonl", "validation.jsonl"):
            if (run / name).exists():
                shutil.copy(run / name, part / name)

    write_folder(folder, fill)


def validation_of(folder: Path, step: int) -> Card:
    """What was measured on validation slices (PSNR in dB), last before a step or at it; nothing if there was none."""
    rows = [row for row in logbook.rows(folder / "validation.jsonl") if row["step"] <= step]
    return {key: value for key, value in rows[-1].items() if key != "on"} if rows else {}


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


# --- parts and folders ----------------------------------------------------------------------------------------------


def write_part(folder: Path, name: str, tensors: dict[str, Tensor], card: Card) -> None:
    """NAME.safetensors, and NAME.json with its sha256."""
    path = folder / f"{name}.safetensors"
    # Contiguous copies: the file knows neither channels_last nor shared storage.
    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, path)
    except SafetensorError as error:  # its word for a full or broken disk
        raise OSError(f"{path} cannot be written: {error}") from error
    text = json.dumps(card | {"sha256": file_sha256(path)}, indent=1)
    (folder / f"{name}.json").write_text(text + "\n")


def read_part(folder: Path, name: str) -> tuple[Card, dict[str, Tensor]]:
    """The card and the tensors, checked against each other."""
    path = folder / f"{name}.safetensors"
    try:
        card = json.loads((folder / f"{name}.json").read_text())
        if card["sha256"] != file_sha256(path):
            raise ValueError(f"{path} is damaged: its sha256 is not the one in {name}.json")
        return card, load_file(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{folder} is not a model folder: {Path(error.filename).name} is missing") from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{folder} is not a checkpoint of ours: {name} cannot be read ({error})") from error


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """All of a folder or nothing: filled under a temporary name beside it, flushed, then renamed."""
    if folder.exists():
        raise ValueError(f"{folder} is there already; choose another folder or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        fill(part)
        for path in part.iterdir():
            runtime.flush(path)
        part.rename(folder)
        runtime.flush(folder.parent)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


# --- training states ------------------------------------------------------------------------------------------------

KEPT = 2


def save_training(
    run: Path, step: int, model: dict[str, Tensor], card: Card, state: dict[str, Tensor], notes: Card
) -> Path:
    """A checkpoint of a run: the model as it would be exported, and all that training needs to go on."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    shutil.rmtree(folder, ignore_errors=True)  # the same step of an earlier stretch, since replayed

    def fill(part: Path) -> None:
        write_part(part, "model", model, card)
        write_part(part, "training", state, notes | {"step": step})

    write_folder(folder, fill)
    for old in _checkpoints(run)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def load_training(folder: Path) -> tuple[Card, dict[str, Tensor], dict[str, Tensor]]:
    """A checkpoint of a run: notes, training state and model weights."""
    notes, state = read_part(folder, "training")
    _, model = read_part(folder, "model")
    return notes, state, model


def newest_whole(run: Path) -> Path | None:
    """The newest checkpoint that can be read; None if the run has none yet."""
    folders = _checkpoints(run)
    for folder in folders:
        try:
            for name in ("training", "model"):
                read_part(folder, name)
        except ValueError as error:
            warnings.warn(f"{error}; using the checkpoint before it", stacklevel=2)
            continue
        return folder
    if folders:
        raise ValueError(f"no checkpoint of {run} is whole; restore one, or start again in another folder")
    return None


def set_torn_aside(run: Path, whole: Path) -> None:
    """Rename what is newer than the newest whole checkpoint, so that it is neither kept for whole nor in the way."""
    for folder in _checkpoints(run):
        if folder.name > whole.name:
            aside = folder.with_name(f".torn-{folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)


def _checkpoints(run: Path) -> list[Path]:
    """Newest first."""
    return sorted((run / "checkpoints").glob("step-*"), reverse=True)
