"""A training on scans as wide as real ones: it resumes, says on what it was trained, and refuses what does not go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mcddpm.data.phantoms import drawn
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import load_model
from mcddpm.physics.coils import coil_maps
from mcddpm.physics.masks import random_columns
from mcddpm.physics.measurement import Measurement
from mcddpm.physics.sense import Sense
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.training.run import train
from mcddpm.training.settings import Config
from tests.training.small import CASCADE, settings


def wide(folder: Path, more: dict[str, Any] | None = None, **training: object) -> Config:
    np.save(folder / "heads.npy", np.abs(drawn(5, 24, seed=1)))
    values = {
        "data": {"train": str(folder / "heads.npy"), "validation": str(folder / "heads.npy")},
        "simulation": {"wide": True},
        "model": {"noise": True},
        "wide": {"sizes": [16, 24], "coils": [1, 6]},
        "network": CASCADE | {"dropout": 0.0},
    }
    return settings(values | (more or {}), **({"batch": 4, "accumulate": 2} | training))


def test_it_resumes_and_its_card_says_on_what_it_was_trained(tmp_path: Path) -> None:
    train(wide(tmp_path, steps=6, validate_every=6), tmp_path / "whole")
    for steps in (3, 6):
        train(wide(tmp_path, steps=steps, validate_every=6), tmp_path / "in two")
    whole, in_two = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "in two"))
    assert all(torch.equal(whole[key], in_two[key]) for key in whole)
    model = load_model(tmp_path / "whole")
    assert isinstance(model, Denoiser) and model.card is not None and model.knows_noise
    trained = model.card.operator
    assert (trained.kind, trained.sizes, trained.coils) == ("fourier", (16, 24), 6)
    assert model.card.mask is not None and model.card.mask.accelerations == (2.0, 12.0)
    assert {"gaussian_2d", "random_columns"} <= set(model.card.mask.families)


def test_scans_of_several_coils_are_none_that_it_does_not_know(tmp_path: Path) -> None:
    """Unless they are far larger than those of training."""
    model = load_model(train(wide(tmp_path, steps=2), tmp_path / "run"))
    assert isinstance(model, Denoiser)
    kinds = {}
    for size in (24, 64):
        y = Sense(coil_maps(3, (size, size), 0))(torch.from_numpy(drawn(1, size, seed=3))[0])
        m = Measurement.from_kspace(y, random_columns(size, acceleration=3, seed=0), noise=0.02 * float(y.abs().std()))
        recon = reconstruct(model, m, samples=2, steps=3)
        assert torch.isfinite(torch.view_as_real(torch.as_tensor(recon.samples))).all()
        kinds[size] = {notice.kind for notice in recon.notices} - {"energy"}
    assert kinds == {24: set(), 64: {"matrix"}}


@pytest.mark.parametrize(
    "more",
    [{"model": {"noise": False}}, {"operator": {"kind": "sense", "maps": "simulated:2"}}],
)
def test_what_does_not_go_with_it_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"simulation\.wide draws coils and noise: it takes operator fourier, model"):
        train(wide(tmp_path, more), tmp_path / "run")
    with pytest.raises(ValueError, match=r"and no strip"):
        train(wide(tmp_path, strip=8), tmp_path / "run")
