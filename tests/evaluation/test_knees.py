"""The configurations of the paper's tables, from drawn files in fastMRI's layout and small networks as the authors save
theirs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mcddpm.cli import main
from mcddpm.evaluation import tables
from mcddpm.evaluation.study import weights_of
from mcddpm.models import authors
from mcddpm.models.unet import UNet
from tests.evaluation.studies import rows
from tests.knees import knee

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
CHANNELS, MULTIPLIERS = 8, (1, 1, 1, 1, 1)
QUICK = ["--set", "methods.2.samples=2", "--set", "methods.2.steps=2", "--out", "out", "--device", "cpu"]


def of_the_authors(file: Path, timed: bool, seed: int) -> tuple[Path, Path]:
    """A small network as the authors' program would save it, and its settings."""
    settings = {"image_size": 320, "model_channels": CHANNELS, "learn_sigma": False, "num_res_blocks": 1, "dropout": 0}
    settings |= {"attention_resolutions": "20", "channel_mult": ",".join(map(str, MULTIPLIERS)), "num_heads": 4}
    settings |= {"resblock_updown": True, "use_scale_shift_norm": timed, "use_new_attention_order": False}
    g, own = torch.Generator().manual_seed(seed), {"multipliers": MULTIPLIERS, "blocks": 1, "attention": (16,)}
    network = UNet(
        *(4 if timed else 2, 2), channels=CHANNELS, **own, heads=4, patch=1, scale_shift=timed, groups=32, time=timed
    )
    weights = {}
    for key, value in network.state_dict().items():
        value = value + 0.03 * torch.randn(value.shape, generator=g)
        weights[their_name(key)] = value[..., None] if ".qkv.weight" in key or ".out.weight" in key else value
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights, file)
    file.with_suffix(".json").write_text(json.dumps(settings))
    return file, file.with_suffix(".json")


def their_name(key: str) -> str:
    names = {"time.": "time_embed.", "down.": "input_blocks.", "middle.": "middle_block.", "up.": "output_blocks."}
    names |= {"out_norm.": "out.0.", "out_conv.": "out.2."}
    inner = {".norm1.": ".in_layers.0.", ".conv1.": ".in_layers.2.", ".embed.": ".emb_layers.1.", ".out.": ".proj_out."}
    inner |= {".norm2.": ".out_layers.0.", ".conv2.": ".out_layers.3.", ".skip.": ".skip_connection."}
    start = next(name for name in names if key.startswith(name))
    theirs = names[start] + key.removeprefix(start)
    for ours, name in inner.items() if start in ("down.", "middle.", "up.") else ():
        theirs = theirs.replace(ours, name)
    return theirs


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks of each kind: 0, 0-unet, 1, 1-unet."""
    folder = tmp_path_factory.mktemp("imported")
    for seed in (0, 1):
        for kind, timed in (("", True), ("-unet", False)):
            theirs = of_the_authors(folder / "theirs" / f"{seed}{kind}.pt", timed, seed)
            authors.import_authors(*theirs, folder / f"{seed}{kind}")
    return folder


def named(imported: Path, folder: Path, names: dict[str, int]) -> None:
    """As configurations call them, from the folder that they are run in."""
    for name, seed in names.items():
        for kind in ("", "-unet"):
            (folder / f"{name}{kind}").symlink_to(imported / f"{seed}{kind}")


def test_both_knees_and_the_averaged_gain(imported: Path, tmp_path: Path, monkeypatch) -> None:
    """The paper's Table 1: PD, PDFS, and what is gained over the U-Net on average of both."""
    named(imported, tmp_path, {"knee-PD-4x": 0, "knee-PDFS-4x": 1})
    for seed, acquisition in enumerate(("CORPD_FBK", "CORPDFS_FBK")):
        knee(tmp_path / "singlecoil_val" / f"file100000{seed}.h5", 11, acquisition, seed, 320)
    monkeypatch.chdir(tmp_path)
    four = ["--set", "cases.0.accelerations=[4]", "--set", "cases.1.accelerations=[4]"]
    assert main(["evaluate", str(CONFIGS / "knee.toml"), *QUICK, *four]) == 0
    table = tables.tables(tmp_path / "out", "U-Net")[0]
    names = [f"{label} {method}" for label in ("PD", "PDFS") for method in ("ZF", "U-Net", "MC-DDPM")]
    assert list(table.head) == ["", "", *names, "ZF - U-Net", "MC-DDPM - U-Net"]
    value = dict(zip(table.head[2:], (float(cell.replace("*", "")) for cell in table.rows[0][2:]), strict=True))
    gains = [value[f"{label} MC-DDPM"] - value[f"{label} U-Net"] for label in ("PD", "PDFS")]
    assert value["MC-DDPM - U-Net"] == pytest.approx(np.mean(gains), abs=0.011) and abs(gains[0] - gains[1]) > 0.05


@pytest.mark.parametrize(("name", "acquisition"), [("pd", "CORPD_FBK"), ("pdfs", "CORPDFS_FBK")])
def test_the_knee_configurations(name: str, acquisition: str, imported: Path, tmp_path: Path, monkeypatch) -> None:
    """From files of which the first and last five slices are left out to the paper's table."""
    label = name.upper()
    named(imported, tmp_path, {f"knee-{label}-4x": 0, f"knee-{label}-8x": 1})  # the authors have a network for each
    knee(tmp_path / "singlecoil_val" / "file1000001.h5", 12, acquisition, 0, 320)
    knee(tmp_path / "singlecoil_val" / "file1000003.h5", 11, "of another kind", 2, 320)
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", str(CONFIGS / f"knee-{name}.toml"), *QUICK]) == 0
    found = rows(tmp_path / "out")
    assert len(found) == 2 * 2 * 3 and {row.protocol for row in found} == {"paper"}
    assert {(row.volume, row.slice) for row in found} == {("file1000001.h5", 5), ("file1000001.h5", 6)}
    assert all(math.isfinite(row.quality["psnr"]) for row in found)
    for method, kind in (("U-Net", "-unet"), ("MC-DDPM", "")):
        used = {row.acceleration: row.weights for row in found if row.method == method}
        own = {a: weights_of(f"knee-{label}-{a:g}x{kind}") for a in (4.0, 8.0)}
        assert used == own and len(set(own.values())) == 2
    text = (tmp_path / "out" / "tables.md").read_text()
    assert f"|  |  | {label} ZF | {label} U-Net | {label} MC-DDPM | ZF - U-Net | MC-DDPM - U-Net |" in text
    for line in ("| 4x | PSNR |", "| 4x | SSIM |", "| 8x | PSNR |", "| 8x | SSIM |"):
        assert line in text
