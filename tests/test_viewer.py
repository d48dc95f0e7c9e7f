"""The viewer's server: right numbers over the wire, jobs that survive, and nothing to those who should get nothing."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mcddpm.cli import main
from mcddpm.models.store import save_model

fastapi = pytest.importorskip("fastapi", reason="the viewer's packages are not installed (mcddpm[view])")
from fastapi.testclient import TestClient  # noqa: E402

from mcddpm.physics.fourier import Fourier  # noqa: E402
from mcddpm.reconstruction.batch import reconstruct_scans  # noqa: E402
from mcddpm.reconstruction.inputs import Task  # noqa: E402
from mcddpm.viewer import queue as queues  # noqa: E402
from mcddpm.viewer import start  # noqa: E402
from mcddpm.viewer.app import make_app  # noqa: E402
from mcddpm.viewer.results import pack  # noqa: E402
from tests.test_reconstruct import tiny  # noqa: E402
from tests.test_scans import SIZE, scan  # noqa: E402

HERE = "http://127.0.0.1"
QUICK = {"samples": 2, "steps": 2, "sampler": "dpmpp_2m_sde"}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a result that has a truth, the scan it is of, and things that are not for showing."""
    folder = tmp_path_factory.mktemp("shown") / "root"
    scan(folder / "full.h5", 3, sampled=False)
    scan(folder / "sub" / "part.h5", 2)
    reconstruct_scans([str(folder / "full.h5")], folder / "results", Task(mask="random_columns", samples=5, steps=2))
    (folder / "notes.txt").write_text("not a scan")
    (folder / "broken.h5").write_bytes(b"not h5")
    return folder


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    shutil.copytree(original, folder)
    shutil.copy(folder / "results" / "full.h5", tmp_path / "secret.h5")
    (folder / "link.h5").symlink_to(tmp_path / "secret.h5")
    return folder


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    with TestClient(make_app(root, upload_limit=2_000_000), base_url=HERE) as made:
        yield made


def image(answer) -> np.ndarray:
    low, high = float(answer.headers["x-low"]), float(answer.headers["x-high"])
    shape = [int(n) for n in answer.headers["x-shape"].split(",")]
    return low + np.frombuffer(answer.content, "<u2").reshape(shape) * (high - low) / 65535


def layer(client: TestClient, name: str, **more: object):
    return client.get("/api/layer", params={"name": "results/full.h5", "layer": name, "slice": 1, **more})


# --- results --------------------------------------------------------------------------------------------------------


def test_results_are_listed_and_nothing_else(client: TestClient) -> None:
    assert client.get("/api/results").json() == ["results/full.h5"]
    choices = client.get("/api/choices").json()
    assert choices["inputs"] == ["broken.h5", "full.h5", "sub/part.h5"], "neither links out of the folder nor .parts"
    assert "random_columns" in choices["masks"] and "sparse_views" not in choices["masks"]


def test_layers_are_those_of_the_file(client: TestClient, root: Path) -> None:
    told = client.get("/api/result", params={"name": "results/full.h5"}).json()
    assert (told["slices"], told["height"], told["samples"]) == (3, SIZE, 5) and "error" in told["layers"]
    with h5py.File(root / "results" / "full.h5") as file:
        mean, std, truth, samples, mask = (file[key][1] for key in ("mean", "std", "truth", "samples", "mask"))
    expected = {"mean": mean, "std": std, "error": abs(mean - truth), "mask": mask.astype(float)}
    expected["sample"] = abs(samples[3])
    y = abs(Fourier()(torch.from_numpy(samples[3])).numpy())
    expected["kspace"] = np.log10(np.maximum(y, y.max() * 1e-6))
    for name, values in expected.items():
        found = image(layer(client, name, sample=3))
        assert np.abs(found - values).max() <= np.ptp(values) / 65535, name


def test_bytes_are_two_a_pixel_and_bear_anything() -> None:
    for values in (np.zeros((2, 3)), np.full((2, 3), -7.5), np.array([[np.nan, np.inf], [1.0, 2.0]])):
        content, low, high = pack(values)
        assert len(content) == 2 * values.size and np.isfinite([low, high]).all()


def test_numbers_of_a_slice_and_a_box(client: TestClient, root: Path) -> None:
    found = client.get("/api/numbers", params={"name": "results/full.h5", "slice": 1}).json()
    with h5py.File(root / "results" / "full.h5") as file:
        mean, truth, samples = (file[key][1] for key in ("mean", "truth", "samples"))
    expected = 10 * np.log10(truth.max() ** 2 / ((mean - truth) ** 2).mean())
    with h5py.File(root / "results" / "full.h5") as file:
        reached = SIZE**2 / int(file["mask"][1].sum())
    assert found["psnr_mean"] == pytest.approx(expected, rel=1e-4)
    assert found["acceleration"] == pytest.approx(reached)
    place = {"top": 4, "left": 6, "height": 5, "width": 7}
    box = client.get("/api/box", params={"name": "results/full.h5", "slice": 1, **place}).json()
    inside = np.s_[4:9, 6:13]
    assert box["mean"] == pytest.approx(mean[inside].mean(), rel=1e-5) and sum(box["histogram"]) == 35 == box["pixels"]
    averages = [abs(sample[inside]).mean() for sample in samples]
    assert box["std_of_average"] == pytest.approx(np.std(averages, ddof=1), rel=1e-4)


@pytest.mark.parametrize("format", ["h5", "nifti", "dicom"])
def test_downloads(client: TestClient, root: Path, format: str) -> None:
    answer = client.get("/api/download", params={"name": "results/full.h5", "format": format})
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    if format == "h5":
        assert answer.content == (root / "results" / "full.h5").read_bytes()
        return
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    wanted = {"nifti": ["full.json", "full.nii.gz", "full_std.nii.gz"], "dicom": ["full/mean-0001.dcm"]}[format]
    assert set(wanted) <= set(names)


# --- who gets nothing -----------------------------------------------------------------------------------------------

OUTSIDE = [
    *("../secret.h5", "results/../../secret.h5", "/etc/passwd", "..%2Fsecret.h5", "%2e%2e/secret.h5", "..\\secret.h5"),
    *("link.h5", "results/full.h5/../../../secret.h5", "....//secret.h5", "results\0/full.h5", "~/secret.h5", "."),
    *("", "results", ".view/x.json", "results/.parts/run.json", "file:///etc/passwd", "a" * 999, "notes.txt"),
]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("where", ["result", "layer", "numbers", "download", "input", "box"])
def test_nothing_outside_the_folder(client: TestClient, root: Path, name: str, where: str) -> None:
    more = {"layer": "mean", "slice": 0, "top": 0, "left": 0, "height": 1, "width": 1}
    for text in (name, str(root.parent / "secret.h5")):
        answer = client.get(f"/api/{where}", params={"name": text, **more})
        assert answer.status_code in (404, 422) and answer.json()["detail"]
        assert str(root.parent) not in answer.text.replace(text, ""), "where the folder lies is nobody's business"
    raw = name if name.isprintable() else "x"
    answer = client.get(f"/api/{where}?name={raw}&layer=mean&slice=0&top=0&left=0&height=1&width=1")
    assert answer.status_code in (404, 422)


def test_the_page_has_only_its_own_files(client: TestClient) -> None:
    assert client.get("/").status_code == 200 and client.get("/page/view.js").status_code == 200
    for name in ("../app.py", "%2e%2e/app.py", "app.py", "..%2fapp.py", "index.html"):
        assert client.get(f"/page/{name}").status_code in (404, 422)


def test_nothing_is_loaded_from_elsewhere(client: TestClient) -> None:
    answer = client.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
    for name in ("", "page/view.js", "page/draw.js", "page/jobs.js", "page/view.css"):
        assert "://" not in client.get(f"/{name}").text, "no address of another server"
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
def test_pages_of_others_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    wish = {"input": "full.h5", "mask": "random_columns", **QUICK}
    for answer in (client.post("/api/jobs", json=wish, headers=headers), client.get("/api/results", headers=headers)):
        assert answer.status_code == 403 and answer.json()["detail"]
    assert client.get("/api/jobs").json() == []


def test_a_token_is_asked_of_everything(root: Path) -> None:
    with TestClient(make_app(root, token="right"), base_url=HERE) as client:
        for path in ("/", "/api/results", "/page/view.js", "/openapi.json"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"x-token": "wrong"}).status_code == 401
            assert client.get(path, headers={"x-token": "right"}).status_code == 200
        assert client.get("/api/results", headers={"host": "scanner.example", "x-token": "right"}).status_code == 200
        answer = client.get("/?token=right")
        cookie = answer.headers["set-cookie"].lower()
        assert answer.status_code == 200 and "httponly" in cookie and "samesite=strict" in cookie
        assert client.get("/api/results").status_code == 200, "the cookie is enough from then on"


def test_only_this_machine_unless_told() -> None:
    assert [start.is_local(host) for host in ("127.0.0.1", "localhost", "::1", "127.5.0.1")] == [True] * 4
    assert [start.is_local(host) for host in ("0.0.0.0", "192.168.0.7", "scanner", "::")] == [False] * 4


# --- uploads --------------------------------------------------------------------------------------------------------


def put(client: TestClient, name: str, content: bytes):
    return client.post("/api/uploads", params={"name": name}, content=content)


def test_an_upload_is_read_and_can_be_reconstructed(client: TestClient, root: Path) -> None:
    answer = put(client, "../../my scan.h5", (root / "sub" / "part.h5").read_bytes())
    assert answer.status_code == 201
    told = answer.json()
    assert told["input"].startswith("upload:") and (told["slices"], told["undersampled"]) == (2, True)
    assert client.app.state.uploads.place(told["input"]).name == "my_scan.h5"
    folder = client.app.state.uploads.folder
    assert folder.stat().st_mode & 0o077 == 0, "others cannot look into it"
    job = client.post("/api/jobs", json={"input": told["input"], **QUICK}).json()
    assert finished(client, job["id"])["state"] == "done"


def kept(client: TestClient) -> list[str]:
    return [path.name for path in client.app.state.uploads.folder.iterdir() if path.name != "lock"]


def array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


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
        ("a.h5", b"0" * 2_000_001, 413),
    ],
)
def test_uploads_that_are_refused_leave_nothing(client: TestClient, name: str, content: bytes, status: int) -> None:
    for kind in ("", "kspace"):
        answer = client.post("/api/uploads", params={"name": name, "kind": kind}, content=content)
        assert answer.status_code == status and answer.json()["detail"]
        assert kept(client) == [] and "/tmp" not in answer.text


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


def test_an_upload_that_lies_about_its_size(client: TestClient) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"0" * 100_000

    answer = client.post("/api/uploads", params={"name": "a.h5"}, content=chunks())
    assert answer.status_code == 413 and kept(client) == []


def test_uploads_share_one_limit(client: TestClient, root: Path) -> None:
    with h5py.File(root / "large.h5", "w") as file:
        file["kspace"] = np.random.default_rng(0).normal(size=(1, 256, 256)).astype(np.complex64)  # 0.5 MB
    content = (root / "large.h5").read_bytes()
    found = [put(client, "large.h5", content).status_code for _ in range(5)]
    assert found == [201, 201, 201, 413, 413]


def test_a_series_of_files(client: TestClient, root: Path, tmp_path: Path) -> None:
    made = client.get("/api/download", params={"name": "results/full.h5", "format": "dicom"}).content
    zipfile.ZipFile(io.BytesIO(made)).extractall(tmp_path / "series")
    files, batch = sorted((tmp_path / "series" / "full").glob("mean-*.dcm")), ""
    for k, file in enumerate(files):
        asked = {"name": file.name, "batch": batch, "more": k + 1 < len(files)}
        answer = client.post("/api/uploads", params=asked, content=file.read_bytes())
        assert answer.status_code == 201
        batch = answer.json()["input"].removeprefix("upload:")
    assert answer.json()["slices"] == 3 and answer.json()["kind"] == "image"
    wrong = {"name": "x.dcm", "batch": "0" * 16}
    assert client.post("/api/uploads", params=wrong, content=b"x").status_code == 404


# --- jobs -----------------------------------------------------------------------------------------------------------


def finished(client: TestClient, job: str, seconds: float = 60) -> dict:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        told = client.get(f"/api/jobs/{job}").json()
        if told["state"] in queues.ENDED:
            return told
        time.sleep(0.02)
    raise AssertionError(told)


def test_jobs_use_the_model_that_was_asked_for(root: Path, tmp_path: Path) -> None:
    made = tiny()
    others = {"calibration": {"model": "of other weights"}}  # which does not count
    save_model(tmp_path / "mine", made.network.state_dict(), made.card | others)
    sha256 = json.loads((tmp_path / "mine" / "model.json").read_text())["sha256"]
    wish = {"input": "full.h5", "mask": "random_columns", **QUICK}
    with TestClient(make_app(root, model=str(tmp_path / "mine")), base_url=HERE) as client:
        choices = client.get("/api/choices").json()
        assert (choices["model"], choices["calibrated"], choices["self_check"]) == ("mine", False, False)
        for more in ({"interval": 0.9}, {"self_check": True}):
            answer = client.post("/api/jobs", json=wish | more)
            assert answer.status_code == 422 and "run mcddpm calibrate" in answer.json()["detail"]
        done = finished(client, client.post("/api/jobs", json=wish).json()["id"])
        assert (
            client.get("/api/result", params={"name": done["result"]}).json()["provenance"]["model"]["sha256"] == sha256
        )
    with pytest.raises(ValueError, match="no model"):
        make_app(root, model="nosuch")


def test_two_jobs_one_after_the_other(client: TestClient, root: Path) -> None:
    wish = {"input": "full.h5", "mask": "equispaced_columns", "acceleration": 4, **QUICK}
    first, second = (client.post("/api/jobs", json=wish | {"seed": seed}).json() for seed in (1, 2))
    states = [[job["state"] for job in client.get("/api/jobs").json()].count("running") for _ in range(50)]
    assert max(states) <= 1
    ends = [finished(client, job["id"]) for job in (first, second)]
    assert [end["state"] for end in ends] == ["done", "done"] and ends[0]["result"] != ends[1]["result"]
    told = client.get("/api/result", params={"name": ends[1]["result"]}).json()
    assert told["provenance"]["task"]["seed"] == 2 and told["samples"] == 2


def test_previews_while_it_runs_and_cancelling(client: TestClient, root: Path) -> None:
    wish = {"input": "full.h5", "mask": "random_columns", "samples": 6, "steps": 400, "sampler": "dpmpp_2m_sde"}
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
        ({"input": "full.h5", "samples": 0}, 422, ""),
        ({"input": "full.h5", "steps": 0}, 422, ""),
        ({"input": "full.h5", "acceleration": 1e9}, 422, ""),
        ({"input": "full.h5", "sampler": "magic"}, 422, ""),
        ({}, 422, ""),
    ],
)
def test_wishes_that_are_refused(client: TestClient, wish: dict, status: int, message: str) -> None:
    answer = client.post("/api/jobs", json=wish)
    assert answer.status_code == status and message in str(answer.json()["detail"])
    assert client.get("/api/jobs").json() == []


def test_a_job_that_cannot_be_done_says_why_and_the_next_one_runs(client: TestClient, root: Path, monkeypatch) -> None:
    wish = {"input": "full.h5", "mask": "random_columns", **QUICK}
    for error in (ValueError(f"{root}/full.h5 is odd"), KeyError("x"), MemoryError("none left")):
        with monkeypatch.context() as patch:
            patch.setattr(queues.jobs, "reconstruct_scans", lambda *_, error=error, **__: (_ for _ in ()).throw(error))
            told = finished(client, client.post("/api/jobs", json=wish).json()["id"])
        assert told["state"] == "failed" and told["message"] and str(root) not in told["message"]
    assert finished(client, client.post("/api/jobs", json=wish).json()["id"])["state"] == "done"


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
    with TestClient(make_app(root), base_url=HERE) as client:
        assert client.get("/api/jobs").json() == [] and (tmp_path / "precious").is_dir()


def test_two_servers_do_not_work_in_one_folder(client: TestClient, root: Path, capfd) -> None:
    assert main(["view", str(root), "--port", "0", "--no-browser"]) == 2
    assert "another mcddpm view already works in" in " ".join(capfd.readouterr().err.split())


def test_a_client_that_vanishes_does_not_lose_its_job(root: Path) -> None:
    with TestClient(make_app(root), base_url=HERE) as first:
        wish = {"input": "full.h5", "mask": "random_columns", "samples": 2, "steps": 50}
        job = first.post("/api/jobs", json=wish).json()["id"]
        other = TestClient(first.app, base_url=HERE)  # another page
        assert finished(other, job)["state"] == "done"


def serving(root: Path | None, **environment: str) -> tuple[subprocess.Popen[str], str]:
    shown = [] if root is None else [str(root)]
    command = [sys.executable, "-m", "mcddpm", "view", *shown, "--port", "0", "--no-browser", "--device", "cpu"]
    surroundings = os.environ | {"COLUMNS": "500"} | environment
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=surroundings)
    assert process.stderr is not None
    for line in process.stderr:
        if "is shown at" in line:
            return process, line.split("is shown at ")[1].split()[0]
    raise AssertionError("the server did not start")


def ended(process: subprocess.Popen[str], by: int) -> None:
    process.send_signal(by)
    process.wait(30)
    assert process.stderr is not None
    process.stderr.close()


def test_a_server_killed_in_the_middle_goes_on_with_its_job(tmp_path: Path) -> None:
    import httpx

    scan(tmp_path / "full.h5", 4, sampled=False)
    wish = {"input": "full.h5", "mask": "random_columns", "samples": 3, "steps": 40}
    process, address = serving(tmp_path)
    try:
        job = httpx.post(f"{address}api/jobs", json=wish).json()["id"]
        end = time.monotonic() + 60
        while httpx.get(f"{address}api/jobs/{job}").json()["done"] < 1 and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        ended(process, signal.SIGKILL)
    kept = json.loads((tmp_path / ".view" / f"{job}.json").read_text())
    assert kept["state"] == "running" and not list(tmp_path.glob("view-*/*.h5"))
    process, address = serving(tmp_path)
    try:
        end = time.monotonic() + 60
        while httpx.get(f"{address}api/jobs/{job}").json()["state"] != "done" and time.monotonic() < end:
            time.sleep(0.05)
        told = httpx.get(f"{address}api/jobs/{job}").json()
        assert told["state"] == "done" and told["slices"] < 4, "slices that were done were not done again"
    finally:
        ended(process, signal.SIGINT)
    task = Task(mask="random_columns", samples=3, steps=40)
    (path,) = reconstruct_scans([str(tmp_path / "full.h5")], tmp_path / "whole", task)
    assert (tmp_path / told["result"]).read_bytes() == path.read_bytes(), "as if nothing had happened"


def test_without_a_folder_the_demo_is_begun_once(tmp_path: Path) -> None:
    import httpx

    for _ in range(2):
        process, address = serving(None, MCDDPM_CACHE=str(tmp_path))
        try:
            (job,) = httpx.get(f"{address}api/jobs").json()
            assert job["name"] == "the bundled scan" and job["state"] in ("waiting", "running")
            assert "<title>mcddpm view</title>" in httpx.get(address).text
        finally:
            ended(process, signal.SIGKILL)


def test_a_port_that_is_taken(tmp_path: Path, capfd) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["view", str(tmp_path), "--port", str(port), "--no-browser"]) == 2
    assert "Is it taken? Try --port 0" in " ".join(capfd.readouterr().err.split())
    assert main(["view", str(tmp_path / "none"), "--no-browser"]) == 2
    (tmp_path / "a.h5").write_bytes(b"x")
    assert main(["view", str(tmp_path / "a.h5"), "--no-browser"]) == 2
    assert "is not a result of mcddpm reconstruct" in " ".join(capfd.readouterr().err.split())


# --- the description ------------------------------------------------------------------------------------------------


def test_every_route_is_described(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    routes = {
        (route.path, method.lower())
        for route in client.app.routes
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
def test_bodies_that_are_none(client: TestClient, body: bytes) -> None:
    answer = client.post("/api/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404, 422) and isinstance(answer.json()["detail"], str)


def test_schemathesis_finds_no_server_error(root: Path, monkeypatch) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, given, settings

    monkeypatch.setattr(queues.Queue, "_run", lambda self, ticket: setattr(ticket, "state", "done"))
    app = make_app(root, hosts=("127.0.0.1", "testserver", "localhost"), upload_limit=100_000)
    try:
        schema = schemathesis.openapi.from_asgi("/openapi.json", app)
        for operation in schema.get_all_operations():

            @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), database=None)
            @given(case=operation.ok().as_strategy())
            def check(case) -> None:
                case.call_and_validate(checks=[schemathesis.checks.not_a_server_error])

            check()
    finally:
        app.state.queue.close()
