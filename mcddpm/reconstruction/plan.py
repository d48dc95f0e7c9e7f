"""How samples are drawn: one object from the command line, Python, the viewer and evaluations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mcddpm.diffusion.samplers import SAMPLERS, SamplerName
from mcddpm.diffusion.schedules import Spacing
from mcddpm.system.settings import check_choice


@dataclass(frozen=True)
class DrawSettings:
    """What a `DrawPlan` is made of, not checked yet."""

    samples: int = 20
    """Samples a slice."""
    sampler: SamplerName = "dpmpp_2m_sde"
    """How a sample is drawn: ancestral is the paper's; mean is one network call and one image, whatever is asked."""
    steps: int = 10
    """Steps of the sampler: network calls a sample (heun: 2n - 1)."""
    grid: Spacing | None = None
    """How steps are spread: uniform (the paper's, and ancestral's), log_sigma, karras. Without it: the model's own."""
    seed: int = 0
    """Other seeds draw other samples."""


@dataclass(frozen=True)
class DrawPlan(DrawSettings):
    """How samples of one slice are drawn: samples, sampler, steps, grid, seed."""

    def __post_init__(self) -> None:
        for name, value in (("samples", self.samples), ("steps", self.steps)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected 1 or more")
        check_choice("sampler", self.sampler, SamplerName)
        if self.grid is not None:
            check_choice("grid", self.grid, Spacing)
        if self.sampler == "mean":
            object.__setattr__(self, "samples", 1)
            object.__setattr__(self, "steps", 1)

    def __str__(self) -> str:
        samples = f"{self.samples} sample{'s' if self.samples > 1 else ''}"
        steps = f"{self.steps} step{'s' if self.steps > 1 else ''}"
        return f"{samples} of {self.sampler} in {steps}" + (f" on a {self.grid} grid" if self.grid else "")

    @property
    def calls(self) -> int:
        """Network calls for one sample."""
        return SAMPLERS[self.sampler].calls(self.steps)

    @property
    def spacing(self) -> Spacing | None:
        return self.grid or ("uniform" if self.sampler == "ancestral" else None)

    def is_like(self, other: DrawPlan) -> bool:
        """Whether samples come from the same distribution: all but the seed."""
        return replace(self, seed=0) == replace(other, seed=0)
