"""The authors' files: their networks give their own numbers, and nothing in a foreign file is run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mcddpm import load_model
from mcddpm.models import authors
from mcddpm.models.card import ImportedFrom
from mcddpm.models.denoiser import Denoiser, from_channels
from mcddpm.models.store import read_card
from mcddpm.models.supervised import Supervised
from mcddpm.physics.fourier import Fourier
from mcddpm.system import files
from tests.golden import golden


def imported(name: str, out: Path) -> dict[str, Tensor]:
    """Their weights as a model folder; what they recorded of it."""
    authors.import_authors(golden(f"{name}.pt"), golden(f"{name}.config.json"), out)
    return load_file(golden(f"{name}.io.safetensors"))


def test_the_authors_network_returns_its_recorded_noise(tmp_path: Path) -> None:
    """Their k-space is ours times (-1)^(i + j), as their FFT lacks the inner shift."""
    io, model = imported("mcddpm_unet_tiny", tmp_path / "m"), load_model(tmp_path / "m")
    assert isinstance(model, Denoiser) and model.parameterisation == "eps"
    i = torch.arange(64)
    sign = 1.0 - 2 * ((i[:, None] + i) % 2)
    y_t, y_m, expected = (sign * from_channels(io[key]) for key in ("y_t", "kspace_zf", "eps"))
    mask = io["mask_c"][:, 0] == 0
    eps = model.eps(y_t, io["t"] + 1, y_m, mask)  # our t counts from 1
    assert (eps - expected).norm() < 1e-4 * expected.norm()
    assert (eps[mask] == 0).all()


def test_the_authors_unet_returns_its_recorded_image(tmp_path: Path) -> None:
    io, model = imported("plain_unet_tiny", tmp_path / "m"), load_model(tmp_path / "m")
    assert isinstance(model, Supervised)
    image, expected = from_channels(io["image_zf"]), from_channels(io["image"])
    x = model(Fourier()(image), torch.ones(64).bool())
    assert (x - expected).norm() < 1e-4 * expected.norm()


def test_the_command_imports_the_same(tmp_path: Path) -> None:
    from mcddpm.cli import main

    imported("mcddpm_unet_tiny", tmp_path / "one")
    given = [str(golden("mcddpm_unet_tiny.pt")), "--config", str(golden("mcddpm_unet_tiny.config.json"))]
    assert main(["weights", "import", *given, "--out", str(tmp_path / "two")]) == 0
    assert read_card(tmp_path / "one") == read_card(tmp_path / "two")


def test_the_card_names_the_file_it_came_from(tmp_path: Path) -> None:
    imported("mcddpm_unet_tiny", tmp_path / "m")
    card, source = read_card(tmp_path / "m"), golden("mcddpm_unet_tiny.pt")
    assert card.imported_from == ImportedFrom(source.name, files.sha256(source))
    assert card.mask is None and card.operator.trained_on == (64, 64), "their files do not tell their masks"
    assert card.schedule.T == 1000 and card.schedule.beta_scale == 0.5


# --- foreign files --------------------------------------------------------------------------------------------------

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
    """What is pickled of it makes a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple:
        return (os.mkdir, (self.folder,))


@pytest.mark.parametrize("archive", [True, False])
def test_nothing_in_a_file_is_run(tmp_path: Path, archive: bool) -> None:
    evil, file = {"w": torch.zeros(3), "x": Evil(tmp_path / "run")}, tmp_path / "a.pt"
    if archive:
        torch.save(evil, file)
    else:
        file.write_bytes(pickle.dumps(evil))
    with pytest.raises(ValueError, match="is not a checkpoint that can be read safely"):
        authors.read_authors(file)
    assert not (tmp_path / "run").exists()
    pickle.loads(pickle.dumps(Evil(tmp_path / "run")))
    assert (tmp_path / "run").exists(), "it would have been seen"


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"no checkpoint", THEIRS, "is not a checkpoint that can be read safely"),
        (pickle.dumps({"w": [1]}), THEIRS, "is not a checkpoint that can be read safely"),
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


def test_a_file_of_tensors_of_another_format_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(3)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="is not a checkpoint that can be read safely"):
        authors.read_authors(tmp_path / "a.pt")


@pytest.mark.parametrize("missing", ["a.pt", "a.json"])
def test_files_that_are_not_there(tmp_path: Path, missing: str) -> None:
    torch.save({"w": torch.zeros(3)}, tmp_path / "a.pt")
    (tmp_path / "a.json").write_text(json.dumps(THEIRS))
    (tmp_path / missing).unlink()
    with pytest.raises(ValueError, match=f"no file .*{missing}"):
        authors.import_authors(tmp_path / "a.pt", tmp_path / "a.json", tmp_path / "out")


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
        network = card.architecture.build()
    assert sum(p.numel() for p in network.parameters()) == 86_325_634
