"""Validation while a model trains: the best is kept, and can be taken out."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mcddpm import plots
from mcddpm.cli import main
from mcddpm.models.store import read_card, read_model
from mcddpm.training import run
from mcddpm.training.checkpoints import export, validation_of
from mcddpm.training.run import train
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
