"""Files that are dropped on the page: read, within a limit, kept to oneself, and never trusted."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
from fastapi.testclient import TestClient

from tests.scans import SIZE
from tests.viewer.shown import QUICK, UPLOADS, finished

pytest_plugins = ["tests.viewer.fixtures"]


def put(client: TestClient, name: str, content: bytes) -> Any:
    return client.post("/api/uploads", params={"name": name}, content=content)


def kept(client: Any) -> list[str]:
    return [path.name for path in client.app.state.uploads.folder.iterdir() if path.name != "lock"]


def array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def test_an_upload_is_read_and_can_be_reconstructed(client: Any, root: Path) -> None:
    answer = put(client, "../../my scan.h5", (root / "sub" / "part.h5").read_bytes())
    assert answer.status_code == 201
    told = answer.json()
    assert told["input"].startswith("upload:") and (told["slices"], told["undersampled"]) == (2, True)
    assert client.app.state.uploads.place(told["input"]).name == "my_scan.h5"
    folder = client.app.state.uploads.folder
    assert folder.stat().st_mode & 0o077 == 0, "others cannot look into it"
    job = client.post("/api/jobs", json={"input": told["input"], **QUICK}).json()
    assert finished(client, job["id"])["state"] == "done"


@pytest.mark.parametrize(
    ("name", "content", "status"),
    [
        ("a.h5", b"not h5", 422),
        ("a.h5", b"", 422),
        ("a.npy", b"\x93NUMPY\x01\x00v\x00", 422),
        ("a.npy", array(np.array([{"a": 1}], dtype=object)), 422),
        ("a.npz", b"PK\x03\x04", 422),
        ("a.nii.gz", b"\x1f\x8b\x08", 422),
        ("a.nrrd", b"NRRD0004\ntype: float\ndimension: 2\nsizes: 4 4\nencoding: raw\nData File: /etc/passwd\n\n", 422),
        ("a.nhdr", b"NRRD0004\n", 422),
        ("a.dcm", b"DICM", 422),
        ("a.exe", b"MZ", 415),
        (".h5", b"x", 415),
        ("a.h5", b"0" * (UPLOADS + 1), 413),
    ],
)
def test_uploads_that_are_refused_leave_nothing(reader: TestClient, name: str, content: bytes, status: int) -> None:
    for kind in ("", "kspace"):
        answer = reader.post("/api/uploads", params={"name": name, "kind": kind}, content=content)
        assert answer.status_code == status and answer.json()["detail"]
        assert kept(reader) == [] and "/tmp" not in answer.text


def test_an_array_whose_kind_is_told(client: TestClient) -> None:
    content = array(np.ones((2, 16, 16), np.complex64))
    assert client.post("/api/uploads", params={"name": "a.npy"}, content=content).status_code == 422
    answer = client.post("/api/uploads", params={"name": "a.npy", "kind": "kspace"}, content=content)
    assert answer.status_code == 201 and answer.json()["slices"] == 2


def test_files_that_point_at_others_are_refused(client: TestClient, root: Path, tmp_path: Path) -> None:
    """HDF5 may say that its data lie anywhere on the machine: neither an upload nor a file of the folder may."""
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["kspace"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/samples")
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("kspace", (1, 4, 4), "f4", external=[(str(tmp_path / "secret.h5"), 0, 64)])
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((3, SIZE, SIZE), "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "mean", (3, SIZE, SIZE))
        file.create_virtual_dataset("mean", layout)
        file.attrs["provenance"] = "{}"
    for name in ("link.h5", "external.h5", "virtual.h5"):
        answer = put(client, name, (tmp_path / name).read_bytes())
        assert answer.status_code == 422 and "refers to another file" in answer.json()["detail"]
        shutil.copy(tmp_path / name, root / name.replace("link", "outside"))
    assert client.get("/api/input", params={"name": "outside.h5"}).status_code == 422
    assert client.get("/api/result", params={"name": "virtual.h5"}).status_code == 404
    assert client.get("/api/results").json() == ["results/full.h5"]


def test_an_upload_that_lies_about_its_size(reader: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"0" * 100_000

    answer = reader.post("/api/uploads", params={"name": "a.h5"}, content=chunks())
    assert answer.status_code == 413 and kept(reader) == []


def test_uploads_share_one_limit(client: TestClient, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file["kspace"] = np.random.default_rng(0).normal(size=(1, 256, 256)).astype(np.complex64)  # 0.5 MB
    content = (tmp_path / "large.h5").read_bytes()
    found = [put(client, "large.h5", content).status_code for _ in range(5)]
    assert found == [201, 201, 201, 413, 413]


def test_a_series_of_files(client: TestClient, tmp_path: Path) -> None:
    made = client.get("/api/download", params={"name": "results/full.h5", "format": "dicom"}).content
    zipfile.ZipFile(io.BytesIO(made)).extractall(tmp_path / "series")
    files, batch = sorted((tmp_path / "series" / "full").glob("mean-*.dcm")), ""
    assert len(files) == 3
    for k, file in enumerate(files):
        asked = {"name": file.name, "batch": batch, "more": k + 1 < len(files)}
        answer = client.post("/api/uploads", params=asked, content=file.read_bytes())
        assert answer.status_code == 201
        batch = answer.json()["input"].removeprefix("upload:")
    assert answer.json()["slices"] == 3 and answer.json()["kind"] == "image"
    wrong = {"name": "x.dcm", "batch": "0" * 16}
    assert client.post("/api/uploads", params=wrong, content=b"x").status_code == 404
