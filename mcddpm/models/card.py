"""What a model is: a card, all there is to know of it but for the weights; and the model that it describes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from mcddpm.data.slices import Data
from mcddpm.diffusion.process import Parameterisation
from mcddpm.diffusion.schedules import ScheduleChoice
from mcddpm.models.cascade import Cascade
from mcddpm.models.denoiser import NORMALISATION, Denoiser, Spectrum
from mcddpm.models.supervised import Supervised
from mcddpm.models.unet import UNet
from mcddpm.physics.ct import Radon
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.masks import MaskMix
from mcddpm.physics.operator import Kind, Operator
from mcddpm.system.settings import from_dict

FORMAT = 2  # 1: calibration was part of the card
Model = Denoiser | Supervised
ModelKind = Literal["denoiser", "supervised"]


@dataclass(frozen=True)
class Network:
    """A U-Net (`unet.UNet`), or a cascade of them (`cascade.Cascade`)."""

    stages: int = 0
    """0: one U-Net. Otherwise the number of U-Nets in a cascade, which has no attention."""
    channels: int = 64
    """Width of the first level."""
    multipliers: tuple[int, ...] = (1, 2, 4)
    """Width of each level, as a multiple of `channels`."""
    blocks: int = 1
    """Residual blocks for each level."""
    attention: tuple[int, ...] = (4,)
    """Factors of down-sampling (1, 2, 4, …) at which there is attention."""
    heads: int = 4
    """Attention heads. 0: as many as `head_channels` gives."""
    head_channels: int = 0
    """Channels of an attention head, if `heads` is 0."""
    patch: int = 4
    """Side of the squares of pixels that become channels at the entrance. 1 in the paper."""
    scale_shift: bool = True
    """Whether the time scales and shifts features, instead of being added."""
    residual_resampling: bool = True
    """Whether levels are changed by residual blocks."""
    qkv_by_head: bool = True
    """The order of queries, keys and values in the weights. For imported networks."""
    groups: int = 8
    """Groups of the normalisation."""
    dropout: float = 0.0
    """Part of the features that is dropped in training."""


@dataclass(frozen=True)
class Architecture(Network):
    """A network's settings and its ends. time, noise: whether it is told the level of noise of the diffusion, and that
    of the measurement."""

    in_channels: int = 4
    out_channels: int = 2
    time: bool = True
    noise: bool = False

    def build(self) -> UNet | Cascade:
        settings = dataclasses.asdict(self)
        if self.stages:
            known = ("stages", "channels", "multipliers", "blocks", "patch", "groups", "dropout", "noise")
            return Cascade(self.in_channels, self.out_channels, **{key: settings[key] for key in known})
        return UNet(**{key: value for key, value in settings.items() if key != "stages"})


@dataclass(frozen=True)
class TrainedOn:
    """The operator of the training data, and the size of their images; sizes: the least and the largest side, where
    they differ; coils: the most receivers."""

    kind: Kind = "fourier"
    views: int = 180
    trained_on: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    coils: int = 1

    def knows(self, kind: Kind) -> bool:
        return kind == self.kind or (kind == "sense" and self.coils > 1)

    def operator(self) -> Operator | None:
        """None for Sense: its maps come with each scan."""
        if self.kind == "radon":
            return Radon(self.trained_on, self.views)
        return Fourier() if self.kind == "fourier" else None


@dataclass(frozen=True)
class SpectrumOf:
    """`denoiser.Spectrum` in numbers."""

    std: tuple[float, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ImportedFrom:
    file: str
    sha256: str


@dataclass(frozen=True)
class ModelCard:
    """Of a model, as `model.json` keeps it beside the weights, whose sha256 it holds.

    measured_rms: the range of `physics.measurement.measured_rms` in training, by which a foreign scan is recognised.
    mask: that of training, None where it is not known. validation: PSNR (dB) on slices it was not trained on.
    """

    architecture: Architecture
    kind: ModelKind = "denoiser"
    conditional: bool = True
    residual: bool = False
    parameterisation: Parameterisation = "denoised"
    data_std: float = 0.1
    gain: float = 1.0
    schedule: ScheduleChoice = field(default_factory=ScheduleChoice)
    operator: TrainedOn = field(default_factory=TrainedOn)
    normalisation: str = NORMALISATION
    data: Data = field(default_factory=Data)
    mask: MaskMix | None = None
    licence: str = "not stated"
    made_by: str = ""
    measured_rms: tuple[float, ...] = ()
    spectrum: SpectrumOf | None = None
    step: int = 0
    data_sha256: str = ""
    validation: dict[str, float] = field(default_factory=dict)
    imported_from: ImportedFrom | None = None
    sha256: str = ""
    format: int = FORMAT

    @classmethod
    def read(cls, values: dict[str, Any], where: str) -> ModelCard:
        """From what a `model.json` holds; another version is refused by name."""
        if not isinstance(values, dict) or "architecture" not in values:
            raise ValueError(f"{where} is not the card of a model of ours: it has no architecture")
        result = values.get("format")
        if result not in (1, FORMAT):
            raise ValueError(f"{where} has format {result!r}, expected 1 or {FORMAT}: it needs another mcddpm")
        if result == 1:
            values = {key: value for key, value in values.items() if key not in ("calibration", "self_check")}
            values |= {"format": FORMAT, "mask": values.get("mask") or None, "spectrum": values.get("spectrum") or None}
        return from_dict(cls, values, f"{where}: ")

    def build(self) -> Model:
        """The model, untrained."""
        network = self.architecture.build()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        operator = self.operator.operator()
        if self.kind == "supervised":
            return Supervised(network, operator=operator, residual=self.residual)
        return Denoiser(
            network,
            self.schedule.schedule(),
            parameterisation=self.parameterisation,
            data_std=self.data_std,
            gain=self.gain,
            operator=operator,
            spectrum=Spectrum(self.spectrum.std, self.spectrum.shape) if self.spectrum else None,
            knows_noise=self.architecture.noise,
        )
