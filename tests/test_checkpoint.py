"""Models on disk: what is written comes back the same, and nothing damaged or foreign is taken for a model."""

from __future__ import annotations

import json
import pickle
import resource
import signal
from pathlib import Path

import pytest
import torch

from mcddpm import load_model
from mcddpm.models import authors
from mcddpm.models.card import Model, build, card_of
from mcddpm.models.store import newest_whole, save_model
from mcddpm.models.unet import UNet
from mcddpm.system.files import file_sha256
from mcddpm.system.settings import from_dict
from mcddpm.training.checkpoints import load_training, save_training, set_torn_aside
from mcddpm.training.settings import Config

TINY = {"network": {"channels": 8, "multipliers": [1, 2], "attention": [2], "heads": 2, "patch": 2}}


def tiny(extra: dict | None = None, shape: tuple[int, int] = (16, 16)) -> tuple[dict, Model]:
    card = card_of(from_dict(Config, TINY | (extra or {})), shape)
    model = build(card)
    g = torch.Generator().manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.1, generator=g)
    return card, model.eval()


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"model": {"parameterisation": "eps", "data_std": 0.3}, "schedule": {"name": "linear", "beta_scale": 1.0}},
        {"operator": {"kind": "radon", "views": 12}, "schedule": {"name": "variance_exploding", "sigma_max": 50.0}},
    ],
)
def test_exported_weights_reload_to_identical_outputs(tmp_path: Path, extra: dict) -> None:
    card, model = tiny(extra)
    save_model(tmp_path / "model", model.network.state_dict(), card)
    again = load_model(tmp_path / "model")
    mask = torch.arange(model.operator.data_shape[1] if model.operator.data_shape else 16) % 4 == 0
    shape = (2, *(model.operator.data_shape or (16, 16)))
    dtype = torch.float32 if extra.get("operator") else torch.complex64
    y_m, y_t = (torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(k)) for k in (1, 2))
    y_m, y_t, t = y_m * mask, y_t * ~mask, torch.tensor([3.0, 70.0])
    assert torch.equal(model.denoise(y_t, t, y_m, mask), again.denoise(y_t, t, y_m, mask))
    assert torch.equal(model.schedule.bar_beta, again.schedule.bar_beta)
    assert model.data_std == again.data_std and model.parameterisation == again.parameterisation


def test_the_card_says_everything(tmp_path: Path) -> None:
    card, model = tiny({"data": {"licence": "CC0", "description": "heads"}})
    save_model(tmp_path / "model", model.network.state_dict(), card)
    written = json.loads((tmp_path / "model" / "model.json").read_text())
    needed = ("architecture", "parameterisation", "schedule", "operator", "normalisation", "data", "licence", "sha256")
    assert all(key in written for key in needed)
    assert written["licence"] == "CC0" and written["sha256"] == file_sha256(tmp_path / "model/model.safetensors")


def test_nothing_at_load_time_can_change_a_model() -> None:
    """`load_model` takes a path and a device, and nothing that the card decides."""
    import inspect

    assert list(inspect.signature(load_model).parameters) == ["name_or_path", "device"]


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
    elif how == "bad json":
        (folder / "model.json").write_text("{")
    elif how == "foreign json":
        (folder / "model.json").write_text("[]")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "is damaged"),
        ("flipped", "is damaged"),
        ("no json", "model.json is missing"),
        ("no weights", "model.safetensors is missing"),
        ("bad json", "is not a checkpoint of ours"),
        ("foreign json", "is not a checkpoint of ours"),
    ],
)
def test_damage_is_seen(tmp_path: Path, how: str, message: str) -> None:
    card, model = tiny()
    save_model(tmp_path / "model", model.network.state_dict(), card)
    damage(tmp_path / "model", how)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path / "model")


def test_another_architecture_lists_the_first_mismatches(tmp_path: Path) -> None:
    _, model = tiny()
    card, _ = tiny({"network": TINY["network"] | {"channels": 16}})
    save_model(tmp_path / "model", model.network.state_dict(), card)
    with pytest.raises(
        ValueError, match=r"another architecture: time.0.weight has shape \(32, 8\), expected \(64, 16\)"
    ):
        load_model(tmp_path / "model")


def test_no_folder_and_empty_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no model"):
        load_model(tmp_path / "none")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no whole checkpoint yet"):
        load_model(tmp_path / "run")


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    card, model = tiny()
    save_model(tmp_path / "model", model.network.state_dict(), card)
    with pytest.raises(ValueError, match="is there already"):
        save_model(tmp_path / "model", model.network.state_dict(), card)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the end of the disk."""
    card, model = tiny()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match="cannot be written"):
            save_model(tmp_path / "model", model.network.state_dict(), card)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert list(tmp_path.iterdir()) == []


def test_training_states_fall_back_and_old_ones_go(tmp_path: Path) -> None:
    card, model = tiny()
    weights = model.network.state_dict()
    for step in (1, 2, 3):
        save_training(tmp_path, step, weights, card, {"x": torch.tensor([step])}, {})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]
    assert newest_whole(tmp_path) == tmp_path / "checkpoints" / "step-00000003"
    newest = tmp_path / "checkpoints" / "step-00000003" / "training.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"is damaged.*using the checkpoint before it"):
        whole = newest_whole(tmp_path)
    assert whole is not None and whole.name == "step-00000002"
    notes, state, _ = load_training(whole)
    assert notes["step"] == 2 and state["x"].item() == 2
    set_torn_aside(tmp_path, whole)
    for step in (3, 4):  # the torn one is replaced by a whole one, and does not count as one of the two that are kept
        save_training(tmp_path, step, weights, card, {"x": torch.tensor([step])}, {})
        assert newest_whole(tmp_path) == tmp_path / "checkpoints" / f"step-{step:08d}"
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-00000003", "step-00000004"]
    for name in names:
        damage(tmp_path / "checkpoints" / name, "cut")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"no checkpoint of .* is whole"):
        newest_whole(tmp_path)


# --- the authors' files ---------------------------------------------------------------------------------------------

THEIRS = {
    "image_size": 64,
    "model_channels": 8,
    "learn_sigma": False,
    "num_res_blocks": 1,
    "attention_resolutions": "32",
    "dropout": 0,
    "channel_mult": "1,2",
    "num_heads": 2,
    "resblock_updown": True,
    "use_scale_shift_norm": True,
    "use_new_attention_order": False,
}


class Evil:
    def __reduce__(self) -> tuple:
        return (print, ("run!",))


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"no checkpoint", THEIRS, "is not a checkpoint that can be read safely"),
        (pickle.dumps({"w": Evil()}), THEIRS, "is not a checkpoint that can be read safely"),
        ([1, 2], THEIRS, "holds list, expected the authors' plain dictionary"),
        ({"w": torch.zeros(3)}, THEIRS, "another architecture: .* is missing"),
        ({"w": torch.zeros(3)}, THEIRS | {"colour": 1}, "has unknown keys colour"),
        ({"w": torch.zeros(3)}, THEIRS | {"learn_sigma": True}, "has learn_sigma"),
        ({"w": torch.zeros(3)}, {"image_size": 3}, "does not hold the authors' settings"),
        ({"w": torch.zeros(3)}, THEIRS | {"num_heads_upsample": 4}, "has num_heads_upsample"),
        ({"w": torch.zeros(3)}, THEIRS | {"attention_resolutions": "0"}, "does not hold the authors' settings"),
        ({"w": torch.zeros(3)}, THEIRS | {"channel_mult": ""}, "channel_mult is empty"),
        ({"w": torch.zeros(3)}, [], "does not hold the authors' settings"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: object, settings: object, message: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / "a.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "a.pt")
    (tmp_path / "a.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        authors.import_authors(tmp_path / "a.pt", tmp_path / "a.json", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_authors_empty_channel_mult_means_their_default(tmp_path: Path) -> None:
    theirs = THEIRS | {
        "image_size": 320,
        "model_channels": 128,
        "num_res_blocks": 2,
        "channel_mult": "",
        "num_heads": 4,
    }
    (tmp_path / "a.json").write_text(json.dumps(theirs | {"attention_resolutions": "20"}))
    card = authors._authors_card(tmp_path / "a.json", timed=True)
    with torch.device("meta"):
        network = UNet(**card["architecture"])
    assert sum(p.numel() for p in network.parameters()) == 86_325_634


def test_a_file_is_not_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is not a model folder"):
        load_model(tmp_path / "file")
