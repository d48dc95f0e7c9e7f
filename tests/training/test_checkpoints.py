"""Training states on disk: the last two are kept, a torn one is set aside, and a model can be taken out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mcddpm import load_model
from mcddpm.data.phantoms import drawn
from mcddpm.models.store import newest_whole
from mcddpm.training.checkpoints import export, load_training, save_training, set_torn_aside
from mcddpm.training.run import train
from tests.problems import tiny
from tests.training.small import rows, settings


def states(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def save(run: Path, step: int) -> None:
    model = tiny(shape=(16, 16))
    assert model.card is not None
    save_training(run, step, model.network.state_dict(), model.card, {"x": torch.tensor([step])}, {"told": "all"})


def cut(folder: Path) -> None:
    path = folder / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def test_old_ones_go_and_a_torn_one_falls_back(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert states(tmp_path) == ["step-00000002", "step-00000003"]
    assert newest_whole(tmp_path) == tmp_path / "checkpoints" / "step-00000003"
    cut(tmp_path / "checkpoints" / "step-00000003")
    with pytest.warns(UserWarning, match=r"is damaged.*using the checkpoint before it"):
        whole = newest_whole(tmp_path)
    assert whole is not None and whole.name == "step-00000002"
    notes, state, _ = load_training(whole)
    assert notes["step"] == 2 and notes["told"] == "all" and state["x"].item() == 2


def test_a_torn_one_set_aside_is_not_one_of_the_two_that_are_kept(tmp_path: Path) -> None:
    for step in (2, 3):
        save(tmp_path, step)
    cut(tmp_path / "checkpoints" / "step-00000003")
    set_torn_aside(tmp_path, tmp_path / "checkpoints" / "step-00000002")
    assert states(tmp_path) == ["step-00000002"]
    for step in (3, 4):  # the same step again, whole
        save(tmp_path, step)
        assert newest_whole(tmp_path) == tmp_path / "checkpoints" / f"step-{step:08d}"
    assert states(tmp_path) == ["step-00000003", "step-00000004"]


def test_without_a_whole_one_a_run_does_not_go_on(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
        cut(tmp_path / "checkpoints" / f"step-{step:08d}")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"no checkpoint of .* is whole; restore one"):
        newest_whole(tmp_path)


def test_an_export_is_a_model_with_what_it_is_made_of(tmp_path: Path) -> None:
    """Its weights, quality, configuration and logs, but not where its data lay."""
    np.save(tmp_path / "four.npy", drawn(4, 16, seed=0))
    place = str(tmp_path / "four.npy")
    run, out = tmp_path / "run", tmp_path / "out"
    train(settings({"data": {"train": place, "validation": place}}, steps=3), run)
    export(run, out)
    newest, taken = load_model(run), load_model(out)
    assert all(torch.equal(w, taken.network.state_dict()[key]) for key, w in newest.network.state_dict().items())
    last = rows(run / "validation.jsonl")[-1]
    assert taken.card.validation == {key: value for key, value in last.items() if key != "on"}
    for name in ("log.jsonl", "validation.jsonl"):
        assert (out / name).read_bytes() == (run / name).read_bytes()
    manifest = json.loads((out / "config.json").read_text())
    assert manifest["data"]["train"]["name"] == "four.npy" and manifest["config"]["training"]["steps"] == 3
    with pytest.raises(ValueError, match="is there already; it is not overwritten"):
        export(run, out)
    with pytest.raises(ValueError, match="is not the folder of a run: it has no checkpoints"):
        export(out, tmp_path / "more")
    assert not (tmp_path / "more").exists()
