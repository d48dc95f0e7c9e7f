"""What the server says of itself, what a job may be asked, and that nothing sent to it breaks it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
from fastapi.testclient import TestClient

from mcddpm.uncertainty.calibration import load_calibration
from mcddpm.viewer import queue
from mcddpm.viewer.app import make_app
from tests.scans import scan
from tests.viewer.shown import WISH, finished, served

pytest_plugins = ["tests.viewer.fixtures"]


# --- what a job may be asked ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "status", "message"),
    [
        ({"input": "none.h5"}, 404, "no file"),
        ({"input": "../secret.h5"}, 404, "no file"),
        ({"input": "upload:0123456789abcdef/../x.h5"}, 404, "no upload"),
        ({"input": "upload:0123456789abcdef"}, 404, "no upload"),
        ({"input": "full.h5"}, 422, "the scan is fully sampled: choose a mask"),
        ({"input": "sub/part.h5", "mask": "random_columns"}, 422, "choose no mask"),
        ({"input": "broken.h5", "mask": "random_columns"}, 422, "cannot be read"),
        ({"input": "full.h5", "mask": "magic"}, 422, "unknown mask 'magic'"),
        ({"input": "full.h5", "mask": "/etc/passwd.npy"}, 422, "unknown mask"),
        ({"input": "full.h5", "mask": "sparse_views"}, 422, "unknown mask"),
        ({"input": "full.h5", "samples": 0}, 422, ""),
        ({"input": "full.h5", "steps": 0}, 422, ""),
        ({"input": "full.h5", "acceleration": 1e9}, 422, ""),
        ({"input": "full.h5", "sampler": "magic"}, 422, ""),
        ({}, 422, ""),
    ],
)
def test_wishes_that_are_refused(reader: TestClient, wish: dict[str, Any], status: int, message: str) -> None:
    answer = reader.post("/api/jobs", json=wish)
    assert answer.status_code == status and message in str(answer.json()["detail"])
    assert reader.get("/api/jobs").json() == []


def test_a_model_without_a_calibration_promises_nothing(reader: TestClient) -> None:
    choices = reader.get("/api/choices").json()
    assert (choices["model"], choices["calibrated"], choices["self_check"]) == ("model", False, False)
    for more in ({"interval": 0.9}, {"self_check": True}):
        answer = reader.post("/api/jobs", json=WISH | more)
        assert answer.status_code == 422 and "run mcddpm calibrate" in answer.json()["detail"]
    assert reader.get("/api/jobs").json() == []


def test_a_calibration_of_other_weights_does_not_count(root: Path, model_folder: Path, tmp_path: Path) -> None:
    """Neither one that lies beside the weights nor, in a model folder of before, one in the card."""
    beside = shutil.copytree(model_folder, tmp_path / "beside")
    load_calibration("default").save(beside)
    within = shutil.copytree(model_folder, tmp_path / "within")
    card = json.loads((within / "model.json").read_text())
    old = {"format": 1, "mask": {}, "calibration": json.loads((beside / "calibration.json").read_text())["intervals"]}
    (within / "model.json").write_text(json.dumps(card | old))
    for folder in (beside, within):
        with served(root, folder) as client:
            choices = client.get("/api/choices").json()
            assert (choices["model"], choices["calibrated"], choices["self_check"]) == (folder.name, False, False)
            for more in ({"interval": 0.9}, {"self_check": True}):
                answer = client.post("/api/jobs", json=WISH | more)
                assert answer.status_code == 422 and "run mcddpm calibrate" in answer.json()["detail"]
            assert client.get("/api/jobs").json() == []


def test_a_calibration_without_self_checks_promises_intervals(root: Path, model_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "mine")
    known, sha256 = load_calibration("default"), json.loads((folder / "model.json").read_text())["sha256"]
    replace(known, intervals=replace(known.intervals, model=sha256), self_check=None).save(folder)
    with served(root, folder) as client:
        choices = client.get("/api/choices").json()
        assert (choices["calibrated"], choices["self_check"]) == (True, False)
        answer = client.post("/api/jobs", json=WISH | {"self_check": True})
        assert answer.status_code == 422 and "knows nothing of self-checks" in answer.json()["detail"]


def test_intervals_and_self_check_of_a_calibrated_model(tmp_path: Path) -> None:
    scan(tmp_path / "full.h5", 1, sampled=False)
    with served(tmp_path) as client:
        choices = client.get("/api/choices").json()
        assert (choices["model"], choices["calibrated"], choices["self_check"]) == ("default", True, True)
        for more, message in (
            ({"interval": 0.9999}, "a level of 0.9999 takes"),
            ({"interval": 0.9, "sampler": "mean"}, "takes 2 samples or more, asked for 1"),
            ({"interval": 1.5}, "interval"),
        ):
            answer = client.post("/api/jobs", json=WISH | more)
            assert answer.status_code == 422 and message in answer.json()["detail"]
        asked = {"acceleration": 2, "interval": 0.9, "self_check": True}
        ended = finished(client, client.post("/api/jobs", json=WISH | asked).json()["id"])
        assert ended["state"] == "done" and ended["message"].startswith("self-check: ")
        told = client.get("/api/result", params={"name": ended["result"]}).json()
        assert {"lower", "upper", "width", "surprise"} <= set(told["layers"])
        assert told["provenance"]["task"]["interval"] == 0.9
        numbers = client.get("/api/numbers", params={"name": ended["result"]}).json()
        assert 0 < numbers["self_check_p"] <= 1


def test_a_model_that_is_none_is_refused_at_once(root: Path) -> None:
    with pytest.raises(ValueError, match="no model"):
        make_app(root, model="nosuch")


# --- the description ------------------------------------------------------------------------------------------------


def test_every_route_is_described(reader: Any) -> None:
    described = reader.get("/openapi.json").json()["paths"]
    routes = {
        (route.path, method.lower())
        for route in reader.app.routes
        if getattr(route, "include_in_schema", False)
        for method in route.methods
        if method != "HEAD"
    }
    assert routes == {(path, method) for path, methods in described.items() for method in methods}
    for methods in described.values():
        for one in methods.values():
            assert one.get("description") and {"404", "403"} <= set(one["responses"])


@pytest.mark.parametrize(
    "body",
    [
        b'{"input": "x", "acceleration": NaN}',
        b'{"input": "\\ud800"}',
        b"{",
        b"[]",
        b"null",
        b'{"input": 1e999}',
        b"\xff",
    ],
)
def test_bodies_that_are_none(reader: TestClient, body: bytes) -> None:
    answer = reader.post("/api/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404, 422) and isinstance(answer.json()["detail"], str)


def test_schemathesis_finds_no_server_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, given, settings

    monkeypatch.setattr(queue.Queue, "_run", lambda self, ticket: setattr(ticket, "state", "done"))
    app = make_app(root, hosts=("127.0.0.1", "testserver", "localhost"), upload_limit=100_000)
    tried: dict[str, int] = {}
    try:
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        for operation in schema.get_all_operations():

            @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            @given(case=operation.ok().as_strategy())
            def check(case: Any) -> None:
                tried[case.operation.label] = tried.get(case.operation.label, 0) + 1
                case.call_and_validate(checks=[schemathesis.checks.not_a_server_error])

            check()
    finally:
        app.state.queue.close()
    described = app.openapi()["paths"]
    assert set(tried) == {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
