"""Who may ask: this machine's own page, and whoever has the token."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
from fastapi.testclient import TestClient

from tests.viewer.shown import WISH, served

pytest_plugins = ["tests.viewer.fixtures"]


def test_the_page_has_only_its_own_files(reader: TestClient) -> None:
    assert reader.get("/").status_code == 200 and reader.get("/page/view.js").status_code == 200
    for name in ("../app.py", "%2e%2e/app.py", "app.py", "..%2fapp.py", "index.html"):
        assert reader.get(f"/page/{name}").status_code in (404, 422)


def test_nothing_is_loaded_from_elsewhere(reader: TestClient) -> None:
    answer = reader.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
    for name in ("", "page/view.js", "page/draw.js", "page/jobs.js", "page/view.css"):
        assert "://" not in reader.get(f"/{name}").text, "no address of another server"
    assert "style=" not in answer.text and "onclick" not in answer.text, "the policy would forbid it"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"host": "["},
        {"origin": "http://["},
    ],
)
def test_pages_of_others_are_refused(reader: TestClient, headers: dict[str, str]) -> None:
    for answer in (reader.post("/api/jobs", json=WISH, headers=headers), reader.get("/api/results", headers=headers)):
        assert answer.status_code == 403 and answer.json()["detail"]
    assert reader.get("/api/jobs").json() == []


def test_a_token_is_asked_of_everything(root: Path, model_folder: Path) -> None:
    with served(root, model_folder, token="right") as client:
        for path in ("/", "/api/results", "/page/view.js", "/openapi.json"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"x-token": "wrong"}).status_code == 401
            assert client.get(path, headers={"x-token": "right"}).status_code == 200
        assert client.get("/api/results", headers={"host": "scanner.example", "x-token": "right"}).status_code == 200
        answer = client.get("/?token=right")
        cookie = answer.headers["set-cookie"].lower()
        assert answer.status_code == 200 and "httponly" in cookie and "samesite=strict" in cookie
        assert client.get("/api/results").status_code == 200, "the cookie is enough from then on"
