"""One step of a training: its batch, learning rate, EMA, and what it says when something is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mcddpm import load_model
from mcddpm.data.phantoms import drawn
from mcddpm.training.run import train
from mcddpm.training.trainer import Diverged, Trainer, learning_rate
from tests.training.small import SMALL, Interrupt, assert_same_training, settings


def test_accumulation_is_the_same_batch(tmp_path: Path) -> None:
    for pieces in (1, 2):
        plain = {"network": SMALL["network"] | {"dropout": 0.0}}
        train(settings(plain, accumulate=pieces, steps=5), tmp_path / str(pieces))
    assert_same_training(tmp_path / "1", tmp_path / "2", tmp_path)


def test_ema_warms_up(tmp_path: Path) -> None:
    """After the first step it is a tenth of the start and nine tenths of the weights, whatever training.ema says."""
    trainer = Trainer(settings(ema=0.9999), tmp_path)
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.advance()
    for start, now, ema in zip(before, trainer.model.parameters(), trainer.ema.parameters(), strict=True):
        assert torch.allclose(ema, 0.1 * start + 0.9 * now, atol=1e-7)


def test_learning_rate_warms_up_and_decays() -> None:
    hyper = settings(warmup=10, steps=110, lr=1.0, final_lr=0.1).training
    rate = [learning_rate(hyper, step) for step in range(111)]
    assert rate[0] == 0.1 and rate[9] == 1.0 and rate[60] == pytest.approx(0.55) and rate[110] == pytest.approx(0.1)


def test_coil_maps_from_a_file(tmp_path: Path) -> None:
    maps = np.exp(1j * np.arange(2 * 16 * 16)).reshape(2, 16, 16).astype(np.complex64)
    np.save(tmp_path / "maps.npy", maps)
    trainer = Trainer(settings({"operator": {"kind": "sense", "maps": str(tmp_path / "maps.npy")}}), tmp_path)
    assert trainer.stream.batch([0]).y_m.shape == (1, 2, 16, 16)


def test_a_diverged_run_keeps_its_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Trainer.loss

    def loss(self: Trainer, *args: object) -> torch.Tensor:
        return honest(self, *args) * (float("nan") if self.step == 10 else 1)

    monkeypatch.setattr(Trainer, "loss", loss)
    with pytest.raises(Diverged, match=r"the loss is nan .* at step 10; slices \[.*\], t \[.*Try a lower training.lr"):
        train(settings(), tmp_path)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008"]
    weights = load_file(tmp_path / "checkpoints/step-00000008/training.safetensors")
    assert all(torch.isfinite(w).all() for w in weights.values() if w.is_floating_point())


def test_a_gradient_that_is_not_finite_changes_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the loss is finite: in lower precision, only the way back may overflow."""
    trainer = Trainer(settings(), tmp_path)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(float("inf")))
    with pytest.raises(Diverged, match="the gradient's norm inf at step 0"):
        trainer.advance()
    assert all(torch.equal(p, old) for p, old in zip(trainer.model.parameters(), before, strict=True))


def test_real_slices_are_told_of(tmp_path: Path) -> None:
    np.save(tmp_path / "real.npy", np.abs(drawn(3, 16, seed=1)))
    values = {"data": {"train": str(tmp_path / "real.npy")}, "simulation": {"phase": 0.0}}
    report = Interrupt()
    Trainer(settings(values), tmp_path / "run", report)
    assert any("its k-space is Hermitian" in text for text in report.said)
    again = Interrupt()
    Trainer(settings(values | {"simulation": {"phase": 1.0}}), tmp_path / "run", again)
    assert again.said == []


def test_the_card_tells_what_was_seen(tmp_path: Path) -> None:
    card = load_model(train(settings(steps=1), tmp_path / "run")).card
    low, high = card.measured_rms
    assert 0 < low < high < 1
    assert len(card.spectrum.std) == 12 and card.spectrum.shape == (16, 16)
    assert card.spectrum.std[0] > 3 * card.spectrum.std[6] > 0
    model = load_model(train(settings({"model": {"spectrum": False}}, steps=1), tmp_path / "flat"))
    assert model.card.spectrum is None and model.spectrum is None


def test_noise_is_added_where_the_scan_is_not_known_exactly(tmp_path: Path) -> None:
    """On measured entries too, where they are noisy."""
    trainer = Trainer(settings({"model": {"noise": True}, "simulation": {"exact": 0.5}}, batch=8), tmp_path)
    ((batch, _, eps),) = trainer.examples()
    exact, mask = batch.noise.flatten() == 0, batch.mask.expand(eps.shape)
    assert 0 < int(exact.sum()) < 8
    assert not eps[exact][mask[exact]].any() and eps[exact][~mask[exact]].all() and eps[~exact].all()
