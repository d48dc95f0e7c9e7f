"""Imports go one way, from `system` to the command line, and heavy libraries stay in their rooms. Read with `ast`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mcddpm"

# A folder, or a file at the top, may import only those of earlier rows.
ROWS = [
    ["system", "metrics", "plots"],
    ["physics"],
    ["simulation"],
    ["diffusion", "data"],
    ["models"],
    ["training", "reconstruction"],
    ["uncertainty"],
    ["evaluation"],
    ["demo"],
    ["viewer"],
    ["cli"],
    ["__init__", "__main__"],
]
ROW = {name: row for row, names in enumerate(ROWS) for name in names}
PUBLIC = {"__version__"}  # what is asked of the package itself, which imports no one's neighbours for it

# Samplers never see MRI; operators never see diffusion (which the rows forbid too).
NEVER = {"diffusion": {"data", "models"}, "data": {"diffusion"}, "physics": {"diffusion"}}

ONLY_IN = {
    "matplotlib": {"plots"},
    "fastapi": {"viewer"},
    "starlette": {"viewer"},
    "uvicorn": {"viewer"},
    "tyro": {"cli"},
    "torchvision": set(),
}


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    parts = ("mcddpm", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, package: str = "mcddpm", *, at_once: bool = False) -> Iterator[str]:
    """Dotted names of all that a file imports; at_once: when it is loaded, not when a function is called."""
    for node in at_top(ast.parse(source)) if at_once else ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, [package if node.level else "", node.module or ""]))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def at_top(node: ast.AST) -> Iterator[ast.AST]:
    """Without the bodies of functions, and without what only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from at_top(child)


def breaches(name: str, source: str) -> list[str]:
    found = []
    for target in imported(source):
        top, *rest = target.split(".")
        if top in ONLY_IN and name not in ONLY_IN[top]:
            found.append(f"{name} imports {top}, which belongs in {sorted(ONLY_IN[top]) or 'no room'}")
        if top != "mcddpm" or not rest or rest[0] == name or rest[0] in PUBLIC:
            continue
        if rest[0] not in ROW:
            found.append(f"{name} imports {rest[0]}, which is no room")
        elif ROW[rest[0]] >= ROW[name] or rest[0] in NEVER.get(name, set()):
            found.append(f"{name} imports {rest[0]}, against the direction of DESIGN.md")
    return found


def graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which modules each module needs to be loaded. `from package import name` needs the package, if name is no module
    of it; that a package is loaded before its own modules is no cycle."""
    needs: dict[str, set[str]] = {}
    for name, source in sources.items():
        needs[name] = set()
        for target in imported(source, at_once=True):
            found = target if target in sources else target.rpartition(".")[0]
            if found in sources and not name.startswith(f"{found}."):
                needs[name].add(found)
    return needs


def cycle(sources: dict[str, str]) -> list[str]:
    try:
        TopologicalSorter(graph(sources)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    assert room(path) in ROW, f"{path.name} has no row in this test; give it one"
    assert breaches(room(path), path.read_text()) == []


def test_no_module_needs_itself() -> None:
    assert cycle({module(path): path.read_text() for path in files()}) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("physics", "from mcddpm.diffusion.process import diffuse"),
        ("physics", "from mcddpm import diffusion"),
        ("diffusion", "def f():\n    import mcddpm.models.unet"),
        ("diffusion", "from mcddpm.data.readers import open_volume"),
        ("data", "from mcddpm.diffusion.schedules import cosine"),
        ("training", "from mcddpm.reconstruction.sample import reconstruct"),
        ("reconstruction", "from mcddpm.uncertainty import conformal"),
        ("training", "import matplotlib.pyplot as plt"),
        ("plots", "import torchvision"),
        ("system", "from mcddpm.utils import helper"),
    ],
)
def test_an_upward_import_is_seen(name: str, source: str) -> None:
    assert len(breaches(name, source)) == 1


def test_a_cycle_is_seen() -> None:
    planted = {"mcddpm.a": "from mcddpm.b import x", "mcddpm.b": "import mcddpm.a", "mcddpm.c": "import mcddpm.b"}
    assert set(cycle(planted)) == {"mcddpm.a", "mcddpm.b"}
    assert cycle(planted | {"mcddpm.b": "def f():\n    import mcddpm.a"}) == []


def test_the_package_is_light() -> None:
    """`import mcddpm` loads no downloader, matplotlib, scikit-image or web code, and `reconstruct` is the function."""
    told = "import json, sys, mcddpm; print(json.dumps([sorted(sys.modules), str(type(mcddpm.reconstruct))]))"
    answer = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    loaded, kind = json.loads(answer.stdout)
    heavy = (
        "matplotlib",
        "skimage",
        "fastapi",
        "uvicorn",
        "tyro",
        "mcddpm.data.download",
        "mcddpm.viewer",
        "mcddpm.cli",
    )
    assert [name for name in heavy if name in loaded] == []
    assert kind == "<class 'function'>" and "mcddpm.reconstruct" not in loaded


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_what_a_folder_names_is_there(folder: str) -> None:
    """Every name of `__all__` can be had, and hides no module of the folder."""
    __import__(f"mcddpm.{folder}")
    found = sys.modules[f"mcddpm.{folder}"]
    for name in found.__all__:
        assert hasattr(found, name)
        hides = (PACKAGE / folder / f"{name}.py").exists()
        assert not hides or getattr(found, name) is sys.modules[f"mcddpm.{folder}.{name}"]


def test_files_and_functions_are_short() -> None:
    """No file above 350 lines, no function above 50."""
    written = [*files(), *(PACKAGE.parent / "docs").glob("*.py")]
    long = {path.name: n for path in written if (n := len(path.read_text().splitlines())) > 350}
    for path in written:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or 0) - node.lineno + 1
                long |= {f"{path.name}: {node.name}": lines} if lines > 50 else {}
    assert long == {}


def test_the_listing_is_that_of_the_map() -> None:
    here = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    folders = {name for name in here if (PACKAGE / name).is_dir()}
    assert folders == {name for name in ROW if (PACKAGE / name).is_dir()} | {"assets"}
    assert len(here - folders) <= 7
