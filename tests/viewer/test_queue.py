"""Jobs of the page: one after the other, watched, cancelled, and there again after the server was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
from fastapi.testclient import TestClient

from mcddpm.cli import main
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.viewer import queue
from mcddpm.viewer.queue import Queue
from tests.scans import SIZE
from tests.viewer.shown import HERE, WISH, finished, image, served

pytest_plugins = ["tests.viewer.fixtures"]


def test_a_job_uses_the_model_and_the_plan_that_were_asked_for(client: TestClient, model_folder: Path) -> None:
    plan = {"samples": 3, "steps": 3, "sampler": "heun", "seed": 7}
    done = finished(client, client.post("/api/jobs", json=WISH | plan).json()["id"])
    assert done["state"] == "done" and done["slices"] == done["done"] == 3
    told = client.get("/api/result", params={"name": done["result"]}).json()["provenance"]
    card = json.loads((model_folder / "model.json").read_text())
    assert told["model"]["sha256"] == card["sha256"]
    assert told["task"].items() >= (plan | {"mask": "random_columns", "acceleration": 4.0}).items()


def test_two_jobs_one_after_the_other(client: TestClient) -> None:
    wish = WISH | {"mask": "equispaced_columns", "acceleration": 4}
    first, second = (client.post("/api/jobs", json=wish | {"seed": seed}).json() for seed in (1, 2))
    states = [[job["state"] for job in client.get("/api/jobs").json()].count("running") for _ in range(50)]
    assert max(states) <= 1
    ends = [finished(client, job["id"]) for job in (first, second)]
    assert [end["state"] for end in ends] == ["done", "done"] and ends[0]["result"] != ends[1]["result"]
    told = client.get("/api/result", params={"name": ends[1]["result"]}).json()
    assert told["provenance"]["task"]["seed"] == 2 and told["samples"] == 2


def test_previews_while_it_runs_and_cancelling(client: TestClient, root: Path) -> None:
    wish = WISH | {"samples": 6, "steps": 400}
    job = client.post("/api/jobs", json=wish).json()["id"]
    waiting = client.post("/api/jobs", json=wish).json()["id"]
    seen: list[np.ndarray] = []
    end = time.monotonic() + 60
    while len(seen) < 2 and time.monotonic() < end:
        answer = client.get(f"/api/jobs/{job}/preview")
        if answer.status_code == 200 and (not seen or not np.array_equal(image(answer), seen[-1])):
            seen.append(image(answer))
    assert seen[0].shape == (4, SIZE, SIZE) and client.get(f"/api/jobs/{job}").json()["seconds_left"] > 0
    assert client.delete(f"/api/jobs/{waiting}").json()["state"] == "cancelled"
    assert client.delete(f"/api/jobs/{job}").status_code == 200
    told = finished(client, job)
    assert told["state"] == "cancelled" and client.get(f"/api/jobs/{job}/preview").status_code == 204
    assert not list(root.glob("view-*")), "nothing is left of it"
    assert client.delete(f"/api/jobs/{job}").status_code == 409, "it is over"
    assert client.get(f"/api/jobs/{waiting}").json()["step"] == 0


def test_a_job_that_cannot_be_done_says_why_and_the_next_one_runs(
    client: TestClient, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (ValueError(f"{root}/full.h5 is odd"), KeyError("x"), MemoryError("none left")):

        def fail(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(queue.batch, "reconstruct_scans", fail)
            told = finished(client, client.post("/api/jobs", json=WISH).json()["id"])
        assert told["state"] == "failed" and told["message"] and str(root) not in told["message"]
    assert finished(client, client.post("/api/jobs", json=WISH).json()["id"])["state"] == "done"


def test_a_client_that_vanishes_does_not_lose_its_job(client: TestClient) -> None:
    job = client.post("/api/jobs", json=WISH | {"steps": 20}).json()["id"]
    other = TestClient(client.app, base_url=HERE)  # another page
    assert finished(other, job)["state"] == "done"


def test_what_is_told_of_a_scan_is_told_of_its_job(client: TestClient) -> None:
    """The last notice, without the places of files; what was written is no news."""
    done = finished(client, client.post("/api/jobs", json=WISH | {"acceleration": 20}).json()["id"])
    assert done["state"] == "done" and done["message"].startswith("warning: full.h5, slice 0: the scan is")


# --- tickets on disk ------------------------------------------------------------------------------------------------


def test_tickets_are_there_again_with_the_next_server(root: Path, model_folder: Path) -> None:
    """One that was worked on waits again, and all of it is as it was; what is over stays over."""
    task = Task(str(model_folder), "random_columns", plan=DrawPlan(2, "heun", 3, "karras", 5), snr=20.0)
    before = Queue(root)
    before.folder.mkdir()
    running, waiting, done = (before.add("full.h5", root / "full.h5", task) for _ in range(3))
    running.state, done.state, done.result = "running", "done", "results/full.h5"
    for ticket in (running, done):
        before._keep(ticket)
    after = Queue(root)
    after._recover()
    assert after.tickets[waiting.id] == waiting and after.tickets[done.id] == done
    found = after.tickets[running.id]
    assert (found.state, found.message) == ("waiting", "the server was stopped; going on")
    assert queue.task_of(found) == task
    with served(root, model_folder) as client:
        assert {finished(client, ticket.id)["state"] for ticket in (running, waiting, done)} == {"done"}


def test_a_server_that_ends_leaves_its_job_to_the_next(root: Path, model_folder: Path) -> None:
    """Between two steps, with all slices that are done."""
    with served(root, model_folder) as first:
        job = first.post("/api/jobs", json=WISH | {"samples": 6, "steps": 100}).json()["id"]
        end = time.monotonic() + 60
        while (told := first.get(f"/api/jobs/{job}").json())["done"] < 1 and time.monotonic() < end:
            time.sleep(0.01)
        assert told["state"] == "running"
    kept = json.loads((root / ".view" / f"{job}.json").read_text())
    assert kept["state"] == "waiting" and list((root / kept["out"]).rglob("slice-*.npz"))
    with served(root, model_folder) as second:
        told = finished(second, job)
    assert told["state"] == "done" and told["slices"] < 3


def test_a_folder_from_someone_else_cannot_plant_jobs(root: Path, tmp_path: Path) -> None:
    """Tickets in it may ask to read, to write, and when they are cancelled to remove: only within the folder."""
    (tmp_path / "precious").mkdir()
    (root / ".view").mkdir()
    common = {"name": "x", "task": {}, "state": "waiting"}
    planted = [
        {"id": "a" * 12, "input": str(root / "full.h5"), "out": str(tmp_path / "precious")},
        {"id": "b" * 12, "input": str(tmp_path / "secret.h5"), "out": "view-1-aaaaaa"},
        {"id": "c" * 12, "input": str(root / "full.h5"), "out": "../precious"},
        {"id": "../../x", "input": str(root / "full.h5"), "out": "view-1-aaaaaa"},
    ]
    for k, ticket in enumerate(planted):
        (root / ".view" / f"{ticket['id'] if k < 3 else 'x'}.json").write_text(json.dumps(common | ticket))
    own = {"id": "d" * 12, "input": str(root / "full.h5"), "out": "view-1-aaaaaa", "state": "done"}
    (root / ".view" / f"{own['id']}.json").write_text(json.dumps(common | own))
    with served(root) as client:
        assert [job["id"] for job in client.get("/api/jobs").json()] == [own["id"]], "which plants nothing"
        assert (tmp_path / "precious").is_dir()


def test_two_servers_do_not_work_in_one_folder(
    client: TestClient, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", str(root), "--port", "0", "--no-browser"]) == 2
    assert "another mcddpm view already works in" in " ".join(capfd.readouterr().err.split())
