"""Two processes that torchrun starts, once for all tests: in one session they run every command of JOBS.

FOLDER/NAME/in/            what the job NAME was given
FOLDER/NAME/out/           what came out
FOLDER/NAME/rank-0.json    its exit code, what it said, and which results were there when it ended
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcddpm.system import files

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
Prepare = Callable[[Path], list[str]]  # fills a folder with inputs, and returns the command without --out


@dataclass(frozen=True)
class Session:
    folder: Path

    def arguments(self, job: str, out: Path) -> list[str]:
        """The command of a job, for one process: with a folder of its own."""
        found: list[str] = json.loads((self.folder / "commands.json").read_text())[job]
        return [*found[: found.index("--out")], "--out", str(out)]

    def out(self, job: str) -> Path:
        return self.folder / job / "out"

    def ended(self, job: str, rank: int) -> dict[str, Any]:
        """code, said and results of a process."""
        found: dict[str, Any] = json.loads((self.folder / job / f"rank-{rank}.json").read_text())
        return found

    @property
    def code(self) -> int:
        """With which torchrun ended: that of the last job."""
        return int((self.folder / "code").read_text())


def session(factory: pytest.TempPathFactory) -> Session:
    """Whoever asks first starts it; other workers of pytest wait for that."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "torchrun"
    with files.locked(folder / "lock"):
        if not (folder / "code").exists():
            files.write_text(folder / "code", str(_run(folder)))
    return Session(folder)


def _run(folder: Path) -> int:
    commands = {}
    for name, prepare in JOBS.items():
        (folder / name / "in").mkdir(parents=True, exist_ok=True)
        commands[name] = [*prepare(folder / name / "in"), "--out", str(folder / name / "out")]
    files.write_json(folder / "commands.json", commands)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with (folder / "log").open("w") as log:
        command = [*torchrun, "-m", "tests.torchrun", str(folder)]
        return subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=300, check=False).returncode


def work(folder: Path) -> int:
    """In each of the two processes: all jobs, one after the other. Returns the exit code of the last."""
    from mcddpm.cli import main

    code, rank = 0, os.environ["RANK"]
    commands = json.loads((folder / "commands.json").read_text())
    for k, (name, arguments) in enumerate(commands.items()):
        if (name, rank) == (LAST, "1"):  # the first process has to wait for the second, and not by chance
            while not (folder / list(commands)[k - 1] / "rank-0.json").exists():
                time.sleep(0.1)
            time.sleep(1.5)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = main(arguments)
        results = sorted(path.name for path in (folder / name / "out").glob("*") if not path.name.startswith("."))
        told = {"code": code, "said": " ".join(said.getvalue().split()), "results": results}
        files.write_json(folder / name / f"rank-{rank}.json", told)
    return code


# --- jobs -----------------------------------------------------------------------------------------------------------


def _training(folder: Path) -> list[str]:
    from tests.training.small import SMALL, as_toml

    hyper = SMALL["training"] | {"steps": 8, "checkpoint_every": 4}
    file = as_toml(folder / "small.toml", SMALL | {"network": SMALL["network"] | {"dropout": 0.0}, "training": hyper})
    return ["train", str(file)]


def _reconstruction(folder: Path) -> list[str]:
    from tests.scans import scan

    for k in range(2):
        scan(folder / "scans" / f"scan{k}.h5", 5, seed=k)
    return _reconstruct(folder)


def _evaluation(folder: Path) -> list[str]:
    """Files of 32 x 32 with a reference, at two accelerations; three methods, and slices for both processes."""
    import h5py
    import torch

    from mcddpm.physics.fourier import Fourier
    from tests.scans import kspace, scan

    for k in range(2):
        with h5py.File(scan(folder / "files" / f"file{k}.h5", 3, seed=k, sampled=False), "r+") as file:
            file["reconstruction_esc"] = abs(Fourier().pinv(torch.from_numpy(kspace(3, seed=k)))).numpy()
    drawn = f'kind = "mc_ddpm"\nmodel = "{_model(folder)}"\n'
    (folder / "study.toml").write_text(
        f'[[cases]]\nsource = "{folder / "files"}"\nprotocol = "fastmri"\nlabel = "blocks"\n'
        '[[methods]]\nname = "ZF"\nkind = "zero_filled"\n'
        f'[[methods]]\nname = "One"\nsampler = "mean"\n{drawn}'
        f'[[methods]]\nname = "Ours"\nsamples = 2\nsteps = 2\n{drawn}'
    )
    return ["evaluate", str(folder / "study.toml"), "--device", "cpu"]


def _one_bad_scan(folder: Path) -> list[str]:
    """The first slice, which is the first process's, holds NaN."""
    import h5py

    from tests.scans import scan

    with h5py.File(scan(folder / "scans" / "a.h5", 1), "r+") as file:
        file["kspace"][0, 0, 16] = float("nan")
    for k in range(3):
        scan(folder / "scans" / f"b{k}.h5", 6, seed=k)
    return _reconstruct(folder)


def _reconstruct(folder: Path) -> list[str]:
    plan = ["--samples", "2", "--steps", "2", "--device", "cpu", "--format", "h5,nifti,dicom"]
    return ["reconstruct", str(folder / "scans"), "--model", str(_model(folder)), *plan]


def _model(folder: Path) -> Path:
    from mcddpm.models.store import save_model
    from tests.problems import tiny

    model = tiny()
    assert model.card is not None
    save_model(folder / "model", model.network.state_dict(), model.card)
    return folder / "model"


LAST = "one bad scan"  # with its code torchrun ends
JOBS: dict[str, Prepare] = {
    "training": _training,
    "reconstruction": _reconstruction,
    "evaluation": _evaluation,
    LAST: _one_bad_scan,
}


if __name__ == "__main__":
    ended = work(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # as mcddpm.__main__ does, past the threads that gloo keeps
