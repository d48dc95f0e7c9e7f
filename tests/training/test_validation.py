"""Validation while a model trains: the best is kept, and can be taken out."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import metrics, plots
from mcddpm.cli import main
from mcddpm.models.store import read_card, read_model
from mcddpm.system.seeds import seed_of
from mcddpm.training import run, validation
from mcddpm.training.checkpoints import export, validation_of
from mcddpm.training.run import train
from mcddpm.training.setup import stream_of, validation_slices
from mcddpm.training.validation import validate
from tests.problems import tiny
from tests.training.small import settings


def test_the_best_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    """Of four validations the second is the best; stopped and gone on with after the third, it still is."""
    psnr = {5: 20.0, 10: 22.0, 15: 21.0, 20: 21.5, 25: 10.0}
    seen: dict[int, dict[str, Tensor]] = {}

    def validated(model, stream, hyper, device):
        step = 5 * (len(seen) + 1)
        seen[step] = {key: value.clone() for key, value in model.network.state_dict().items()}
        return {"zero_filled": 30.0, "mean": psnr[step], "one_call": 40.0}, [[plots.Panel("x", np.zeros((4, 4)))]]

    monkeypatch.setattr(run, "validate", validated)
    often = {"validate_every": 5, "checkpoint_every": 5}
    for steps in (15, 20):
        train(settings(steps=steps, **often), tmp_path / "run")
    export(tmp_path / "run", tmp_path / "best", best=True)
    card, weights = read_model(tmp_path / "best")
    assert card.step == 10 and card.data_sha256 and all(torch.equal(weights[k], seen[10][k]) for k in weights)
    assert card.validation == {"step": 10, "zero_filled": 30.0, "mean": 22.0, "one_call": 40.0}
    assert read_card(tmp_path / "run").step == 20 and validation_of(tmp_path, 20) == {}
    assert validation_of(tmp_path / "run", 19)["step"] == 15
    train(settings(steps=25, validation_slices=3, **often), tmp_path / "run")
    assert read_card(tmp_path / "run" / "best").step == 25, "on other slices, the first is the best"
    shutil.rmtree(tmp_path / "run" / "best")
    assert main(["weights", "export", str(tmp_path / "run"), "--best", "--out", str(tmp_path / "none")]) == 2
    assert "holds no best model" in capfd.readouterr().err


def test_validation_is_on_the_same_measurements_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spread over the slices, each with a mask (and noise) of its own."""
    chosen = settings(validation_slices=3)
    stream, model = stream_of(chosen, validation_slices(chosen)), tiny(shape=(16, 16))
    asked: list[tuple[list[int], list[int]]] = []
    measure = stream.measure
    monkeypatch.setattr(stream, "measure", lambda index, seeds: asked.append((index, seeds)) or measure(index, seeds))
    found = [validate(model, stream, chosen.training, torch.device("cpu")) for _ in range(2)]
    assert asked[:3] == asked[3:] and [index for index, _ in asked[:3]] == [[0], [8], [15]]
    assert len({seed for _, (seed,) in asked}) == 3
    assert found[0][0] == found[1][0] and set(found[0][0]) == {"zero_filled", "mean", "one_call"}
    pictures = [panel.title for panel in found[0][1][0]]
    assert pictures == ["truth", "zero filled", "mean", "one call", "std"]


def test_psnr_is_of_the_zero_filled_image() -> None:
    chosen = settings(validation_slices=1)
    stream = stream_of(chosen, validation_slices(chosen))
    row, _ = validate(tiny(shape=(16, 16)), stream, chosen.training, torch.device("cpu"))
    batch = stream.measure([0], [seed_of(chosen.training.seed, 4, 0)])
    truth, zero = (stream.A.pinv(y)[0].abs() for y in (batch.y_m + batch.y_c, batch.y_m))
    mse = float((truth - zero).square().mean())
    assert row["zero_filled"] == pytest.approx(10 * math.log10(float(truth.max()) ** 2 / mse), abs=1e-4)


def test_noisy_measurements_are_validated_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is told the noise; nothing is held; and the truth has none."""
    chosen = settings({"model": {"noise": True}}, validation_slices=1)
    stream, model = stream_of(chosen, validation_slices(chosen)), tiny({"model": {"noise": True}}, shape=(16, 16))
    batch = stream.measure([0], [seed_of(chosen.training.seed, 4, 0)])
    told, known = [], []
    conditioned = model.conditioned
    monkeypatch.setattr(model, "conditioned", lambda *args: told.append(args[3]) or conditioned(*args))
    own = validation.sample
    monkeypatch.setattr(validation, "sample", lambda *args, **more: known.append(args[1:3]) or own(*args, **more))
    psnr, _ = validate(model, stream, chosen.training, torch.device("cpu"))
    assert float(batch.noise) > 0 and all(torch.equal(noise, batch.noise) for noise in told) and told
    assert not any(y_m.any() or mask.any() for y_m, mask in known)
    truth = batch.A.pinv(batch.y_c)[0].abs()
    assert psnr["zero_filled"] == pytest.approx(float(metrics.psnr(batch.A.pinv(batch.y_m)[0].abs(), truth)))
