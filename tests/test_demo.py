"""The demo: a page that holds all it shows, from the scan and the model that come with the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mcddpm import demo, load_model
from mcddpm.data.readers import open_volume
from mcddpm.models.denoiser import Denoiser
from mcddpm.reconstruction.plan import DrawPlan
from tests.conftest import Told

Made = tuple[Path, list[demo.Row], list[str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    told = Told()
    page, rows = demo.run(tmp_path_factory.mktemp("demo"), told, plan=DrawPlan(2, steps=5))
    return page, rows, [notice.text for notice in told.notices]


def test_the_page_holds_everything(made: Made) -> None:
    page, rows, said = made
    text = " ".join(page.read_text().split())
    assert len(said) == 6 and len(rows) == 18 and len(list(page.parent.glob("*.png"))) == 6
    assert text.count("data:image/png;base64,") == 6
    assert not re.search(r"(src|href)=\"(?!data:)", text) and "://" not in text  # nothing from outside
    for line in ("zero-filled", "one call", "mean of 2", "not for diagnosis", "8x"):
        assert line in text
    assert page.stat().st_size < 15e6


def test_samples_beat_zero_filled_on_every_slice(made: Made) -> None:
    _, rows, _ = made
    of = {(row.slice, row.acceleration, row.method): row for row in rows}
    for (slice_, acceleration, method), row in of.items():
        zero = of[slice_, acceleration, "zero-filled"]
        assert row.calls == {"zero-filled": 0, "one call": 1, "mean of 2": 10}[method]
        if method != "zero-filled":
            assert row.psnr > zero.psnr + 1 and row.ssim > zero.ssim and row.nmse < zero.nmse
    table = demo.table(rows)
    assert table.count("\n") == 6 and "PSNR" in table


def test_the_shipped_model_and_scan_fit_and_are_small() -> None:
    model, scan = load_model(), open_volume(demo.SCAN)
    assert isinstance(model, Denoiser) and model.card is not None
    assert tuple(model.card.operator.trained_on) == scan.shape[1:]
    files = [file for file in demo.SCAN.parent.rglob("*") if file.is_file()]
    for folder in (file for file in demo.SCAN.parent.iterdir() if file.is_dir()):
        limit = 25e6 if folder.name == "default" else 15e6
        assert sum(file.stat().st_size for file in folder.iterdir()) < limit, folder
    assert {"model.safetensors", "model.json", "config.json", "log.jsonl", "validation.jsonl"} <= {
        f.name for f in files
    }
