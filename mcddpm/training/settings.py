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
from mcddpm.simulation.scans import Simulation
from mcddpm.simulation.wide import Wide
from mcddpm.training.optimisers import Optimiser


@dataclass(frozen=True)
class ModelChoice:
    """What is trained."""

    kind: ModelKind = "denoiser"
    """`denoiser`: a diffusion model. `supervised`: the paper's baseline, zero-filled image in, image out."""
    conditional: bool = True
    """`false` for a prior of full scans, which is shown no measurement."""
    parameterisation: Parameterisation = "denoised"
    """`denoised`: the network predicts the clean image. `eps`: it predicts the noise, as in Eq. 12."""
    noise: bool = False
    """For `denoised`: whether the model learns that measurements are noisy. The truth is then the image without that
    noise, and the network is told its level."""
    data_std: float = 0.1
    """For `denoised`: the std of the unmeasured image after scaling."""
    spectrum: bool = True
    """For `denoised`: whether the std of k-space is measured on the training data and used."""


@dataclass(frozen=True)
class Training:
    """How it is trained."""

    steps: int = 10_000
    """Number of steps. The learning rate has fallen to `final_lr` at the end."""
    batch: int = 8
    """Slices for one step, over all processes and accumulations."""
    strip: int = 0
    """Rows of each slice to train on. 0: all. For one coil and masks of whole columns only; needs `model.spectrum =
    false`."""
    accumulate: int = 1
    """In how many pieces a process computes its part of the batch, to save memory."""
    optimiser: Optimiser = "adamw"
    """The optimiser."""
    lr: float = 3e-4
    """Highest learning rate."""
    warmup: int = 200
    """Steps over which the learning rate rises."""
    final_lr: float = 0.0
    """Learning rate at the end."""
    weight_decay: float = 0.01
    """Weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    ema: float = 0.999
    """Decay of the moving average of the weights, which is the model."""
    times: Literal["uniform", "lognormal"] = "lognormal"
    """How noise levels are drawn: `uniform` in t as in the paper, or `lognormal` in sigma."""
    log_sigma_mean: float = -1.6
    """For `lognormal`: the mean of log sigma."""
    log_sigma_std: float = 1.5
    """For `lognormal`: the std of log sigma."""
    seed: int = 0
    """Decides every slice, mask, time and noise of the run."""
    init: str = ""
    """A model to start from: a shipped model's name, a model folder or a run folder. Empty: random weights."""
    device: str = "auto"
    """`auto` takes a GPU if there is one. Otherwise `cpu`, `cuda` or `cuda:1`."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` takes bfloat16 on GPUs that support it."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the network is compiled. `auto`: on GPUs."""
    log_every: int = 50
    """Steps between two lines of the log."""
    checkpoint_every: int = 500
    """Steps between two checkpoints."""
    checkpoint_minutes: float = 5.0
    """A checkpoint is also written after so many minutes."""
    validate_every: int = 1000
    """Steps between two validations."""
    validation_slices: int = 8
    """Slices in a validation. 0: no validation."""
    validation_samples: int = 4
    """Samples of each of them."""
    validation_steps: int = 10
    """Steps of the sampler in a validation."""


@dataclass(frozen=True)
class Config:
    data: Data = field(default_factory=Data)
    simulation: Simulation = field(default_factory=Simulation)
    wide: Wide = field(default_factory=Wide)
    operator: OperatorChoice = field(default_factory=OperatorChoice)
    mask: MaskMix = field(default_factory=MaskMix)
    schedule: ScheduleChoice = field(default_factory=ScheduleChoice)
    model: ModelChoice = field(default_factory=ModelChoice)
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
