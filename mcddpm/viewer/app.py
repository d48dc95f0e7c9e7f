"""The server: a page, results as bytes, and jobs. It answers this machine alone unless told, and then with a token.

Nothing outside the folder it was started with can be reached; uploads are limited, checked by the readers, and kept in
a private folder; requests from pages of other origins are refused; the page may load nothing from elsewhere.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from mcddpm import __version__, writers
from mcddpm.masks import MASKS
from mcddpm.readers import ENDINGS, open_volume
from mcddpm.samplers import SAMPLERS
from mcddpm.scans import Task
from mcddpm.viewer.queue import ENDED, Queue
from mcddpm.viewer.results import Folder, Missing, Result, pack

PAGE = Path(__file__).parent / "page"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE = "mcddpm_token"
LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")
COLUMNS = tuple(name for name in MASKS if "views" not in name and name != "limited_angle")
Sampler = Literal["ancestral", "ddim", "heun", "dpmpp_2m", "dpmpp_2m_sde", "mean"]
Name = Annotated[str, Query(min_length=1, max_length=1000)]
Number = Annotated[int, Query(ge=0, le=100_000)]


class Wish(BaseModel):
    """What to reconstruct, and how. mask: empty for a scan that was under-sampled when it was measured."""

    input: str = Field(min_length=1, max_length=1000)
    mask: str = Field(default="", max_length=100)
    acceleration: float = Field(default=4.0, gt=1, le=64)
    samples: int = Field(default=20, ge=1, le=100)
    sampler: Sampler = "dpmpp_2m_sde"
    steps: int = Field(default=10, ge=1, le=1000)
    seed: int = Field(default=0, ge=0, lt=2**31)


class Told(BaseModel):
    """Why a request was refused."""

    detail: str


REFUSED: dict[int | str, dict[str, Any]] = {
    code: {"model": Told, "description": text}
    for code, text in {
        400: "The request is malformed.",
        401: "A token is needed.",
        403: "From a page of another origin.",
        404: "Not in the folder that is shown.",
        409: "Not in the state that this needs.",
        413: "Larger than uploads may be.",
        415: "Not of a kind that can be read.",
        422: "Not what was expected.",
        507: "No room left.",
    }.items()
}
BYTES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "16 bits a pixel, little-endian, row by row: value = low + stored (high - low) / 65535; low, "
        "high and the shape are in the headers X-Low, X-High and X-Shape.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class Uploads:
    """Files that were dropped on the page, in a folder that only this user can read; gone with the server."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.folder = Path(tempfile.mkdtemp(prefix="mcddpm-view-"))  # mode 0700

    def place(self, name: str) -> Path:
        """uploads/ID/NAME, as `keep` gave it."""
        match = re.fullmatch(r"uploads/([0-9a-f]{16})/([^/\\\0]{1,200})", name)
        path = self.folder / match[1] / match[2] if match else None
        if path is None or match is None or match[2] in (".", "..") or not path.is_file():
            raise Missing(f"no upload {name!r}")
        return path

    async def keep(self, name: str, chunks: AsyncIterator[bytes]) -> str:
        """Write what arrives, as long as it is not too much. Returns its name for `place`."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name.replace("\\", "/").rsplit("/", 1)[-1])[-120:].lstrip(".")
        if not safe.lower().endswith(tuple(ENDINGS)) or safe.lower() in ENDINGS:
            raise HTTPException(415, f"{name!r} has none of the known endings: {', '.join(ENDINGS)}")
        place = self.folder / secrets.token_hex(8)
        place.mkdir()
        size = 0
        try:
            with (place / safe).open("wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self.limit:
                        raise HTTPException(413, f"the file is larger than {self.limit / 1e6:g} MB, which is the limit")
                    await run_in_threadpool(file.write, chunk)
            volume = await run_in_threadpool(open_volume, place / safe)
            await run_in_threadpool(lambda: volume[0])
        except BaseException as error:
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(error, OSError):
                raise HTTPException(507, f"the file cannot be kept: {error.strerror or error}") from error
            if isinstance(error, (ValueError, RuntimeError, KeyError)):
                text = str(error).replace(f"{place}/", "")
                raise HTTPException(422, f"the file cannot be read: {text}") from error
            raise
        return f"uploads/{place.name}/{safe}"

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def make_app(
    root: Path,
    *,
    token: str = "",
    hosts: tuple[str, ...] = LOCAL,
    upload_limit: int = 4_000_000_000,
    device: str = "cpu",
    queue: Queue | None = None,
) -> FastAPI:
    """root: the folder that is shown, and where results of new jobs go. token: asked of every request, if not empty."""
    folder, uploads = Folder(root.resolve()), Uploads(upload_limit)
    queue = queue or Queue(folder.root, device)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        queue.start()
        yield
        await run_in_threadpool(queue.close)
        if not any(ticket.state not in ENDED for ticket in queue.tickets.values()):
            uploads.close()  # otherwise a job still needs what was uploaded

    app = FastAPI(title="mcddpm view", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.queue, app.state.uploads = queue, uploads
    _guard(app, token, hosts)
    _pages(app)
    _results(app, folder)
    _jobs(app, folder, uploads, queue)
    return app


# --- who may ask ----------------------------------------------------------------------------------------------------


def _guard(app: FastAPI, token: str, hosts: tuple[str, ...]) -> None:
    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        refused = _refusal(request, token, hosts)
        response = JSONResponse({"detail": refused[1]}, refused[0]) if refused else await call_next(request)
        response.headers.update(HEADERS)
        if token and not refused and request.query_params.get("token"):
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        return response

    @app.exception_handler(Missing)
    async def missing(_: Request, error: Missing) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404)


def _refusal(request: Request, token: str, hosts: tuple[str, ...]) -> tuple[int, str] | None:
    host = request.headers.get("host", "")
    name = urlsplit(f"//{host}").hostname or ""
    if name not in [h.strip("[]") for h in hosts]:  # a name that someone else made point at this machine
        return 403, f"this server does not answer to {host!r}"
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return 403, f"requests from pages of {origin} are refused"
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "requests from pages of another site are refused"
    given = (request.headers.get("x-token"), request.cookies.get(COOKIE), request.query_params.get("token"))
    if token and not any(secrets.compare_digest((one or "").encode(), token.encode()) for one in given):
        return 401, "this server asks for a token: open the address that it printed"
    return None


# --- the page -------------------------------------------------------------------------------------------------------


def _pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: Literal["view.js", "draw.js", "jobs.js", "view.css"]) -> FileResponse:
        return FileResponse(PAGE / name)


# --- results --------------------------------------------------------------------------------------------------------


def _results(app: FastAPI, folder: Folder) -> None:
    @app.get("/api/results", responses=REFUSED)
    def results() -> list[str]:
        """Names of the results in the folder."""
        return folder.results()

    @app.get("/api/result", responses=REFUSED)
    def result(name: Name) -> dict[str, Any]:
        """What a result holds: its size, layers, and provenance."""
        return folder.result(name).describe()

    @app.get("/api/layer", responses=REFUSED | BYTES, response_class=Response)
    def layer(
        name: Name, layer: Annotated[str, Query(max_length=30)], slice: Number = 0, sample: Number = 0
    ) -> Response:
        """One layer of one slice, as bytes."""
        return _bytes(folder.result(name).layer(layer, slice, sample))

    @app.get("/api/numbers", responses=REFUSED)
    def numbers(name: Name, slice: Number = 0) -> dict[str, float]:
        """Quality and more of one slice."""
        return folder.result(name).numbers(slice)

    @app.get("/api/box", responses=REFUSED)
    def box(name: Name, slice: Number, top: Number, left: Number, height: Number, width: Number) -> dict[str, Any]:
        """Statistics in a box of one slice."""
        return folder.result(name).box(slice, top, left, height, width)

    @app.get("/api/download", responses=REFUSED, response_class=FileResponse)
    def download(name: Name, format: Literal["h5", "nifti", "dicom"] = "h5") -> FileResponse:
        """The whole result: as it is, or its images as zipped NIfTI or DICOM."""
        found, path = folder.result(name), folder.place(name)
        if format == "h5":
            return FileResponse(path, filename=path.name, media_type="application/x-hdf5")
        made = _converted(found, format)
        return FileResponse(
            made,
            filename=f"{path.stem}-{format}.zip",
            media_type="application/zip",
            background=BackgroundTask(shutil.rmtree, made.parent, ignore_errors=True),
        )


def _bytes(image: np.ndarray) -> Response:
    content, low, high = pack(image)
    shape = ",".join(map(str, image.shape))
    headers = {"X-Low": repr(low), "X-High": repr(high), "X-Shape": shape}
    return Response(content, media_type="application/octet-stream", headers=headers)


def _converted(found: Result, format: str) -> Path:
    """A zip of the result in another format, in a temporary folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="mcddpm-view-"))
    try:
        stacks = {
            name: np.stack([found.layer(name, k) for k in range(found.slices)])
            for name in ("mean", "std", "lower", "upper")
            if name in found.stored
        }
        affine = found.file["affine"][:] if "affine" in found.file else None
        ends = (stacks["lower"], stacks["upper"]) if "lower" in stacks else None
        result = writers.Result(stacks["mean"], stacks.get("std"), found.provenance, affine=affine, interval=ends)
        stem = found.path.stem
        target = folder / "files" / (f"{stem}.nii.gz" if format == "nifti" else stem)
        writers.write(target, result)
        with zipfile.ZipFile(folder / "result.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(target.parent.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(target.parent))
        shutil.rmtree(folder / "files")
        return folder / "result.zip"
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, ImportError):
            raise HTTPException(415, f"{format} needs pip install 'mcddpm[medical]'") from error
        raise


# --- jobs -----------------------------------------------------------------------------------------------------------


def _jobs(app: FastAPI, folder: Folder, uploads: Uploads, queue: Queue) -> None:
    @app.get("/api/choices", responses=REFUSED)
    def choices() -> dict[str, Any]:
        """What a job may be asked: inputs in the folder, masks, samplers; and how large an upload may be."""
        done = set(folder.results())
        inputs = [name for name in folder.files() if name not in done]
        return {"inputs": inputs, "masks": COLUMNS, "samplers": list(SAMPLERS), "upload_limit": uploads.limit}

    @app.post(
        "/api/uploads",
        responses=REFUSED,
        status_code=201,
        openapi_extra={
            "requestBody": {
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
                "required": True,
            }
        },
    )
    async def upload(request: Request, name: Annotated[str, Query(min_length=1, max_length=300)]) -> dict[str, Any]:
        """A file of any format that can be read; returns what to call it in a job, and what is in it."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > uploads.limit:
            raise HTTPException(413, f"the file is larger than {uploads.limit / 1e6:g} MB, which is the limit")
        return await run_in_threadpool(_described, uploads, await uploads.keep(name, request.stream()))

    @app.get("/api/input", responses=REFUSED)
    def described(name: Name) -> dict[str, Any]:
        """What is in an input: its slices, and whether it was under-sampled when it was measured."""
        return _described(uploads, name, folder)

    @app.post("/api/jobs", responses=REFUSED, status_code=201)
    def add(wish: Wish) -> dict[str, Any]:
        """Queue a reconstruction; one runs at a time."""
        path = _input(uploads, wish.input, folder)
        if wish.mask and wish.mask not in COLUMNS:
            raise HTTPException(422, f"unknown mask {wish.mask!r}; known: {', '.join(COLUMNS)}")
        if sum(ticket.state not in ENDED for ticket in queue.tickets.values()) >= 100:
            raise HTTPException(409, "100 jobs are waiting already")
        mean = wish.sampler == "mean"
        task = Task(
            mask=wish.mask,
            acceleration=wish.acceleration,
            samples=1 if mean else wish.samples,
            sampler=wish.sampler,
            steps=1 if mean else wish.steps,
            seed=wish.seed,
        )
        return queue.add(path.name, path, task).describe()

    @app.get("/api/jobs", responses=REFUSED)
    def listed() -> list[dict[str, Any]]:
        """All jobs, the newest first."""
        return [ticket.describe() for ticket in sorted(queue.tickets.values(), key=lambda t: -t.made)]

    @app.get("/api/jobs/{job}", responses=REFUSED)
    def one(job: str) -> dict[str, Any]:
        """How far a job is."""
        return queue.tickets[_known(queue, job)].describe()

    @app.delete("/api/jobs/{job}", responses=REFUSED)
    def cancel(job: str) -> dict[str, Any]:
        """Cancel a job that waits or runs."""
        if queue.tickets[_known(queue, job)].state in ENDED:
            raise HTTPException(409, f"the job is {queue.tickets[job].state} already")
        return queue.cancel(job).describe()

    @app.get("/api/jobs/{job}/preview", responses=REFUSED | BYTES, response_class=Response)
    def preview(job: str) -> Response:
        """What a few samples of the running slice look like now: the clean estimates, (N, H, W)."""
        images = queue.previews.get(_known(queue, job))
        if images is None:
            raise HTTPException(409, "there is nothing to see of this job now")
        return _bytes(images)


def _known(queue: Queue, job: str) -> str:
    if job not in queue.tickets:
        raise Missing(f"no job {job!r}")
    return job


def _input(uploads: Uploads, name: str, folder: Folder | None) -> Path:
    if name.startswith("uploads/") or folder is None:
        return uploads.place(name)
    return folder.place(name)


def _described(uploads: Uploads, name: str, folder: Folder | None = None) -> dict[str, Any]:
    path = _input(uploads, name, folder)
    try:
        volume = open_volume(path)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise HTTPException(422, f"{path.name} cannot be read: {error}") from error
    sampled = volume.kind == "kspace" and volume.mask is not None
    return {
        "input": name,
        "kind": volume.kind,
        "slices": len(volume),
        "shape": list(volume.shape[-2:]),
        "undersampled": sampled,
    }
