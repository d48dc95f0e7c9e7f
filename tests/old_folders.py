"""Folders as mcddpm made them when its modules were flat, by hand: what `test_old_folders` opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from mcddpm.models.card import ModelCard
from mcddpm.system import files
from tests.scans import MASK, SIZE, kspace, scan


def written(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


# --- models -----------------------------------------------------------------------------------------------------------

DATA = {
    **{"train": "drawn", "validation": "drawn", "drawn_slices": 512, "drawn_size": 64},
    **{"description": "", "licence": ""},
}
SCHEDULE = {"name": "cosine", "T": 1000, "beta_scale": 0.5, "sigma_min": 0.002, "sigma_max": 80.0}
NETWORK = {
    **{"channels": 8, "multipliers": [1, 2], "blocks": 1, "attention": [2], "heads": 2, "head_channels": 0, "patch": 2},
    **{"scale_shift": True, "residual_resampling": True, "qkv_by_head": True, "groups": 8, "dropout": 0.0},
}
UNET = NETWORK | {"in_channels": 4, "out_channels": 2, "time": True}
CASCADE = {
    **{"stages": 2, "channels": 8, "multipliers": [1, 2], "blocks": 1, "patch": 2, "groups": 2, "dropout": 0.0},
    **{"in_channels": 4, "out_channels": 2},
}
CARD: dict[str, Any] = {
    "format": 1,
    "kind": "denoiser",
    "conditional": True,
    "residual": False,
    "architecture": UNET,
    "parameterisation": "denoised",
    "data_std": 0.1,
    "gain": 1.0,
    "schedule": SCHEDULE,
    "operator": {"kind": "fourier", "views": 180, "trained_on": [SIZE, SIZE]},
    "normalisation": "every measurement is divided by max|A+ y_M|",
    "data": DATA,
    "mask": {"families": ["random_columns"], "accelerations": [4.0, 8.0]},
    "licence": "not stated",
    "made_by": "mcddpm 0.1.0",
}
RADON_GAIN = 0.18698391318321228


def model(folder: Path, **changes: Any) -> Path:
    """A model folder: its weights are drawn, and its answers depend on all of them."""
    network = ModelCard.read(CARD | changes, "card").build().network
    g = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1, generator=g)
    folder.mkdir(parents=True)
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, folder / "model.safetensors")
    written(folder / "model.json", CARD | changes | {"sha256": files.sha256_now(folder / "model.safetensors")})
    return folder


# --- calibrations, which stood in the card ----------------------------------------------------------------------------

FITTED = {"data": "two heads", "date": "2026-01-02", "operator": "fourier", "sampler": "dpmpp_2m_sde"}
FACTORS = {"acceleration": 4.0, "slices": 20, "slope": 0.0, "usual": 0.0, "lowest": 0.0}
SPREAD = [0.25 * k for k in range(20)]


def calibrated(folder: Path, version: int = 4) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put a calibration into the card of a model folder; returns its two parts."""
    card = json.loads((folder / "model.json").read_text())
    known = {"version": version, "model": card["sha256"], **FITTED}
    table = FACTORS | {"factors": [[1.5, 1.25, 1.0], [3.5, 3.0, 2.0]]}
    follows = FACTORS | {"factors": [[1.25, 1.0, 0.75], [3.0, 2.5, 2.0]], "slope": 0.5, "usual": 2.0}
    intervals = known | {"steps": 2, "samples": 2, "levels": [0.5, 0.8], "tables": [table], "adaptive": [follows]}
    usual = [{"acceleration": 4.0, "statistics": dict.fromkeys(("overall", "shape", "line"), SPREAD)}]
    check = known | {"folds": 2, "samples": 2, "steps": 2, "usual": usual}
    written(folder / "model.json", card | {"calibration": intervals, "self_check": check})
    return intervals, check


# --- results ----------------------------------------------------------------------------------------------------------

TASK = {
    **{"model": "default", "mask": "", "acceleration": 4.0, "samples": 2, "sampler": "dpmpp_2m_sde", "steps": 2},
    **{"grid": None, "seed": 0, "snr": "inf", "kind": None, "coil_axis": None, "interval": None, "self_check": False},
    **{"formats": ["h5"]},
}


def result(path: Path) -> dict[str, np.ndarray]:
    """A result, and what is in it."""
    samples = np.stack([kspace(2, seed) for seed in range(2)], 1)
    arrays = {"samples": samples, "mean": abs(samples).mean(1), "std": abs(samples).std(1, ddof=1)}
    arrays |= {"zero_filled": arrays["mean"] / 2, "mask": np.broadcast_to(MASK.numpy(), (2, SIZE, SIZE))}
    provenance = {"made_by": "mcddpm 0.1.0", "model": {"name": "default", "sha256": "ce5d"}, "task": TASK}
    provenance |= {"input": {"file": "a.h5", "sha256": "5af9"}, "simulated_phase": False, "calls": 2}
    provenance |= {"scale": [0.01, 0.02], "warnings": []}
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file[key] = values
        file.attrs["provenance"] = json.dumps(provenance)
    return arrays


# --- runs -------------------------------------------------------------------------------------------------------------

CONFIG: dict[str, dict[str, Any]] = {
    "data": DATA | {"drawn_slices": 7, "drawn_size": 16},
    "simulation": {
        **{"phase": 1.0, "snr": [20.0, 60.0], "augment": True, "shift": 8.0, "turn": 10.0},
        **{"zoom": 0.0, "intensity": 0.1},
    },
    "operator": {"kind": "fourier", "maps": "", "views": 180},
    "mask": CARD["mask"],
    "schedule": SCHEDULE,
    "model": {
        **{"kind": "denoiser", "conditional": True, "parameterisation": "denoised"},
        **{"data_std": 0.1, "spectrum": True},
    },
    "network": NETWORK | {"stages": 0},
    "training": {
        **{"steps": 4, "batch": 4, "strip": 0, "accumulate": 1, "optimiser": "adamw", "lr": 0.0003, "warmup": 3},
        **{"final_lr": 0.0, "weight_decay": 0.01, "clip": 1.0, "ema": 0.999, "times": "lognormal"},
        **{"log_sigma_mean": -1.6, "log_sigma_std": 1.5, "seed": 0, "init": "", "device": "auto", "precision": "auto"},
        **{"compile": "auto", "log_every": 3, "checkpoint_every": 4, "checkpoint_minutes": 5.0, "validate_every": 4},
        **{"validation_slices": 1, "validation_samples": 2, "validation_steps": 2},
    },
}


def run(folder: Path) -> Path:
    """A run with one checkpoint, as far as it is read without going on. (Going on: tests/training/test_resume.py.)"""
    checkpoint = model(folder / "checkpoints" / "step-00000004", step=4, data_sha256="027c", measured_rms=[0.4, 0.6])
    save_file({"net.x": torch.ones(2)}, checkpoint / "training.safetensors")
    notes = {"config": CONFIG, "position": 16, "processes": 1, "data_sha256": "027c", "step": 4}
    notes["sha256"] = files.sha256_now(checkpoint / "training.safetensors")
    written(checkpoint / "training.json", notes)
    data = {"train": {"name": "/somewhere/drawn", "sha256": "027c", "slices": 7, "shape": [16, 16]}}
    written(folder / "manifest.json", {"config": CONFIG, "data": data, "made_by": "mcddpm 0.1.0"})
    quality = {"step": 4, "zero_filled": 27.9, "mean": 27.8, "on": "abcd"}
    (folder / "validation.jsonl").write_text(json.dumps(quality) + "\n")
    (folder / "log.jsonl").write_text(json.dumps({"step": 3, "loss": 1.8}) + "\n")
    return folder


# --- evaluations ------------------------------------------------------------------------------------------------------

CASES = {
    "protocol": "fastmri",
    "acquisition": "",
    "label": "drawn",
    "family": "random_columns",
    "snr": 35.0,
    "seed": 77,
}
METHOD = {
    **{"name": "zf", "kind": "zero_filled", "model": "", "samples": 1, "sampler": "dpmpp_2m_sde", "steps": 0},
    **{"weight": 0.0, "tune": "", "self_check": False, "settings": {}},
}


def evaluation(folder: Path) -> tuple[Path, Path]:
    """An evaluation that was begun, and its configuration."""
    scan(folder.parent / "scans" / "one.h5", 1, sampled=False)
    source = str(folder.parent / "scans")
    cases = CASES | {"source": source}
    last = {"cases": [cases | {"every": 1, "accelerations": [4.0], "methods": []}], "methods": [METHOD], "seed": 0}
    content = {"cases": {"drawn": cases}, "methods": {"zf": METHOD}, "seed": 0, "device": "cpu", "weights": {}}
    written(folder / "evaluation.json", content | {"data": {"drawn one.h5": "592d"}, "last": last})
    toml = folder.parent / "evaluation.toml"
    toml.write_text(f'[[cases]]\nsource = "{source}"\nprotocol = "fastmri"\nlabel = "drawn"\naccelerations = [4]\n')
    toml.write_text(toml.read_text() + '[[methods]]\nname = "zf"\nkind = "zero_filled"\n')
    return folder, toml


def columns() -> list[str]:
    """Of rows.csv."""
    scores = [
        *(f"coverage_{v}" for v in (50, 80, 90, 95)),
        *(f"quantile_{v}" for v in (50, 80, 90)),
        "width_90",
        "crps",
    ]
    scores += ["energy", "spread", "correlation", "sparsification", "law", "rank_p", "variance", "squared_error"]
    regions, ways = ("foreground", "whole"), ("conformal", "adaptive")
    return [
        *("label", "protocol", "volume", "slice", "acceleration", "method"),
        *("psnr_slice", "ssim_slice", "nmse_slice", "mse_slice", "psnr_foreground", "ssim_foreground"),
        *(f"{name}_{region}" for region in regions for name in scores),
        *(f"{way}_{v}_{region}" for way in ways for region in regions for v in (50, 80, 90, 95)),
        *(f"{way}_width_90_{region}" for way in ways for region in regions),
        *("self_check_overall", "self_check_p", "self_check_calls", "self_check_seconds", "pixels_foreground"),
        *("weight", "samples", "calls", "seconds", "seed", "measurement_seed"),
        *("device", "weights", "calibration", "manifest"),
    ]
