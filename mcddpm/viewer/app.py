"""The server: a page, results as bytes, and jobs. It answers this machine alone unless told, and then with a token.

Nothing outside the folder it was started with can be reached; uploads are limited, checked by the readers, and kept in
a private folder. Who may ask is `guard.py`.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from mcddpm import __version__
from mcddpm.data import writers
from mcddpm.data.readers import open_volume
from mcddpm.diffusion.samplers import SAMPLERS
from mcddpm.models.store import read_card, shipped
from mcddpm.physics.masks import MASKS
from mcddpm.reconstruction.inputs import Task
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.uncertainty.calibration import Calibration, load_calibration
from mcddpm.viewer import messages, trust
from mcddpm.viewer.guard import LOCAL, guard
from mcddpm.viewer.messages import BYTES, FILE, RAW, REFUSED, Box, Choices, Described, Input, Job, Kind, Name, Number
from mcddpm.viewer.queue import ENDED, Full, Queue
from mcddpm.viewer.results import Folder, Missing, Result, pack
from mcddpm.viewer.uploads import Uploads

PAGE = Path(__file__).parent / "page"
FAMILIES = tuple(name for name in MASKS if "views" not in name and name != "limited_angle")


def make_app(
    root: Path,
    *,
    model: str = "default",
    token: str = "",
    hosts: tuple[str, ...] = LOCAL,
    upload_limit: int = 4_000_000_000,
    device: str = "cpu",
    extra_inputs: tuple[Path, ...] = (),
) -> FastAPI:
    """root: the folder that is shown, and where results of new jobs go. model: what jobs use. token: asked of every
    request, if not empty. extra_inputs: files outside that jobs may read, as the bundled scan."""
    model = model if model in shipped() else str(Path(model).resolve())
    read_card(model)  # or it is refused now, not by the first job
    folder, uploads = Folder(root.resolve()), Uploads(upload_limit)

    def allowed(path: Path) -> bool:
        place = path.resolve()
        return place.is_relative_to(folder.root) or uploads.owns(place) or place in [p.resolve() for p in extra_inputs]

    queue = Queue(folder.root, device, allowed=allowed)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        queue.start()
        uploads.sweep([Path(ticket.input) for ticket in queue.tickets.values() if ticket.state not in ENDED])
        yield
        await run_in_threadpool(queue.close)
        if not any(ticket.state not in ENDED for ticket in queue.tickets.values()):
            uploads.close()  # otherwise a job still needs what was uploaded

    app = FastAPI(title="mcddpm view", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.queue, app.state.uploads = queue, uploads
    guard(app, token, hosts)
    _pages(app)
    _results(app, folder)
    _inputs(app, folder, uploads, model)
    _jobs(app, folder, uploads, queue, model)
    return app


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
    def result(name: Name) -> Described:
        """What a result holds: its size, layers, and provenance."""
        return Described(**folder.result(name).describe())

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
    def box(name: Name, slice: Number, top: Number, left: Number, height: Number, width: Number) -> Box:
        """Statistics in a box of one slice."""
        return Box(**folder.result(name).box(slice, top, left, height, width))

    @app.get("/api/download", responses=REFUSED | FILE, response_class=FileResponse)
    def download(name: Name, format: Literal["h5", "nifti", "dicom"] = "h5") -> FileResponse:
        """The whole result: as it is, or its images as zipped NIfTI or DICOM (without the input's patient header)."""
        result, path = folder.result(name), folder.place(name)
        if format == "h5":
            return FileResponse(path, filename=path.name, media_type="application/x-hdf5")
        made = _converted(result, format)
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


def _converted(shown: Result, format: str) -> Path:
    """A zip of the result in another format, in a temporary folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="mcddpm-zip-"))
    try:
        stacks = {
            name: np.stack([shown.layer(name, k) for k in range(shown.slices)])
            for name in ("mean", "std", "lower", "upper")
            if name in shown.stored
        }
        ends = (stacks["lower"], stacks["upper"]) if "lower" in stacks else None
        result = writers.Result(
            stacks["mean"], stacks.get("std"), shown.provenance, affine=shown.affine(), interval=ends
        )
        files, stem = folder / "files", shown.path.stem
        if format == "nifti":
            writers.write_nifti(files / f"{stem}.nii.gz", result)
        else:
            writers.write_dicom(files / stem, result)
        with zipfile.ZipFile(folder / "result.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(files.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(files))
        shutil.rmtree(files)
        return folder / "result.zip"
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, ImportError):
            raise HTTPException(415, f"{format} needs pip install 'mcddpm[medical]'") from error
        if isinstance(error, OSError):
            raise HTTPException(507, f"the file cannot be made: {error.strerror or error}") from error
        raise


# --- inputs ---------------------------------------------------------------------------------------------------------


def _inputs(app: FastAPI, folder: Folder, uploads: Uploads, model: str) -> None:
    @app.get("/api/choices", responses=REFUSED)
    def choices() -> Choices:
        """What a job may be asked: inputs in the folder, masks, samplers, what the model can do; and how large
        an upload may be."""
        done = set(folder.results())
        inputs = [name for name in folder.files() if name not in done]
        known = _calibration(model)
        return Choices(
            inputs=inputs,
            masks=list(FAMILIES),
            samplers=list(SAMPLERS),
            upload_limit=uploads.limit,
            model=Path(model).name,
            calibrated=known is not None,
            self_check=known is not None and known.self_check is not None,
        )

    @app.post("/api/uploads", responses=REFUSED, status_code=201, openapi_extra=RAW)
    async def upload(
        request: Request,
        name: Annotated[str, Query(min_length=1, max_length=300)],
        kind: Kind = "",
        batch: Annotated[str, Query(pattern="^([0-9a-f]{16})?$")] = "",
        more: bool = False,
    ) -> Input:
        """A file of any format that can be read; returns what to call it in a job, and what is in it. A DICOM series is
        sent one file at a time: batch is the first one's id, and more says that others follow."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > uploads.limit:
            raise HTTPException(413, f"the file is larger than {uploads.limit / 1e6:g} MB, which is the limit")
        kept = await uploads.keep(name, request.stream(), batch)
        if more:
            return Input(input=kept, kind="", slices=0, shape=[], undersampled=False)
        try:
            return await run_in_threadpool(_described, uploads.place(kept), kept, kind)
        except BaseException:
            uploads.drop(uploads.folder / kept.removeprefix("upload:"))
            raise

    @app.get("/api/input", responses=REFUSED)
    def described(name: Name, kind: Kind = "") -> Input:
        """What is in an input: its slices, and whether it was under-sampled when it was measured."""
        return _described(_input(uploads, name, folder), name, kind)


def _calibration(model: str) -> Calibration | None:
    """The model's own, if it has one that was fitted for its weights."""
    try:
        return load_calibration(model)
    except ValueError:
        return None


def _input(uploads: Uploads, name: str, folder: Folder) -> Path:
    return uploads.place(name) if name.startswith("upload:") else folder.place(name)


def _described(path: Path, name: str, kind: Kind) -> Input:
    """What a reader finds; whatever a broken file leads it to is the file's fault."""
    try:
        trust.check(path)
        volume = open_volume(path, kind=kind or None)
        volume[0]
        return Input(
            input=name,
            kind=volume.kind,
            slices=len(volume),
            shape=list(volume.shape[-2:]),
            undersampled=volume.kind == "kspace" and volume.mask is not None,
        )
    except Exception as error:
        text = str(error).replace(f"{path.parent}/", "").encode("utf-8", "replace").decode()
        raise HTTPException(422, f"{path.name} cannot be read: {text or type(error).__name__}") from error


# --- jobs -----------------------------------------------------------------------------------------------------------


def _jobs(app: FastAPI, folder: Folder, uploads: Uploads, queue: Queue, model: str) -> None:
    @app.post("/api/jobs", responses=REFUSED, status_code=201)
    def add(wish: messages.Wish) -> Job:
        """Queue a reconstruction; one runs at a time."""
        path = _input(uploads, wish.input, folder)
        task = _task(wish, _described(path, wish.input, wish.kind), model)
        try:
            return Job(**queue.add(path.name, path, task).describe())
        except Full as error:
            raise HTTPException(507, str(error)) from error

    @app.get("/api/jobs", responses=REFUSED)
    def listed() -> list[Job]:
        """All jobs, the newest first."""
        return [Job(**ticket.describe()) for ticket in queue.listed()]

    @app.get("/api/jobs/{job}", responses=REFUSED)
    def one(job: str) -> Job:
        """How far a job is."""
        return Job(**queue.tickets[_known(queue, job)].describe())

    @app.delete("/api/jobs/{job}", responses=REFUSED)
    def cancel(job: str) -> Job:
        """Cancel a job that waits or runs."""
        if queue.tickets[_known(queue, job)].state in ENDED:
            raise HTTPException(409, f"the job is {queue.tickets[job].state} already")
        return Job(**queue.cancel(job).describe())

    @app.get(
        "/api/jobs/{job}/preview",
        responses=REFUSED | BYTES | {204: {"description": "Nothing to see now."}},
        response_class=Response,
    )
    def preview(job: str) -> Response:
        """What a few samples of the running slice look like now: the clean estimates, (N, H, W)."""
        images = queue.previews.get(_known(queue, job))
        return Response(status_code=204) if images is None else _bytes(images)


def _task(wish: messages.Wish, described: Input, model: str) -> Task:
    """What is asked, if the scan and the model allow it."""
    if wish.mask and wish.mask not in FAMILIES:
        raise HTTPException(422, f"unknown mask {wish.mask!r}; known: {', '.join(FAMILIES)}")
    if described.undersampled and wish.mask:
        raise HTTPException(422, "the scan was under-sampled when it was measured: choose no mask")
    if not described.undersampled and not wish.mask:
        raise HTTPException(422, "the scan is fully sampled: choose a mask")
    try:
        if wish.interval is not None:
            load_calibration(model).intervals.check(wish.interval)
        if wish.self_check:
            _ = load_calibration(model).checked
        return Task(
            model=model,
            mask=wish.mask,
            acceleration=wish.acceleration,
            plan=DrawPlan(wish.samples, wish.sampler, wish.steps, seed=wish.seed),
            kind=wish.kind or None,
            interval=wish.interval,
            self_check=wish.self_check,
        )
    except ValueError as error:
        raise HTTPException(422, str(error)) from error


def _known(queue: Queue, job: str) -> str:
    if job not in queue.tickets:
        raise Missing(f"no job {job!r}")
    return job
