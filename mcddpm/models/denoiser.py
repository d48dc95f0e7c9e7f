"""Network + operator -> clean estimate and noise in measurement space. The only place where complex becomes channels.

    model.denoise(y_t, t, y_m, mask)   E[y_0 | y_t, y_M], zero where y_M is known exactly
    model.eps(y_t, t, y_m, mask)       the noise that belongs to it, zero there too

y_t, y_m: (B, data) in our centred FFT (or sinograms), scaled as `normalisation` says; mask: bool, broadcast to them;
t: () or (B,), the paper's time, 1 ... T or between. For Sense the operator comes with each measurement: pass `A`.
noise: s, the std of y_M's noise in each part, a number or (B, data); 0, as in the paper, unless it is passed.

    denoise = model.conditioned(y_m, mask, A);  denoise(y_t, t)      the same, with A+ y_M found once for all calls
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mcddpm.diffusion.process import Parameterisation
from mcddpm.diffusion.schedules import Schedule, Spacing
from mcddpm.models.cascade import Cascade, Refine
from mcddpm.models.unet import UNet
from mcddpm.physics.linear import IN_TRAINING, LEAST, LinearEstimate
from mcddpm.physics.operator import Operator
from mcddpm.system.settings import check_choice

if TYPE_CHECKING:
    from mcddpm.models.card import ModelCard

NORMALISATION = "every measurement is divided by max|A+ y_M|"


def to_channels(x: Tensor) -> Tensor:
    """(B, H, W) complex -> (B, 2, H, W); real -> (B, 1, H, W)."""
    return torch.view_as_real(x).movedim(-1, 1) if x.is_complex() else x.unsqueeze(1)


def from_channels(x: Tensor) -> Tensor:
    """(B, 2, H, W) -> (B, H, W) complex; (B, 1, H, W) -> real."""
    return torch.view_as_complex(x.movedim(1, -1).contiguous()) if x.shape[1] == 2 else x.squeeze(1)


def chosen_operator(A: Operator | None, own: Operator | None) -> Operator:
    if A is None and own is None:
        raise ValueError("this model is for several coils, whose maps come with each scan: pass A=Sense(maps)")
    return own if A is None else A  # type: ignore[return-value]


def noise_gain(A: Operator, shape: tuple[int, ...], is_complex: bool) -> float:
    """std of A+ eps for unit noise eps on all of the data: 1 for Fourier and normalised Sense, some 0.04 for Radon."""
    g = torch.Generator().manual_seed(0)
    eps = torch.randn(*shape, 2, generator=g)
    x = A.pinv(torch.view_as_complex(eps) if is_complex else eps[..., 0])
    return float((torch.view_as_real(x) if is_complex else x).square().mean().sqrt())


class Spectrum:
    """The std of k-space, in each part, at 0, 1, 2 ... cycles per field of view from its centre; for this matrix size.

    A larger matrix of the same object has larger values at the same place: in the orthonormal FFT, by sqrt(pixels).
    """

    def __init__(self, std: Sequence[float], shape: Sequence[int]) -> None:
        self.std, self.shape = torch.as_tensor(std, dtype=torch.float32), tuple(shape)
        self._maps: dict[tuple[Any, ...], Tensor] = {}

    @classmethod
    def of(cls, y: Tensor) -> Spectrum:
        """Measured from fully sampled k-space, (N, H, W)."""
        shape = tuple(y.shape[-2:])
        radius = _radius(shape).round().long().flatten()
        power = y.abs().square().reshape(-1, *shape).mean(0).flatten().double() / 2
        count = torch.bincount(radius)
        mean = torch.bincount(radius, weights=power) / count.clamp(min=1)
        return cls([float(f"{value:.4g}") for value in mean.sqrt()], shape)

    def power(self, y: Tensor) -> Tensor:
        """std^2 at every place of k-space like y, (..., H, W); of several coils, (B, C, H, W), each has its share."""
        coils = y.shape[1] if y.ndim == 4 else 1
        key = (tuple(y.shape[-2:]), coils, y.device, y.real.dtype)
        if key not in self._maps:
            index = _radius(key[0]).clamp(max=len(self.std) - 1)
            low = index.floor().long()
            high = (low + 1).clamp(max=len(self.std) - 1)
            std = torch.lerp(self.std[low], self.std[high], index - low)
            pixels = (key[0][0] * key[0][1]) / (self.shape[0] * self.shape[1])
            self._maps[key] = (std.square() * pixels / coils).to(y.device, y.real.dtype)
        return self._maps[key]


def _radius(shape: Sequence[int]) -> Tensor:
    i, j = (torch.arange(n, dtype=torch.float32) - n // 2 for n in shape)
    return torch.hypot(i[:, None], j)


class Seen(NamedTuple):
    """What a call is told of the measurement, which does not change between calls: y_M, M, A; the image A+ y_M, or with
    noise the best linear estimate from y_M alone, and how it is found from y_M and a state together."""

    y_m: Tensor
    mask: Tensor
    A: Operator
    image: Tensor
    linear: LinearEstimate | None = None


class Denoiser(nn.Module):
    """`eps` (Eq. 12): eps = M^c A f([A+(y_t + y_M), A+ y_M], t - 1), exact only for an operator that is onto.

    `denoised`: x_0 = x_w + c_out f([x_w / s, A+ y_M], log sigma) and y_0 = M^c A x_0, where x_w = A+ W y is Wiener's
    estimate from y = y_t / bar_alpha, W = S^2 / (S^2 + sigma^2), and c_out = sigma s / sqrt(sigma^2 + s^2). S(k) is the
    std of k-space at k (`spectrum`), and s (`data_std`) that of A+ y_{M^c}; without a spectrum S is s in the units of
    the data, in which noise of std sigma has std `gain` sigma in the image. Karras et al. (2022) have S = s, and show f
    y / sqrt(sigma^2 + s^2): of unit variance, but nothing but noise far above the data, which f must learn to ignore
    (docs/explanation/training-notes.md). A cascade is told, between its stages, which image its f so far stands for:
    A+ y_M + x_w + c_out P f with P = A+ M^c A, and f - P f.

    With noise, x_w is the best linear estimate from y_M and y together (`physics.linear`), f is shown what y adds to
    that from y_M alone, and P f is what y_M does not contradict. For one coil and s = 0 all of this is as above.
    """

    def __init__(
        self,
        network: UNet | Cascade,
        schedule: Schedule,
        *,
        parameterisation: Parameterisation = "denoised",
        data_std: float = 0.1,
        gain: float = 1.0,
        operator: Operator | None,
        spectrum: Spectrum | None = None,
        knows_noise: bool = False,
    ) -> None:
        super().__init__()
        check_choice("parameterisation", parameterisation, Parameterisation)
        if parameterisation == "eps" and isinstance(network, Cascade):
            raise ValueError("a cascade refines an image, so it goes with parameterisation denoised, not eps")
        if not (data_std > 0 and gain > 0):
            raise ValueError(f"data_std is {data_std} and gain {gain}, expected values above 0")
        self.network, self.schedule = network, schedule
        self.parameterisation, self.data_std, self.gain = parameterisation, data_std, gain
        self.operator, self.spectrum = operator, spectrum
        self.knows_noise = knows_noise  # whether the network was trained on noisy measurements, and is told s
        self.card: ModelCard | None = None
        self.folder: Path | None = None  # where it was loaded from: its calibration lies there
        self.bytes_a_sample: dict[Any, int] = {}  # by size of scan; see `reconstruction.sample.batch_size`

    def denoise(
        self, y_t: Tensor, t: Tensor, y_m: Tensor, mask: Tensor, A: Operator | None = None, noise: Tensor | float = 0.0
    ) -> Tensor:
        return self._denoise(y_t, t, self.see(y_m, mask, A, noise))

    def conditioned(
        self, y_m: Tensor, mask: Tensor, A: Operator | None = None, noise: Tensor | float = 0.0
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """denoise(y_t, t), as samplers want it, for many draws of one scan: y_m is (1, data), y_t (N, data)."""
        return self.conditioned_on(self.see(y_m, mask, A, noise))

    def conditioned_on(self, seen: Seen) -> Callable[[Tensor, Tensor], Tensor]:
        """For one run of a sampler, whose calls start from each other; what is costly was done in `see`."""
        mine = seen if seen.linear is None else seen._replace(linear=seen.linear.afresh())
        return lambda y_t, t: self._denoise(y_t, t, mine)

    def eps(
        self, y_t: Tensor, t: Tensor, y_m: Tensor, mask: Tensor, A: Operator | None = None, noise: Tensor | float = 0.0
    ) -> Tensor:
        bar_alpha, bar_beta, t = self._levels(t, y_t)
        seen = self.see(y_m, mask, A, noise)
        if self.parameterisation == "eps":
            return self._predict_eps(y_t, t, seen)
        y_0 = self._predict(y_t / bar_alpha, bar_beta / bar_alpha, seen)
        return (y_t - bar_alpha * y_0) / bar_beta

    def forward(
        self, y_t: Tensor, t: Tensor, y_m: Tensor, mask: Tensor, A: Operator | None = None, noise: Tensor | float = 0.0
    ) -> Tensor:
        """What it predicts by nature: eps or the clean measurement. (Training goes through here, as DDP wants it.)"""
        return (self.eps if self.parameterisation == "eps" else self.denoise)(y_t, t, y_m, mask, A, noise)

    def grid(self, n: int, spacing: Spacing | None = None, noise: Tensor | float = 0.0) -> Tensor:
        """n steps for a sampler, by default geometric in sigma: from well above the spread of unmeasured data to well
        below it, and below the noise of the measurement. "uniform" is the paper's, uniform in t."""
        schedule, spread = self.schedule.to("cpu"), self.data_std / self.gain
        if spacing == "uniform":
            return schedule.grid(n, spacing)
        high = min(30 * spread, float(schedule.sigma[-1]))
        low, s = min(spread / 20, high / 2), float(torch.as_tensor(noise).max())
        low = min(low, max(low - 2 * s / 3, s / 3))  # a third of s where that is below; as it was for no noise
        return schedule.grid(n, spacing or "log_sigma", sigma_min=low, sigma_max=high)

    def see(self, y_m: Tensor, mask: Tensor, A: Operator | None, noise: Tensor | float) -> Seen:
        A, noisy = chosen_operator(A, self.operator), bool(torch.as_tensor(noise).any())
        if self.parameterisation == "eps" and noisy:
            raise ValueError("a network that predicts eps keeps what was measured: it takes noise 0")
        image = A.pinv(y_m)
        if not (noisy or self.knows_noise):
            return Seen(y_m, mask, A, image)
        power = torch.full_like(image[0].real, self.data_std**2)
        if self.spectrum is not None:
            power = self.spectrum.power(image)
        linear = LinearEstimate(A, y_m, mask, noise, power, **(IN_TRAINING if self.training else {}))
        return Seen(y_m, mask, A, linear.measured, linear)

    def _denoise(self, y_t: Tensor, t: Tensor, seen: Seen) -> Tensor:
        bar_alpha, bar_beta, t = self._levels(t, y_t)
        if self.parameterisation == "denoised":
            return self._predict(y_t / bar_alpha, bar_beta / bar_alpha, seen)
        return (y_t - bar_beta * self._predict_eps(y_t, t, seen)) / bar_alpha

    def _predict_eps(self, y_t: Tensor, t: Tensor, seen: Seen) -> Tensor:
        measured = seen.image.expand(len(y_t), *seen.image.shape[1:])
        images = torch.cat([to_channels(seen.A.pinv(y_t + seen.y_m)), to_channels(measured)], dim=1)
        f = self._run(images, t - 1)  # the authors count from 0
        return seen.A(f).masked_fill(seen.mask, 0)

    def _predict(self, y: Tensor, sigma: Tensor, seen: Seen) -> Tensor:
        A, s, linear = seen.A, self.data_std, seen.linear
        x_w = self._wiener(y, sigma, A) if linear is None else linear(y, sigma)
        measured = seen.image.expand_as(x_w)
        beyond, gain = (x_w, self.gain) if linear is None else (x_w - measured, self.gain * linear.gain)
        sigma = gain * sigma.reshape(-1, 1, 1)
        c_out = sigma * s / (sigma.square() + s**2).sqrt()
        images = torch.cat([to_channels(beyond / s), to_channels(measured)], dim=1)

        def kept(own: Tensor) -> Tensor:
            if linear is None:
                return A.pinv(A(own).masked_fill(seen.mask, 0))
            return linear.consistent(own, c_out)

        def refine(f: Tensor) -> Tensor:
            own = from_channels(f.to(images.dtype))
            part = kept(own)
            return torch.cat([to_channels(measured + beyond + c_out * part), to_channels(own - part)], dim=1)

        # Far above the data all levels look alike to f, and few are met in training: there it is told the same level.
        time = 100 * sigma.flatten().clamp(max=100 * s).log()
        if linear is None:
            return A(x_w + c_out * self._run(images, time, refine)).masked_fill(seen.mask, 0)
        level = 100 * (gain * linear.level).clamp(min=LEAST).log().flatten().expand(len(y))
        f = self._run(images, time, refine, level if self.knows_noise else None)
        return A(x_w + c_out * kept(f)).masked_fill(linear.known, 0)

    def _wiener(self, y: Tensor, sigma: Tensor, A: Operator) -> Tensor:
        power = (self.data_std / self.gain) ** 2 if self.spectrum is None else self.spectrum.power(y)
        return A.pinv(y * (power / (power + sigma.square())))

    def _run(self, images: Tensor, time: Tensor, refine: Refine | None = None, noise: Tensor | None = None) -> Tensor:
        """f, in the network's own precision inside and in that of the images outside."""
        own = next(self.network.parameters(), images).dtype
        x = images.to(own).contiguous(memory_format=torch.channels_last)
        told: dict[str, Tensor] = {} if noise is None else {"noise": noise.float()}
        more = (refine,) if isinstance(self.network, Cascade) else ()
        f = self.network(x, time.float(), *more, **told)
        return from_channels(f.to(images.dtype))

    def _levels(self, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """bar_alpha and bar_beta as (B, 1, ...) in y's precision, and t as (B,)."""
        if self.schedule.alpha.device != y.device:
            self.schedule = self.schedule.to(y.device)
        t = torch.as_tensor(t, device=y.device).expand(len(y))
        real = y.real.dtype if y.is_complex() else y.dtype
        a, b = (value.to(real).reshape(-1, *[1] * (y.ndim - 1)) for value in self.schedule.at(t))
        return a, b, t
