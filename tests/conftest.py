"""What all tests share. One thread a worker: several workers, each with as many threads as there are cores, would only
wait for each other. Processes that tests start inherit it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mcddpm.system.progress import Notice


def pytest_configure() -> None:
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"  # read once, when torch and numpy are loaded
    os.environ["MPLBACKEND"] = "Agg"
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(variable, None)
    import torch

    torch.set_num_threads(1)


class Told:
    """A `Progress` that remembers what it was told."""

    def __init__(self) -> None:
        self.places: list[tuple[float, float, str]] = []
        self.notices: list[Notice] = []

    def at(self, done: float, total: float, what: str = "") -> None:
        self.places.append((done, total, what))

    def say(self, notice: Notice) -> None:
        self.notices.append(notice)

    @property
    def text(self) -> str:
        return "\n".join(notice.text for notice in self.notices)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with `tiny`'s weights, for 32 x 32. To be read, not changed."""
    from mcddpm.models.store import save_model
    from tests.problems import tiny

    model = tiny()
    assert model.card is not None
    folder = tmp_path_factory.mktemp("shared") / "model"
    save_model(folder, model.network.state_dict(), model.card)
    return folder
