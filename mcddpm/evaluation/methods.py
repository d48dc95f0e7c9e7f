"""What is compared, as a configuration names it: a `Method` -> a function of a measurement and a seed.

Every kind is called alike, whatever it needs: nothing, a weight that is tuned on slices of its own, a network, or many
samples of one.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mcddpm.data.cases import Case, cases_of, quality_of
from mcddpm.diffusion.samplers import SAMPLERS
from mcddpm.evaluation import baselines, score_based
from mcddpm.models.card import Model
from mcddpm.models.store import describe, load_model
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import SAMPLER, STEPS, reconstruct
from mcddpm.system import files

Reconstructor = Callable[[Measurement, int], Reconstruction]
WEIGHTS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)


@dataclass(frozen=True)
class Method:
    """kind: one of KINDS. model: a name or folder, in which {label} and {acceleration} stand for the case's. weight:
    total variation's; 0 for the best of WEIGHTS on slices of `tune`. steps: 0 for the method's own. self_check: whether
    every slice is self-checked too, as the model's calibration was. settings: a score-based method's own, by name."""

    name: str = ""
    kind: str = ""
    model: str = ""
    samples: int = 1
    sampler: str = SAMPLER
    steps: int = 0
    weight: float = 0.0
    tune: str = ""
    self_check: bool = False
    settings: dict[str, float] = field(default_factory=dict, hash=False)


@lru_cache(maxsize=4)
def model_of(name: str, device: str) -> Model:
    return load_model(name, device)


def _mc_ddpm(method: Method, model: Any, m: Measurement, seed: int) -> Reconstruction:
    steps = method.steps or (1 if method.sampler == "mean" else STEPS)
    return reconstruct(model, m, samples=method.samples, sampler=method.sampler, steps=steps, seed=seed)


def _score_based(method: Method, model: Any, m: Measurement, seed: int) -> Reconstruction:
    run, steps = score_based.METHODS[method.kind], method.steps or 1000
    return run(model, m, samples=method.samples, steps=steps, seed=seed, **method.settings)


KINDS: dict[str, Callable[[Method, Any, Measurement, int], Reconstruction]] = {
    "zero_filled": lambda method, model, m, seed: baselines.zero_filled(m),
    "total_variation": lambda method, model, m, seed: baselines.total_variation(m, method.weight),
    "unet": lambda method, model, m, seed: baselines.unet(model, m),
    "unet_put_back": lambda method, model, m, seed: baselines.unet(model, m, put_back=True),
    "mc_ddpm": _mc_ddpm,
    **dict.fromkeys(score_based.METHODS, _score_based),
}

TAKES: dict[str, tuple[str, ...]] = {
    "zero_filled": (),
    "total_variation": ("weight", "tune"),
    "unet": ("model",),
    "unet_put_back": ("model",),
    "mc_ddpm": ("model", "samples", "sampler", "steps", "self_check"),
    **dict.fromkeys(score_based.METHODS, ("model", "samples", "steps", "settings")),
}


def reconstructor(method: Method, device: str) -> Reconstructor:
    model = model_of(method.model, device) if method.model else None
    return lambda m, seed: KINDS[method.kind](method, model, m, seed)


def check(methods: Sequence[Method]) -> None:
    """Refuse what cannot be run, before anything is."""
    names = [method.name for method in methods]
    if bad := [name for name in names if re.search(r"[/\\|]", name) or name.startswith(".")]:
        raise ValueError(f"a method is called {bad[0]!r}: its name is a folder's and a table's, without / \\ | in it")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"the methods are {', '.join(names) or 'none'}: expected different names, and at least one")
    for method in methods:
        if method.kind not in KINDS:
            raise ValueError(f"unknown method {method.kind!r}; known: {', '.join(KINDS)}")
        known = score_based.SETTINGS.get(method.kind, ())
        if bad := sorted(set(method.settings) - set(known)):
            told = f"it has {', '.join(known)}" if known else f"{method.kind} has none"
            raise ValueError(f"method {method.name} has no setting {bad[0]!r}: {told}")
        if bad := sorted(key for key, value in method.settings.items() if not value > 0):
            raise ValueError(f"method {method.name}: {bad[0]} is {method.settings[bad[0]]}, expected a value above 0")
        if not method.settings.get("start", math.inf) > score_based.LOWEST:
            raise ValueError(
                f"method {method.name}: start is {method.settings['start']}, expected over {score_based.LOWEST}"
            )
        for what, value, least in (("samples", method.samples, 1), ("steps", method.steps, 0)):
            if value < least:
                raise ValueError(f"method {method.name}: {what} is {value}, expected {least} or more")
        if method.sampler not in SAMPLERS:
            raise ValueError(f"method {method.name}: unknown sampler {method.sampler!r}; known: {', '.join(SAMPLERS)}")
        usual = Method()
        given = [f.name for f in fields(Method) if getattr(method, f.name) != getattr(usual, f.name)]
        if bad := [key for key in given if key not in ("name", "kind", *TAKES[method.kind])]:
            told = ", ".join(TAKES[method.kind]) or "nothing but a name"
            raise ValueError(f"method {method.name}: {method.kind} has no use for {bad[0]}; it takes {told}")
        if method.self_check and not draws_samples(method):
            raise ValueError(f"method {method.name} asks for a self-check, which is for mc_ddpm that draws samples")
        if not method.model and "model" in TAKES[method.kind]:
            raise ValueError(f"method {method.name} needs a model")
        if method.sampler == "mean" and max(method.samples, method.steps) > 1:
            told = f"samples is {method.samples} and steps {method.steps}, expected 1 of each, or neither told"
            raise ValueError(f"method {method.name}: sampler mean is one call and one image; {told}")
        if method.weight < 0:
            raise ValueError(f"method {method.name}: weight is {method.weight}, expected a value above 0")
        if method.kind == "total_variation" and bool(method.weight) == bool(method.tune):
            told = "a weight, or `tune`, as brain:validation:192, to find it on"
            raise ValueError(f"method {method.name} needs {told}{'; not both' if method.tune else ''}")


def check_model(method: Method) -> None:
    """Refuse a model that is not of the kind that a method takes, by its card."""
    if not method.model:
        return
    card = describe(method.model)[0]
    found = "supervised" if card["kind"] == "supervised" else "diffusion" if card.get("conditional", True) else "prior"
    expected = (
        "supervised"
        if method.kind.startswith("unet")
        else "prior"
        if method.kind in score_based.METHODS
        else "diffusion"
    )
    if found != expected:
        raise ValueError(
            f"method {method.name} ({method.kind}) takes a {expected} model; {method.model} is a {found} one"
        )


def for_case(method: Method, case: Case) -> Method:
    """With the model that is for the case."""
    known = {"label": case.label, "acceleration": f"{case.acceleration:g}"}
    try:
        return replace(method, model=method.model.format(**known))
    except (LookupError, ValueError) as error:
        told = f"method {method.name}: {method.model!r} cannot be filled in ({error})"
        raise ValueError(f"{told}; known: {', '.join(f'{{{key}}}' for key in known)}") from error


def tuned(method: Method, like: Case, out: Path) -> Method:
    """Total variation with the weight of the highest PSNR on eight slices of `tune`, measured like the case; found once
    for a label and an acceleration."""
    if method.kind != "total_variation" or method.weight:
        return method
    path = out / f"weight-{method.name}-{like.label}-{like.acceleration:g}x.json".replace("/", "_")
    with files.locked(path.with_name(f".{path.stem}.lock")):  # processes wait for the first one's, not each its own
        if not path.exists():
            _tune(method, like, path)
    return replace(method, weight=json.loads(path.read_text())["weight"], tune="")


def _tune(method: Method, like: Case, path: Path) -> None:
    found = cases_of(replace(like.choice, source=method.tune, every=1, accelerations=(like.acceleration,)))
    made = [case.make() for case in found[len(found) // 25 :: max(len(found) // 8, 1)][:8]]
    quality = {}
    for weight in WEIGHTS:
        images = [baselines.total_variation(m, weight).mean for m in made]
        quality[weight] = float(np.mean([quality_of(x, m)["psnr"] for x, m in zip(images, made, strict=True)]))
    best = max(quality, key=lambda weight: quality[weight])
    if best in (WEIGHTS[0], WEIGHTS[-1]):
        warnings.warn(f"the best weight of {method.name} is at the edge of those tried: {best:g}", stacklevel=3)
    with files.whole(path) as part:
        part.write_text(json.dumps({"weight": best, "psnr": quality}) + "\n")


def draws_samples(method: Method) -> bool:
    return method.kind == "mc_ddpm" and method.samples > 1 and method.sampler != "mean"


def ours(methods: Iterable[Method]) -> str:
    """The name of the MC-DDPM that draws most samples, which tables and figures are about; "" if there is none."""
    found = [method for method in methods if draws_samples(method)]
    return max(found, key=lambda method: method.samples).name if found else ""
