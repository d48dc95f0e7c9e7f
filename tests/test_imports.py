"""Imports go one way, from leaves to the command line, and heavy libraries stay in their rooms. Read with `ast`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mcddpm"

# A module may import only modules of earlier rows.
ROWS = [
    ["operators", "masks", "schedules", "unet", "metrics", "readers", "config", "figures"],
    ["cascade", "optimisers", "logbook", "runtime", "memory", "fetch", "simulation"],
    ["registry", "writers"],
    ["diffusion", "samplers", "denoiser", "datasets", "stacks", "calibration", "gaussian"],
    ["conformal"],
    ["checkpoint", "feed"],
    ["validation", "authors", "objectives"],
    ["training", "reconstruct"],
    ["runs", "scans", "baselines", "score", "selfcheck", "cases"],
    ["parts", "checks", "methods"],
    ["jobs"],
    ["evaluate", "demo", "tables"],
    ["reliability", "calibrate"],
    ["gallery"],
    ["bars"],
    ["viewer"],
    ["cli"],
    ["__init__", "__main__"],
]
ROW = {name: row for row, names in enumerate(ROWS) for name in names}

# Samplers never see MRI; operators never see diffusion.
NEVER = {"samplers": {"operators", "readers", "datasets"}, "operators": {"diffusion", "schedules", "masks"}}

ONLY_IN = {
    "matplotlib": {"figures"},
    "fastapi": {"viewer"},
    "uvicorn": {"viewer"},
    "tyro": {"cli", "config"},
    "torchvision": set(),
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(source: str, package: str = "mcddpm") -> Iterator[str]:
    """Dotted names of all that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else "", node.module or ""]))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def breaches(name: str, source: str) -> list[str]:
    found = []
    for target in imported(source):
        top, *rest = target.split(".")
        if top in ONLY_IN and name not in ONLY_IN[top]:
            found.append(f"{name} imports {top}, which belongs in {sorted(ONLY_IN[top]) or 'no module'}")
        if top != "mcddpm" or not rest or rest[0] == name or rest[0] not in ROW:
            continue
        if ROW[rest[0]] >= ROW[name] or rest[0] in NEVER.get(name, set()):
            found.append(f"{name} imports {rest[0]}, against the direction of DESIGN.md")
    return found


@pytest.mark.parametrize("path", modules(), ids=room)
def test_imports_go_one_way(path: Path) -> None:
    assert room(path) in ROW, f"{path.name} has no row in this test; give it one"
    assert breaches(room(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("schedules", "from mcddpm.diffusion import diffuse"),
        ("schedules", "from mcddpm import diffusion"),
        ("diffusion", "def f():\n    import mcddpm.samplers"),
        ("samplers", "from . import operators"),
        ("samplers", "from .operators import Fourier"),
        ("training", "from mcddpm.reconstruct import reconstruct"),
        ("training", "import matplotlib.pyplot as plt"),
        ("figures", "import torchvision"),
    ],
)
def test_a_breach_is_seen(name: str, source: str) -> None:
    assert len(breaches(name, source)) == 1
