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
    """stages: 0 for a U-Net (see `unet.UNet`), or how many a cascade has (see `cascade.Cascade`, which knows channels,
    multipliers, blocks, patch, groups and dropout)."""

    stages: int = 0
    channels: int = 64
    multipliers: tuple[int, ...] = (1, 2, 4)
    blocks: int = 1
    attention: tuple[int, ...] = (4,)
    heads: int = 4
    head_channels: int = 0
    patch: int = 4
    scale_shift: bool = True
    residual_resampling: bool = True
    qkv_by_head: bool = True
    groups: int = 8
    dropout: float = 0.0


@dataclass(frozen=True)
class Architecture(Network):
    """A network's settings and its ends. time: whether it is told a level of noise."""

    in_channels: int = 4
    out_channels: int = 2
    time: bool = True

    def build(self) -> UNet | Cascade:
        settings = dataclasses.asdict(self)
        if self.stages:
            known = ("stages", "channels", "multipliers", "blocks", "patch", "groups", "dropout")
            return Cascade(self.in_channels, self.out_channels, **{key: settings[key] for key in known})
        return UNet(**{key: value for key, value in settings.items() if key != "stages"})


@dataclass(frozen=True)
class TrainedOn:
    """The operator of the training data, and the size of their images."""

    kind: Kind = "fourier"
    views: int = 180
    trained_on: tuple[int, ...] = ()

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
        found = values.get("format")
        if found not in (1, FORMAT):
            raise ValueError(f"{where} has format {found!r}, expected 1 or {FORMAT}: it needs another mcddpm")
        if found == 1:
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
        )
