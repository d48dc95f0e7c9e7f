"""The authors' files: their `.pt` and its settings -> a model folder of ours. Nothing in a `.pt` is run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mcddpm import __version__
from mcddpm.data.slices import Data
from mcddpm.models.card import Architecture, ImportedFrom, ModelCard, TrainedOn
from mcddpm.models.store import load_weights, save_model
from mcddpm.system import files

_RENAMED = [
    (r"^time_embed\.", "time."),
    (r"^input_blocks\.", "down."),
    (r"^middle_block\.", "middle."),
    (r"^output_blocks\.", "up."),
    (r"^out\.0\.", "out_norm."),
    (r"^out\.2\.", "out_conv."),
    (r"\.in_layers\.0\.", ".norm1."),
    (r"\.in_layers\.2\.", ".conv1."),
    (r"\.emb_layers\.1\.", ".embed."),
    (r"\.out_layers\.0\.", ".norm2."),
    (r"\.out_layers\.3\.", ".conv2."),
    (r"\.skip_connection\.", ".skip."),
    (r"\.proj_out\.", ".out."),
    (r"\.op\.", "."),
]
_THEIR_KEYS = {
    *("image_size", "model_channels", "learn_sigma", "num_res_blocks", "attention_resolutions", "dropout"),
    *("channel_mult", "use_checkpoint", "use_fp16", "num_heads", "num_head_channels", "num_heads_upsample"),
    *("use_scale_shift_norm", "resblock_updown", "use_new_attention_order"),
}


def import_authors(file: Path, settings: Path, out: Path) -> ModelCard:
    """The authors' `.pt` and its settings -> a model folder of ours. Returns the card."""
    theirs = read_authors(file)
    card = _authors_card(settings, timed="time_embed.0.weight" in theirs)
    card = replace(card, imported_from=ImportedFrom(file.name, files.sha256(file)))
    weights = {}
    for key, value in theirs.items():
        for pattern, name in _RENAMED:
            key = re.sub(pattern, name, key)
        weights[key] = value.squeeze(-1) if key.endswith((".qkv.weight", ".1.out.weight")) else value
    model = card.build()
    load_weights(model.network, weights, file)
    save_model(out, model.network.state_dict(), card)
    return card


def read_authors(file: Path) -> dict[str, Tensor]:
    """A plain state dict, read with weights_only: nothing in the file is run."""
    if not file.is_file():
        raise ValueError(f"no file {file}")
    try:
        theirs = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the bytes lead it to
        raise ValueError(f"{file} is not a checkpoint that can be read safely: {type(error).__name__}") from error
    if not isinstance(theirs, dict) or not theirs or not all(isinstance(v, Tensor) for v in theirs.values()):
        raise ValueError(f"{file} holds {type(theirs).__name__}, expected the authors' plain dictionary of tensors")
    return theirs


def _authors_card(path: Path, timed: bool) -> ModelCard:
    """Their settings in our words. T = 1000, cosine, beta x 0.5 is what their program trains with; its masks are not
    told. Without a time it is their plain U-Net."""
    theirs = _read_settings(path)
    try:
        size = int(theirs["image_size"])
        architecture = Architecture(
            channels=int(theirs["model_channels"]),
            multipliers=_multipliers(str(theirs["channel_mult"]), size),
            blocks=int(theirs["num_res_blocks"]),
            attention=tuple(size // int(r) for r in str(theirs["attention_resolutions"]).split(",")),
            heads=0 if theirs.get("num_head_channels", -1) > 0 else int(theirs["num_heads"]),
            head_channels=max(0, int(theirs.get("num_head_channels", -1))),
            patch=1,
            scale_shift=bool(theirs.get("use_scale_shift_norm", False)),
            residual_resampling=bool(theirs["resblock_updown"]),
            qkv_by_head=not theirs["use_new_attention_order"],
            groups=32,
            dropout=float(theirs["dropout"]),
            in_channels=4 if timed else 2,
            time=timed,
        )
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{path} does not hold the authors' settings: {type(error).__name__} {error}") from error
    return ModelCard(
        architecture,
        kind="denoiser" if timed else "supervised",
        parameterisation="eps",
        operator=TrainedOn("fourier", trained_on=(size, size)),
        data=Data(train="", validation="", description="imported: see the authors' publication"),
        made_by=f"mcddpm {__version__}",
    )


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"no file {path}")
    try:
        theirs: dict[str, Any] = json.loads(path.read_text())
        unknown = sorted(set(theirs) - _THEIR_KEYS)
        if unknown:
            raise ValueError(f"{path} has unknown keys {', '.join(unknown)}; known: {', '.join(sorted(_THEIR_KEYS))}")
        if theirs.get("learn_sigma"):
            raise ValueError(f"{path} has learn_sigma, which MC-DDPM's networks do not; expected false")
        if theirs.get("num_heads_upsample", -1) not in (-1, theirs.get("num_heads")):
            raise ValueError(f"{path} has num_heads_upsample, which would need other heads on the way up; expected -1")
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} does not hold the authors' settings: {type(error).__name__} {error}") from error
    return theirs


def _multipliers(text: str, size: int) -> tuple[int, ...]:
    """Their channel_mult; when it is empty, their default for 320 x 320."""
    if not text and size != 320:
        raise ValueError(f"channel_mult is empty, which is known for image_size 320 only, not for {size}: state it")
    return tuple(int(m) for m in (text or "1,1,2,2,4").split(","))
