"""Reference numbers of the authors' program. They lie beside a developer's checkout, not in the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "golden"


def golden(name: str) -> Path:
    """The file, or a skip that says why."""
    if not (FOLDER / name).is_file():
        pytest.skip(f"the authors' reference file {name} is not beside this checkout")
    return FOLDER / name


def golden_json(name: str) -> Any:
    return json.loads(golden(name).read_text())
