"""Models on disk: what is written comes back the same, and nothing damaged or foreign is taken for a model."""

from __future__ import annotations

import inspect
import json
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mcddpm import load_model
from mcddpm.models import store
from mcddpm.models.card import ModelCard
from mcddpm.models.denoiser import NORMALISATION, Denoiser
from mcddpm.models.store import (
    check_part,
    read_card,
    read_model,
    read_part,
    save_model,
    shipped,
    write_model,
    write_part,
)
from mcddpm.system import files
from tests.problems import TINY, randn, tiny


def saved(folder: Path, model: Denoiser) -> Path:
    assert model.card is not None
    save_model(folder, model.network.state_dict(), model.card)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", tiny())


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"model": {"parameterisation": "eps", "data_std": 0.3}, "schedule": {"name": "linear", "beta_scale": 1.0}},
        {"operator": {"kind": "radon", "views": 12}, "schedule": {"name": "variance_exploding", "sigma_max": 50.0}},
    ],
)
def test_weights_reload_to_identical_outputs(tmp_path: Path, extra: dict) -> None:
    model = tiny(extra, (16, 16))
    again = load_model(saved(tmp_path / "model", model))
    assert isinstance(again, Denoiser) and again.operator is not None
    shape = again.operator.data_shape or (16, 16)
    mask = torch.arange(shape[1]) % 4 == 0
    dtype = torch.float32 if extra.get("operator") else torch.complex64
    y_m, y_t = (randn(2, *shape, dtype=dtype, seed=k) for k in (1, 2))
    y_m, y_t, t = y_m * mask, y_t * ~mask, torch.tensor([3.0, 70.0])
    assert torch.equal(model.denoise(y_t, t, y_m, mask), again.denoise(y_t, t, y_m, mask))
    assert torch.equal(model.schedule.bar_beta, again.schedule.bar_beta)
    assert model.data_std == again.data_std and model.parameterisation == again.parameterisation
    assert model.gain == again.gain


def test_a_loaded_model_knows_where_it_came_from_and_does_not_learn(folder: Path) -> None:
    model = load_model(folder)
    assert model.folder == folder and model.card is not None and model.card.sha256
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_the_card_says_everything(tmp_path: Path) -> None:
    saved(tmp_path / "model", tiny({"data": {"licence": "CC0", "description": "heads"}}))
    written = json.loads((tmp_path / "model" / "model.json").read_text())
    needed = ("architecture", "parameterisation", "schedule", "operator", "normalisation", "data", "licence", "sha256")
    assert all(key in written for key in needed)
    assert written["licence"] == "CC0" and written["sha256"] == files.sha256(tmp_path / "model/model.safetensors")
    assert written["normalisation"] == NORMALISATION and written["format"] == 2


def test_a_card_comes_back_as_it_was(tmp_path: Path) -> None:
    model = tiny()
    assert model.card is not None
    card = replace(model.card, step=7, measured_rms=(0.1, 0.2), validation={"mean": 30.5}, licence="CC0")
    save_model(tmp_path / "m", model.network.state_dict(), card)
    read = read_card(tmp_path / "m")
    assert replace(read, sha256="") == card and read.sha256 == files.sha256(tmp_path / "m" / "model.safetensors")


def test_nothing_at_load_time_can_change_a_model() -> None:
    """`load_model` takes a path and a device, and nothing that the card decides."""
    assert list(inspect.signature(load_model).parameters) == ["name_or_path", "device"]


# --- damage ---------------------------------------------------------------------------------------------------------


def damage(folder: Path, how: str) -> None:
    path = folder / "model.safetensors"
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "flipped":
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(bytes(data))
    elif how == "no json":
        (folder / "model.json").unlink()
    elif how == "no weights":
        path.unlink()
    elif how == "another's weights":
        path.write_bytes(b"no safetensors")
        notes = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps(notes | {"sha256": files.sha256(path)}))
    else:
        text = {"bad json": b"{", "foreign json": b"[]", "no text": b"\xff\xfe", "no hash": b"{}"}
        (folder / "model.json").write_bytes(text[how])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "model.safetensors is damaged: its sha256 is not the one in model.json"),
        ("flipped", "model.safetensors is damaged"),
        ("no json", "model.json is missing"),
        ("no weights", "model.safetensors is missing"),
        ("another's weights", "is not a checkpoint of ours: model cannot be read"),
        ("bad json", "is not a checkpoint of ours"),
        ("foreign json", "is not a checkpoint of ours"),
        ("no text", "is not a checkpoint of ours"),
        ("no hash", "is not a checkpoint of ours"),
    ],
)
def test_damage_is_seen(folder: Path, how: str, message: str) -> None:
    damage(folder, how)
    with pytest.raises(ValueError, match=message):
        load_model(folder)
    if how != "another's weights":  # which a look at the card does not read
        with pytest.raises(ValueError, match=message):
            read_card(folder)


@pytest.mark.parametrize("how", ["cut", "flipped", "bad json"])
def test_damage_is_seen_in_what_was_whole_a_moment_ago(folder: Path, how: str) -> None:
    """Cards and hashes are remembered only for as long as their files are as they were."""
    assert load_model(folder) is not None and read_card(folder).step == 0
    damage(folder, how)
    with pytest.raises(ValueError, match=r"is damaged|is not a checkpoint of ours"):
        load_model(folder)


def test_a_card_is_read_anew_when_its_file_is_new(folder: Path) -> None:
    model = load_model(folder)
    assert read_card(folder) is read_card(folder) and model.card is not None
    save_model(folder, model.network.state_dict(), replace(model.card, step=9), fresh=False)
    assert read_card(folder).step == 9


def test_the_hash_that_is_written_is_not_a_remembered_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files under one name, of one size and time, as a coarse clock gives them."""
    own = store.save_file

    def coarse(tensors: dict, path: Path) -> None:
        own(tensors, path)
        os.utime(path, ns=(0, 0))

    monkeypatch.setattr(store, "save_file", coarse)
    for value in (1.0, 2.0):
        write_part(tmp_path, "state", {"x": torch.full((3,), value)}, {})
    monkeypatch.undo()
    os.utime(tmp_path / "state.safetensors")
    assert read_part(tmp_path, "state")[1]["x"].tolist() == [2.0, 2.0, 2.0]


def test_another_architecture_lists_the_first_mismatches(tmp_path: Path) -> None:
    model, other = tiny(), tiny({"network": TINY["network"] | {"channels": 16}})
    assert other.card is not None
    save_model(tmp_path / "model", model.network.state_dict(), other.card)
    told = r"another architecture: time.0.weight has shape \(32, 8\), expected \(64, 16\).* \(and \d+ more\)"
    with pytest.raises(ValueError, match=told):
        load_model(tmp_path / "model")


def test_weights_that_are_missing_or_too_many_are_named(tmp_path: Path) -> None:
    model = tiny()
    weights = model.network.state_dict()
    first = next(iter(weights))
    assert model.card is not None
    save_model(tmp_path / "m", {k: v for k, v in weights.items() if k != first} | {"x": torch.zeros(2)}, model.card)
    with pytest.raises(ValueError, match=f"{first} is missing; x is not part of the network"):
        load_model(tmp_path / "m")


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no model .*none.*: neither a folder nor one of those shipped .*default"):
        load_model(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is not a model folder"):
        load_model(tmp_path / "file")


# --- writing --------------------------------------------------------------------------------------------------------


def test_an_existing_folder_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(ValueError, match="is there already"):
        saved(folder, tiny(seed=1))
    assert torch.equal(load_model(folder).network.time[0].weight, tiny().network.time[0].weight)


def test_a_model_takes_the_place_of_an_older_one(folder: Path) -> None:
    other = tiny(seed=1)
    (folder / "left over").write_text("x")
    assert other.card is not None
    save_model(folder, other.network.state_dict(), other.card, fresh=False)
    assert torch.equal(load_model(folder).network.time[0].weight, other.network.time[0].weight)
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the end of the disk."""
    model = tiny()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match="cannot be written"):
            saved(tmp_path / "model", model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert list(tmp_path.iterdir()) == []


def test_parts_keep_tensors_as_they_are_and_notes(tmp_path: Path) -> None:
    """Whatever layout they have in memory: safetensors knows neither channels_last nor shared storage."""
    x = randn(2, 3, 4, 5, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    tensors = {"x": x, "view": x[:, 1], "whole": torch.tensor([2**40]), "low": x.bfloat16()}
    write_part(tmp_path, "state", tensors, {"step": 3})
    notes, back = read_part(tmp_path, "state")
    assert notes == {"step": 3, "sha256": files.sha256(tmp_path / "state.safetensors")} == check_part(tmp_path, "state")
    assert back.keys() == tensors.keys()
    for key, value in tensors.items():
        assert back[key].dtype == value.dtype and torch.equal(back[key], value)


# --- runs -----------------------------------------------------------------------------------------------------------


def checkpoint(run: Path, step: int, seed: int) -> Path:
    model = tiny(seed=seed)
    assert model.card is not None
    folder = run / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    write_model(folder, model.network.state_dict(), replace(model.card, step=step))
    write_part(folder, "training", {"x": torch.zeros(1)}, {"step": step})
    return folder


def test_a_run_is_its_newest_checkpoint(tmp_path: Path) -> None:
    for step in (90, 100, 1000):
        newest = checkpoint(tmp_path, step, seed=step)
    model = load_model(tmp_path)
    assert model.folder == newest and model.card is not None and model.card.step == 1000
    assert torch.equal(model.network.time[0].weight, tiny(seed=1000).network.time[0].weight)


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="holds no whole checkpoint yet"):
        load_model(tmp_path)


# --- shipped --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_shipped_models_are_found_by_name_from_any_folder(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    card, weights = read_model(store.model_folder(name))
    assert isinstance(card, ModelCard) and card.sha256 == files.sha256(store.ASSETS / name / "model.safetensors")
    with torch.device("meta"):
        assert card.architecture.build().state_dict().keys() == weights.keys()
