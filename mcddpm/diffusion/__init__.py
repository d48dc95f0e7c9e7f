"""The method, mathematics only: schedules, the diffusion of what was not measured, samplers, an exact example."""

from mcddpm.diffusion.gaussian import GaussianPosterior, GaussianPrior
from mcddpm.diffusion.process import diffuse, l_simple, l_vlb, posterior
from mcddpm.diffusion.samplers import SAMPLERS, Snapshot, sample
from mcddpm.diffusion.schedules import Schedule, cosine, linear, variance_exploding

__all__ = [
    "SAMPLERS",
    "GaussianPosterior",
    "GaussianPrior",
    "Schedule",
    "Snapshot",
    "cosine",
    "diffuse",
    "l_simple",
    "l_vlb",
    "linear",
    "posterior",
    "sample",
    "variance_exploding",
]
