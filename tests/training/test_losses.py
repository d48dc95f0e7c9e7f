"""What is learned: the times of a step, and whether each kind of model learns at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import load_model
from mcddpm.data.phantoms import drawn
from mcddpm.models.supervised import Supervised
from mcddpm.system.settings import from_dict
from mcddpm.training.run import train
from mcddpm.training.settings import Config
from mcddpm.training.trainer import Trainer
from tests.training.small import SMALL, rows, settings


def test_times_follow_the_asked_distribution(tmp_path: Path) -> None:
    trainer = Trainer(settings(batch=4000, times="lognormal"), tmp_path)
    a, b = trainer.model.schedule.at(trainer.objective.times(0))
    log_sigma = (b / a).log()
    assert log_sigma.mean().item() == pytest.approx(-1.6, abs=0.02)
    assert log_sigma.std().item() == pytest.approx(1.5, rel=0.02)
    trainer = Trainer(settings(batch=4000, times="uniform"), tmp_path)
    counts = torch.bincount(trainer.objective.times(0).long(), minlength=1001)
    assert counts[0] == 0 and (counts[1:] == 4).all()


def test_every_step_has_times_of_its_own(tmp_path: Path) -> None:
    for times in ("lognormal", "uniform"):
        objective = Trainer(settings(times=times), tmp_path).objective
        assert torch.equal(objective.times(3), objective.times(3))
        assert not torch.equal(objective.times(3), objective.times(4))


def test_levels_are_weighed_alike(tmp_path: Path) -> None:
    """Where sigma is lognormal: L_simple times 1 + (sigma / s)^2."""
    plain, weighed = (Trainer(settings(times=times), tmp_path) for times in ("uniform", "lognormal"))
    batch, t = plain.stream.batch(range(4)), torch.tensor([1.0, 50.0, 300.0, 1000.0])
    prediction = torch.zeros_like(batch.y_c)
    losses = [trainer.objective.loss(prediction, batch, t, prediction) for trainer in (plain, weighed)]
    expected = 1 + (plain.objective.sigma(t) / 0.1).square()
    assert torch.allclose((losses[1] / losses[0]).double(), expected, rtol=1e-5) and expected[-1] > 100


def test_a_supervised_loss_is_the_mean_squared_error_of_the_parts(tmp_path: Path) -> None:
    trainer = Trainer(settings({"model": {"kind": "supervised"}}), tmp_path)
    batch = trainer.stream.batch(range(4))
    truth = batch.A.pinv(batch.y_0)
    loss = trainer.objective.loss(truth + (3 + 4j), batch, torch.zeros(4), torch.zeros(4))
    assert torch.allclose(loss, torch.full((4,), 25 / 2), rtol=1e-4)


def overfit(tmp_path: Path, size: int, network: dict, **training: object) -> dict[str, float]:
    """The last validation of a run on four drawn slices, on those slices."""
    np.save(tmp_path / "four.npy", drawn(4, size, seed=7))
    hyper = {"batch": 8, "warmup": 20, "ema": 0.98, "validate_every": 10_000, **training}
    values = {
        "data": {"train": str(tmp_path / "four.npy"), "validation": str(tmp_path / "four.npy")},
        "mask": {"accelerations": [4]},
        "model": {"parameterisation": "eps" if hyper.get("times") == "uniform" else "denoised"},
        "network": {"multipliers": [1, 2], "attention": [2], **network},
        "training": hyper,
    }
    train(from_dict(Config, values), tmp_path / "run")
    assert list((tmp_path / "run" / "validation").glob("*.png"))
    return rows(tmp_path / "run" / "validation.jsonl")[-1]


def test_a_tiny_network_overfits_four_slices(tmp_path: Path) -> None:
    row = overfit(tmp_path, 32, {"channels": 16, "patch": 2}, steps=120, lr=3e-3)
    assert row["one_call"] >= row["zero_filled"] + 6


def test_the_papers_recipe_overfits_four_slices(tmp_path: Path) -> None:
    """eps, t uniform: slower to learn, and judged by samples, as an eps-network has no one-call mean."""
    network = {"channels": 24, "multipliers": [1, 1], "patch": 1}
    row = overfit(tmp_path, 16, network, steps=150, lr=2e-3, times="uniform")
    assert row["mean"] >= row["zero_filled"] + 6


def test_a_supervised_network_learns_what_is_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "four.npy", drawn(4, 16, seed=0))
    values = {
        "data": {"train": str(tmp_path / "four.npy"), "validation": str(tmp_path / "four.npy")},
        "model": {"kind": "supervised"},
        "network": {**SMALL["network"], "dropout": 0.0},
    }
    chosen = settings(values, steps=200, lr=3e-3, validate_every=100, validation_slices=4, checkpoint_every=200)
    folder = train(chosen, tmp_path / "run")
    last = rows(tmp_path / "run" / "validation.jsonl")[-1]
    assert last["image"] > last["zero_filled"] + 0.5
    model = load_model(folder)
    assert isinstance(model, Supervised) and model.card.kind == "supervised" and model.card.spectrum is None


def test_a_prior_learns_to_denoise(tmp_path: Path) -> None:
    chosen = settings({"model": {"conditional": False}}, steps=60, lr=2e-3)
    model = load_model(train(chosen, tmp_path / "run"))
    last = rows(tmp_path / "run" / "validation.jsonl")[-1]
    assert last["denoised"] > last["noisy"] + 1
    assert model.card.conditional is False


# --- noisy measurements ---------------------------------------------------------------------------------------------


def test_with_noise_every_entry_that_moves_is_learned(tmp_path: Path) -> None:
    """An error on a measured entry costs as much as one beside it; where the scan is known exactly it costs nothing."""
    trainer = Trainer(settings({"model": {"noise": True}, "simulation": {"exact": 0.5}}), tmp_path)
    batch, t = trainer.stream.batch(range(8)), torch.full((8,), 300.0)
    exact = batch.noise.flatten() == 0
    assert 0 < int(exact.sum()) < 8
    on = batch.y_c + batch.mask * 1.0
    loss = trainer.objective.loss(on, batch, t, torch.zeros_like(batch.y_c))
    assert not loss[exact].any() and loss[~exact].min() > 0
    everywhere = trainer.objective.loss(batch.y_c + 1, batch, t, torch.zeros_like(batch.y_c))
    share = batch.mask.float().mean((1, 2))
    assert torch.allclose((loss / everywhere)[~exact], share[~exact], rtol=1e-4)


def test_what_the_network_is_given_of_a_noisy_measurement(tmp_path: Path) -> None:
    """The state moves on M too, with the truth in it; nothing moves where the scan is known exactly."""
    trainer = Trainer(settings({"model": {"noise": True}}), tmp_path)
    batch = trainer.stream.batch(range(8))
    given: list[Tensor] = []

    def forward(y_t: Tensor, t: Tensor, y_m: Tensor, mask: Tensor, A: object, noise: Tensor) -> Tensor:
        given.extend([y_t, noise])
        return y_t

    trainer.objective.predict(forward, batch, torch.full((8,), 1e-3), torch.zeros_like(batch.y_c))
    y_t, noise = given
    assert torch.equal(noise, batch.noise) and torch.allclose(y_t, batch.y_c, atol=1e-4)
    known = batch.known.expand(y_t.shape)
    assert not y_t[known].any() and (y_t * batch.mask)[batch.noise.flatten() > 0].any()


def test_an_image_of_several_coils_weighs_as_much_as_one_of_one(tmp_path: Path) -> None:
    """The same error of the image, whose energy the coils share."""
    one = {"model": {"noise": True}}
    coils = one | {"operator": {"kind": "sense", "maps": "simulated:4"}}
    trainers = [Trainer(settings(more), tmp_path) for more in (one, coils)]
    losses = []
    for trainer in trainers:
        batch, t = trainer.stream.batch(range(4)), torch.full((4,), 300.0)
        everything = replace(batch, y_c=batch.y_0, mask=torch.zeros_like(batch.mask))
        error = batch.A(torch.full((4, *batch.y_m.shape[-2:]), 0.1 + 0j))
        losses.append(trainer.objective.loss(everything.y_c + error, everything, t, torch.zeros_like(error)))
    assert torch.allclose(*losses, rtol=1e-4)
