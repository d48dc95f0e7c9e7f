"""The configurations in `configs/` are read by the commands that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcddpm.evaluation.study import Evaluation
from mcddpm.system.settings import load
from mcddpm.training.settings import Config
from mcddpm.uncertainty.calibrate import CalibrationSettings

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_configs_load(path: Path) -> None:
    command = path.read_text().splitlines()[0]
    what, _, rest = command.removeprefix("# mcddpm ").partition(" ")
    assert rest == f"configs/{path.name}", "its first line is the command that runs it"
    load({"train": Config, "evaluate": Evaluation, "calibrate": CalibrationSettings}[what], path)
