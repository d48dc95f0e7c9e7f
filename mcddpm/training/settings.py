"""Every setting of a training. One `Config` describes a model and its training completely, and travels with every
checkpoint; each section stands beside what it configures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mcddpm.data.slices import Data
from mcddpm.diffusion.process import Parameterisation
from mcddpm.diffusion.schedules import ScheduleChoice
from mcddpm.models.card import ModelKind, Network
from mcddpm.physics.masks import MaskMix
from mcddpm.physics.scanner import OperatorChoice
from mcddpm.physics.simulation import Simulation


@dataclass(frozen=True)
class ModelChoice:
    """kind: "denoiser", or "supervised" (the paper's U-Net baseline: zero-filled image in, image out). conditional:
    false for a prior of full scans, which is shown no measurement. parameterisation: eps (Eq. 12) or denoised, and for
    denoised data_std: the std of unmeasured data after scaling; spectrum: that of k-space, from the training data."""

    kind: ModelKind = "denoiser"
    conditional: bool = True
    parameterisation: Parameterisation = "denoised"
    data_std: float = 0.1
    spectrum: bool = True


@dataclass(frozen=True)
class Training:
    """batch: slices a step, over all processes and accumulations. times: "uniform" in t or "lognormal" in sigma. strip:
    rows of each slice to train on, 0 for all; where whole columns are measured, rows are measured independently."""

    steps: int = 10_000
    batch: int = 8
    strip: int = 0
    accumulate: int = 1
    optimiser: Literal["adamw", "muon"] = "adamw"
    lr: float = 3e-4
    warmup: int = 200
    final_lr: float = 0.0
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.999
    times: Literal["uniform", "lognormal"] = "lognormal"
    log_sigma_mean: float = -1.6
    log_sigma_std: float = 1.5
    seed: int = 0
    init: str = ""
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    log_every: int = 50
    checkpoint_every: int = 500
    checkpoint_minutes: float = 5.0
    validate_every: int = 1000
    validation_slices: int = 8
    validation_samples: int = 4
    validation_steps: int = 10


@dataclass(frozen=True)
class Config:
    data: Data = field(default_factory=Data)
    simulation: Simulation = field(default_factory=Simulation)
    operator: OperatorChoice = field(default_factory=OperatorChoice)
    mask: MaskMix = field(default_factory=MaskMix)
    schedule: ScheduleChoice = field(default_factory=ScheduleChoice)
    model: ModelChoice = field(default_factory=ModelChoice)
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
