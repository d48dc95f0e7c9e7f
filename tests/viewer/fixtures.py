"""A folder with a result, and its page: the fixtures of all tests of the viewer.

shown, reader     the folder and its page, made once: for tests that change nothing
root, client      a copy and its page, for one test
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
from fastapi.testclient import TestClient

from mcddpm.models.store import load_model
from mcddpm.reconstruction.batch import reconstruct_scans
from tests.scans import quick, scan
from tests.viewer.shown import served


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A result that has a truth, the scan it is of, another scan, and things that are not for showing. Beside it lies a
    result that is nobody's business; a link leads there."""
    folder = tmp_path_factory.mktemp("shown") / "root"
    scan(folder / "full.h5", 3, sampled=False)
    scan(folder / "sub" / "part.h5", 2)
    task = quick(model_folder, samples=5, mask="random_columns")
    reconstruct_scans([str(folder / "full.h5")], folder / "results", task, load_model(model_folder))
    (folder / "notes.txt").write_text("not a scan")
    (folder / "broken.h5").write_bytes(b"not h5")
    return _with_a_secret(folder)


def _with_a_secret(folder: Path) -> Path:
    shutil.copy(folder / "results" / "full.h5", folder.parent / "secret.h5")
    (folder / "link.h5").symlink_to(folder.parent / "secret.h5")
    return folder


@pytest.fixture(scope="session")
def reader(shown: Path, model_folder: Path) -> Iterator[TestClient]:
    with served(shown, model_folder) as made:
        yield made


@pytest.fixture
def root(shown: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    shutil.copytree(shown, folder, ignore=shutil.ignore_patterns("link.h5", ".view"))
    return _with_a_secret(folder)


@pytest.fixture
def client(root: Path, model_folder: Path) -> Iterator[TestClient]:
    with served(root, model_folder) as made:
        yield made
