"""What the page and the server say to each other; with the routes in `app`, the whole of the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field

from mcddpm.data.volume import VolumeKind
from mcddpm.diffusion.samplers import SamplerName
from mcddpm.reconstruction.plan import DrawPlan

USUAL = DrawPlan()
Kind = Literal[""] | VolumeKind
Name = Annotated[str, Query(min_length=1, max_length=1000)]
Number = Annotated[int, Query(ge=0, le=100_000)]


class Wish(BaseModel):
    """What to reconstruct, and how. mask: empty for a scan that was under-sampled when it was measured. kind: what a
    file holds, if it does not say. interval: the level of lower and upper images; self_check: whether to ask if the
    model understands the scan; both for a model that is calibrated."""

    input: str = Field(min_length=1, max_length=1000)
    kind: Kind = ""
    mask: str = Field(default="", max_length=100)
    acceleration: float = Field(default=4.0, gt=1, le=64)
    samples: int = Field(default=USUAL.samples, ge=1, le=100)
    sampler: SamplerName = USUAL.sampler
    steps: int = Field(default=USUAL.steps, ge=1, le=1000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    interval: float | None = Field(default=None, gt=0, lt=1)
    self_check: bool = False


class Described(BaseModel):
    """A result."""

    slices: int
    height: int
    width: int
    samples: int
    layers: list[str]
    tops: dict[str, float]
    provenance: dict[str, Any]


class Box(BaseModel):
    """Statistics in a box; those over samples if there are several."""

    mean: float
    min: float
    max: float
    pixels: int
    histogram: list[int]
    edges: list[float]
    std: float | None = None
    std_of_average: float | None = None
    averages: list[float] = []


class Choices(BaseModel):
    """What a job may be asked."""

    inputs: list[str]
    masks: list[str]
    samplers: list[str]
    upload_limit: int
    model: str
    calibrated: bool
    self_check: bool


class Input(BaseModel):
    """A scan that could be reconstructed."""

    input: str
    kind: str
    slices: int
    shape: list[int]
    undersampled: bool


class Job(BaseModel):
    """How far a job is. result: the name of what came out, when it is done."""

    id: str
    name: str
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    message: str
    slices: int
    done: int
    step: int
    steps: int
    seconds_left: float | None
    result: str
    made: float


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
        "description": "16 bits a pixel, little-endian, row by row: value = low + stored (high - low) / 65535.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            "X-Low": {"schema": {"type": "number"}, "description": "The lowest value."},
            "X-High": {"schema": {"type": "number"}, "description": "The highest value."},
            "X-Shape": {"schema": {"type": "string"}, "description": "Height and width, or number, height and width."},
        },
    }
}
FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file.",
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in ("application/x-hdf5", "application/zip")
        },
    }
}
RAW = {
    "requestBody": {
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        "required": True,
    }
}
