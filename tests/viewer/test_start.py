"""From `mcddpm view` to a page that answers, in a process of its own; and again after it was killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
import httpx

from mcddpm.cli import main
from mcddpm.models.store import load_model
from mcddpm.reconstruction.batch import reconstruct_scans
from mcddpm.viewer import start
from tests.processes import command
from tests.processes import start as start_process
from tests.scans import quick, scan
from tests.viewer.shown import finished

FLAGS = ("--port", "0", "--no-browser", "--device", "cpu")


def view(said: str, cache: str, *arguments: str) -> None:
    """`mcddpm view` in this process: what it says goes to a file."""
    os.environ["MCDDPM_CACHE"] = cache
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    command("view", *arguments, *FLAGS)


@contextmanager
def serving(
    folder: Path, *arguments: str, end: int = signal.SIGINT
) -> Iterator[tuple[ForkServerProcess, httpx.Client]]:
    """A server and a client of it. folder: of what it says, and its cache. end: the signal that ends it."""
    said = folder / "said"
    said.unlink(missing_ok=True)
    process = start_process(view, str(said), str(folder), *arguments)
    try:
        with httpx.Client(base_url=_address(process, said)) as client:
            yield process, client
    finally:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, end)
        process.join(30)


def _address(process: ForkServerProcess, said: Path) -> str:
    end = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < end:
        if said.exists() and "Ctrl-C" in (text := said.read_text()):
            return text.split("is shown at ")[1].split()[0]
        time.sleep(0.02)
    raise AssertionError(f"the server did not start: {said.read_text() if said.exists() else ''}")


def test_a_server_killed_in_the_middle_goes_on_with_its_job(tmp_path: Path, model_folder: Path) -> None:
    root = tmp_path / "root"
    scan(root / "full.h5", 4, sampled=False)
    wish = {"input": "full.h5", "mask": "random_columns", "samples": 3, "steps": 120}
    shown = (str(root), "--model", str(model_folder))
    with serving(tmp_path, *shown, end=signal.SIGKILL) as (process, client):
        job = client.post("/api/jobs", json=wish).json()["id"]
        end = time.monotonic() + 60
        while client.get(f"/api/jobs/{job}").json()["done"] < 1 and time.monotonic() < end:
            time.sleep(0.01)
    assert process.exitcode == -signal.SIGKILL
    kept = json.loads((root / ".view" / f"{job}.json").read_text())
    assert kept["state"] == "running" and not list(root.glob("view-*/*.h5"))
    with serving(tmp_path, *shown) as (process, client):
        told = finished(client, job)
        assert told["state"] == "done" and told["slices"] < 4, "slices that were done were not done again"
    assert process.exitcode == 130, "ended by Ctrl-C"
    task = quick(model_folder, samples=3, steps=120, mask="random_columns")
    (path,) = reconstruct_scans([str(root / "full.h5")], tmp_path / "whole", task, load_model(model_folder))
    assert (root / told["result"]).read_bytes() == path.read_bytes(), "as if nothing had happened"


def test_without_a_folder_the_demo_is_begun_once(tmp_path: Path) -> None:
    for _ in range(2):
        with serving(tmp_path, end=signal.SIGKILL) as (_, client):
            (job,) = client.get("/api/jobs").json()
            assert job["name"] == "the bundled scan" and job["state"] in ("waiting", "running")
            assert "<title>mcddpm view</title>" in client.get("/").text


def test_only_this_machine_unless_told() -> None:
    assert [start.is_local(host) for host in ("127.0.0.1", "localhost", "::1", "127.5.0.1")] == [True] * 4
    assert [start.is_local(host) for host in ("0.0.0.0", "192.168.0.7", "scanner", "::")] == [False] * 4


def test_a_port_that_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["view", str(tmp_path), "--port", str(port), "--no-browser"]) == 2
    assert "Is it taken? Try --port 0" in " ".join(capfd.readouterr().err.split())


def test_a_path_that_cannot_be_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "none"), "--no-browser"]) == 2
    assert "no file or folder" in " ".join(capfd.readouterr().err.split())
    (tmp_path / "a.h5").write_bytes(b"x")
    assert main(["view", str(tmp_path / "a.h5"), "--no-browser"]) == 2
    assert "is not a result of mcddpm reconstruct" in " ".join(capfd.readouterr().err.split())
