"""A run on disk: what may change between its stretches, what it is repeated from, and two processes for one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mcddpm import load_model
from mcddpm.data.phantoms import drawn
from mcddpm.physics.operator import Kind
from mcddpm.system.settings import from_dict
from mcddpm.training.run import train
from mcddpm.training.settings import Config
from tests.torchrun import session
from tests.training.small import SMALL, Interrupt, assert_same_training, rows, settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": {"beta_scale": 1.0}}, "schedule.beta_scale was 0.5, is 1.0"),
        ({"operator": {"kind": "radon"}}, "operator.kind was 'fourier', is 'radon'"),
        ({"network": {**SMALL["network"], "channels": 16}}, "network.channels was 8, is 16"),
        ({"model": {"data_std": 0.5}}, "model.data_std was 0.1, is 0.5"),
        ({"training": {**SMALL["training"], "seed": 3}}, "training.seed was 0, is 3"),
    ],
)
def test_a_run_cannot_change_what_it_is(tmp_path: Path, short: Path, change: dict, message: str) -> None:
    before = {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=f"another configuration: .*{message}.*Use another --out"):
        train(settings(change), short)
    assert before == {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps. To be read, not changed."""
    run = tmp_path_factory.mktemp("short")
    train(settings(steps=3), run)
    return run


def test_what_the_advice_names_may_change_between_stretches(tmp_path: Path) -> None:
    train(settings(steps=2), tmp_path)
    report = Interrupt()
    train(settings(steps=4, lr=1e-5, warmup=1), tmp_path, report)
    assert any("training.lr was 0.0003, is 1e-05" in text for text in report.said)


def test_a_run_can_be_repeated_from_its_manifest(tmp_path: Path, short: Path) -> None:
    manifest = json.loads((short / "manifest.json").read_text())
    assert set(manifest["data"]) == {"train", "validation"} and len(manifest["data"]["train"]["sha256"]) == 64
    train(from_dict(Config, manifest["config"]), tmp_path)
    a, b = ((run / "model" / "model.safetensors").read_bytes() for run in (short, tmp_path))
    assert a == b


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    images = drawn(3, 16, seed=1)
    np.save(tmp_path / "slices.npy", images)
    data = {"data": {"train": str(tmp_path / "slices.npy")}}
    train(settings(data, steps=2), tmp_path / "run")
    np.save(tmp_path / "slices.npy", 2 * images)
    with pytest.raises(ValueError, match=r"slices.npy is not what .* was trained on: its sha256 has changed"):
        train(settings(data, steps=4), tmp_path / "run")


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot write to the folder"):
        train(settings(), tmp_path / "file" / "run")


def test_starting_from_another_models_weights(tmp_path: Path, short: Path) -> None:
    values = {"operator": {"kind": "radon", "views": 24}, "mask": {"families": ["sparse_views"]}}
    with pytest.raises(ValueError, match="is a model with another operator"):
        train(settings(values, init=str(short)), tmp_path / "ct")
    train(settings(steps=1, lr=1e-12, init=str(short / "model")), tmp_path / "more")
    before, after = (load_model(run).network.state_dict() for run in (short, tmp_path / "more"))
    assert all((after[key] - before[key]).norm() < 1e-6 * before[key].norm().clamp(min=1) for key in before)


def test_a_model_that_learns_of_noise_starts_from_one_that_did_not(tmp_path: Path, short: Path) -> None:
    """What it is told of noise begins with no effect."""
    train(settings({"model": {"noise": True}}, steps=1, lr=1e-12, init=str(short / "model")), tmp_path / "noisy")
    before, after = (load_model(run).network.state_dict() for run in (short, tmp_path / "noisy"))
    assert all((after[key] - before[key]).norm() < 1e-6 * before[key].norm().clamp(min=1) for key in before)
    assert {key.partition(".")[0] for key in after.keys() - before.keys()} == {"noise"}
    assert after["noise.2.weight"].abs().max() < 1e-9


@pytest.mark.parametrize("kind", ["radon", "sense"])
def test_other_operators_train(tmp_path: Path, kind: Kind) -> None:
    values = {"operator": {"kind": kind, "views": 24}}
    if kind == "radon":
        values["mask"] = {"families": ["sparse_views", "limited_angle"], "accelerations": [3]}
    else:
        values["operator"]["maps"] = "simulated:3"
    train(settings(values, steps=6), tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert (model.operator is None) == (kind == "sense") and model.card.operator.kind == kind


def test_two_processes_match_one(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Half the batch each, gloo; then a run begun by two goes on with one, and says what that changes."""
    shared = session(tmp_path_factory)
    assert [shared.ended("training", rank)["code"] for rank in (0, 1)] == [0, 0]
    plain = {"network": SMALL["network"] | {"dropout": 0.0}}
    train(settings(plain, steps=8, checkpoint_every=4), tmp_path / "one")
    two = Path(shutil.copytree(shared.out("training"), tmp_path / "two"))
    assert_same_training(tmp_path / "one", two, tmp_path)
    losses = [rows(run / "log.jsonl")[-1]["loss"] for run in (tmp_path / "one", two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    report = Interrupt()
    train(settings(plain, steps=10, checkpoint_every=4), two, report)
    said = " ".join(report.said)
    assert "2 processes before, 1 now" in said and "not be bit-identical" in said
    assert "training.steps was 8, is 10" in said
