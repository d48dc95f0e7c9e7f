"""The models that come with the package: small enough, with a card that says what they are, and each does its work on
the slice of the bundled scan (of a person that none was trained on)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mcddpm import demo, metrics
from mcddpm.data.readers import open_volume
from mcddpm.evaluation import baselines
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import ASSETS, load_model, read_card, shipped
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.masks import random_columns
from mcddpm.physics.measurement import Measurement, measure
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system.settings import differences, from_dict, load, to_dict
from mcddpm.training.checkpoints import validation_of
from mcddpm.training.settings import Config

A = Fourier()


@pytest.fixture(scope="module")
def scan() -> Measurement:
    """The middle slice at 4x."""
    volume = open_volume(demo.SCAN)
    y = volume[len(volume) // 2]
    mask = random_columns(y.shape[-1], acceleration=4, seed=0)
    return measure(y.masked_fill(~mask, 0), mask, A, A.pinv(y))


def psnr(image: torch.Tensor, m: Measurement) -> float:
    assert m.truth is not None
    return float(metrics.psnr(torch.as_tensor(image) * m.scale, m.truth.abs()))


@pytest.mark.parametrize("name", shipped())
def test_a_card_and_at_most_15_megabytes(name: str) -> None:
    folder, card = ASSETS / name, read_card(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 15e6
    assert "CC0" in card.licence and "five people" in card.data.description and card.step > 0
    assert card.validation == validation_of(folder, card.step), "measured quality"
    assert card.validation["step"] == card.step and max(list(card.validation.values())[1:]) > 28
    assert not [text for text in ("/root", "/home") if text in (folder / "config.json").read_text()]


@pytest.mark.parametrize("name", shipped())
def test_it_was_trained_as_its_configuration_says(name: str) -> None:
    told = json.loads((ASSETS / name / "config.json").read_text())["config"]
    asked = to_dict(load(Config, Path(__file__).parents[2] / "configs" / f"{name}.toml"))
    assert differences(to_dict(from_dict(Config, told)), asked) == {}, "keys that came later have their defaults"


def test_the_default_model_reconstructs(scan: Measurement) -> None:
    model = load_model()
    assert isinstance(model, Denoiser)
    one = reconstruct(model, scan, sampler="mean", samples=1, steps=1)
    assert psnr(one.mean, scan) > psnr(baselines.zero_filled(scan).mean, scan) + 5


def test_the_prior_denoises(scan: Measurement) -> None:
    """Noise as strong as the image, in each part: most of it goes. (It is told of no measurement.)"""
    prior = load_model("prior")
    assert isinstance(prior, Denoiser) and scan.truth is not None
    y, nothing = A(scan.truth)[None], torch.zeros(scan.truth.shape[-1], dtype=torch.bool)
    noise = torch.view_as_complex(torch.randn(*y.shape, 2, generator=torch.Generator().manual_seed(0)))
    t = prior.schedule.time_of(0.25)
    with torch.no_grad():
        found = prior.denoise(float(prior.schedule.at(t)[0]) * (y + 0.25 * noise), t, torch.zeros_like(y), nothing)
    noisy, clean = (A.pinv(v)[0].abs() / scan.scale for v in (y + 0.25 * noise, found))
    assert psnr(clean, scan) > psnr(noisy, scan) + 10


@pytest.mark.parametrize("put_back", [False, True])
def test_the_unet_reconstructs(scan: Measurement, put_back: bool) -> None:
    found = baselines.unet(load_model("unet"), scan, put_back=put_back)  # type: ignore[arg-type]
    assert psnr(found.mean, scan) > psnr(baselines.zero_filled(scan).mean, scan) + 2
