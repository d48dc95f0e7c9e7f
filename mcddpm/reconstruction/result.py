"""What came out: samples, their mean and std, and what a person should know of them."""

from __future__ import annotations

import base64
import html
import io
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from mcddpm import __version__
from mcddpm.physics import masks
from mcddpm.physics.measurement import Measurement, NoiseSource
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.system.progress import Notice
from mcddpm.system.settings import to_dict

if TYPE_CHECKING:
    from mcddpm.plots import Figure

Array = Any  # numpy.ndarray or torch.Tensor, as the k-space was


class Interval(NamedTuple):
    """The images between which the truth lies, and what is to be known of them."""

    lower: Array
    upper: Array
    notices: tuple[Notice, ...] = ()


class Stretches(Protocol):
    """A calibration: by what std is to be multiplied, pixel by pixel; and what is to be known of that."""

    def stretch(
        self, recon: Reconstruction, mean: Tensor, std: Tensor, level: float, surprise: float | None
    ) -> tuple[Tensor, tuple[Notice, ...]]: ...


@dataclass(frozen=True, repr=False)
class Reconstruction:
    """samples: (N, H, W), complex for MRI; of one coil without noise, their FFT is on M what was measured. calls: a
    sample's. weights: the sha256 of the model's. noise: the std in each part (rms) that was used, in the data's units,
    and where it is from.

    mean and std are those of magnitudes |x| for MRI, as in the paper, and of values for CT; (H, W).
    """

    samples: Array
    calls: int
    notices: tuple[Notice, ...] = ()
    scale: float = 1.0
    acceleration: float = math.nan
    plan: DrawPlan | None = None
    operator: str = ""
    weights: str = ""
    noise: float = 0.0
    noise_from: NoiseSource = "none"

    def __repr__(self) -> str:
        count, height, width = self.samples.shape
        message = f"{count} sample{'s' if count > 1 else ''} of {height} x {width}"
        message += f" from {self.acceleration:.1f}x" if math.isfinite(self.acceleration) else ""
        calls = self.calls * count
        message += f", {calls} network call{'' if calls == 1 else 's'}"
        return " ".join(f"Reconstruction({message}{''.join(f'; {notice}' for notice in self.notices)})".split())

    @classmethod
    def of(cls, measurement: Measurement, images: Tensor, calls: int, **settings: Any) -> Reconstruction:
        """Of images (N, H, W) in the scale of a measurement; what is to be known of that comes first."""
        samples = (images / measurement.scale).to(measurement.y_m.device)
        notices = (*measurement.notices, *settings.pop("notices", ()))
        return cls(
            samples.numpy() if measurement.from_numpy else samples,
            calls,
            notices,
            measurement.scale,
            masks.acceleration(measurement.mask),
            operator=measurement.operator.kind,
            **settings,
        )

    @cached_property
    def _moments(self) -> tuple[Array, Array]:
        shown = self._shown
        std = shown.std(0) if len(shown) > 1 else torch.full_like(shown[0], torch.nan)
        return self._alike(shown.mean(0)), self._alike(std)

    @property
    def _shown(self) -> Tensor:
        samples = torch.as_tensor(self.samples)
        return samples.abs() if samples.is_complex() else samples

    @property
    def mean(self) -> Array:
        return self._moments[0]

    @property
    def std(self) -> Array:
        """NaN if there is only one sample."""
        return self._moments[1]

    def interval(self, calibration: Stretches, level: float = 0.9, surprise: float | None = None) -> Interval:
        """The lower and the upper image between which the truth lies, averaged over slices, in a part `level` of the
        pixels: mean -+ factor std, with the factors of `mcddpm.uncertainty.load_calibration`. surprise: what a
        self-check of the scan said (`overall`): a scan that surprises the model gets wider intervals."""
        if len(self.samples) < 2:
            raise ValueError(f"there is {len(self.samples)} sample, which has no std: an interval takes 2 or more")
        mean, std = (torch.as_tensor(image) * self.scale for image in (self.mean, self.std))
        stretch, notices = calibration.stretch(self, mean, std, level, surprise)
        half = stretch * std
        lower = (mean - half).clamp(min=0) if torch.as_tensor(self.samples).is_complex() else mean - half
        return Interval(self._alike(lower / self.scale), self._alike((mean + half) / self.scale), notices)

    def _alike(self, values: Tensor) -> Array:
        return values.numpy() if isinstance(self.samples, np.ndarray) else values

    # To look at, and to keep.

    def plot(self) -> Figure:
        """Mean, std and the first sample, beside each other: a matplotlib figure."""
        from mcddpm import plots

        mean, std = (np.asarray(torch.as_tensor(image).cpu()) for image in (self.mean, self.std))
        top = float(mean.max())
        row = [plots.Panel(f"mean of {len(self.samples)}", mean, min(float(mean.min()), 0.0), top)]
        if len(self.samples) > 1:
            row.append(plots.Panel("std", std, 0, None, "magma"))
        row.append(plots.Panel("one sample", self._shown[0].cpu().numpy(), min(float(mean.min()), 0.0), top))
        return plots.figure_of([row], dark=True)

    def _repr_html_(self) -> str:
        picture = io.BytesIO()
        figure = self.plot()
        figure.savefig(picture, dpi=80, facecolor=figure.get_facecolor())
        source = base64.b64encode(picture.getvalue()).decode()
        return f'<p>{html.escape(repr(self))}</p><img alt="mean, std, sample" src="data:image/png;base64,{source}">'

    def save(self, path: str | Path) -> None:
        """By the ending: .h5 (samples, mean, std), .nii or .nii.gz (mean and std), or a folder of DICOM images."""
        from mcddpm.data import writers

        samples, mean, std = (np.asarray(torch.as_tensor(v).cpu())[None] for v in (self.samples, self.mean, self.std))
        provenance = {
            "made_by": f"mcddpm {__version__}",
            "model": {"sha256": self.weights},
            "plan": None if self.plan is None else to_dict(self.plan),
            "calls": self.calls,
            "scale": [self.scale],
            "noise": {"std": [self.noise], "from": [self.noise_from]},
            "warnings": [notice.text for notice in self.notices],
        }
        modality: Any = "CT" if self.operator == "radon" else "MR"
        result = writers.Result(mean, std if len(self.samples) > 1 else None, provenance, samples, modality=modality)
        writers.write(Path(path), result)
