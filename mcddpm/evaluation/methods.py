"""What is compared, as a configuration names it: a `Method` -> a function of a measurement and a seed.

Every kind is called alike, whatever it needs: nothing, a weight that is tuned on slices of its own, a network, or many
samples of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from mcddpm.data.cases import Case, cases_of, quality_of
from mcddpm.diffusion.samplers import SamplerName
from mcddpm.evaluation import baselines, score_based
from mcddpm.models.card import Model, ModelCard
from mcddpm.models.store import load_model, read_card
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system import files
from mcddpm.system.progress import Notice, Progress, Quiet, warning
from mcddpm.system.settings import changes
from mcddpm.system.workspace import Workspace

Reconstructor = Callable[[Measurement, int], Reconstruction]
WEIGHTS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
USUAL = DrawPlan()


@dataclass(frozen=True)
class Method:
    """What reconstructs. Not every kind takes every key (KINDS)."""

    name: str = ""
    """What tables call the method."""
    kind: str = ""
    """The kind of method; docs/how-to/compare-methods.md has them all."""
    model: str = ""
    """A shipped model's name, or a folder. `{label}` and `{acceleration}` stand for those of the case."""
    samples: int = 1
    """Samples for each slice."""
    sampler: SamplerName = USUAL.sampler
    """For `mc_ddpm`: the sampler."""
    steps: int = 0
    """Steps of the sampler, or levels of a score-based method. 0: the method's own number."""
    weight: float = 0.0
    """For `total_variation`: the weight. 0: the best on slices of `tune`."""
    tune: str = ""
    """For `total_variation`: the named data set on which the weight is chosen."""
    self_check: bool = False
    """For `mc_ddpm`: whether every slice is self-checked too."""
    settings: dict[str, float] = field(default_factory=dict, hash=False)
    """For score-based methods: `start`, `snr`, `step`, `likelihood`."""

    @property
    def plan(self) -> DrawPlan:
        """How MC-DDPM draws its samples."""
        return DrawPlan(self.samples, self.sampler, self.steps or USUAL.steps)

    @property
    def draws_samples(self) -> bool:
        return self.kind == "mc_ddpm" and self.plan.samples > 1

    @property
    def meaning(self) -> dict[str, Any]:
        """What decides an image, where it is not as usual."""
        return changes(self)


@lru_cache(maxsize=4)
def model_of(name: str, device: str) -> Model:
    return load_model(name, device)


def _mc_ddpm(method: Method, model: Any, m: Measurement, seed: int) -> Reconstruction:
    return reconstruct(model, m, replace(method.plan, seed=seed))


def _score_based(method: Method, model: Any, m: Measurement, seed: int) -> Reconstruction:
    run, steps = score_based.METHODS[method.kind], method.steps or 1000
    return run(model, m, samples=method.samples, steps=steps, seed=seed, **method.settings)


@dataclass(frozen=True)
class MethodKind:
    """call: how it is run. takes: the keys that it has a use for. model: what its model is, if it takes one."""

    call: Callable[[Method, Any, Measurement, int], Reconstruction]
    takes: tuple[str, ...] = ()
    model: Literal["", "diffusion", "supervised", "prior"] = ""


KINDS: dict[str, MethodKind] = {
    "zero_filled": MethodKind(lambda method, model, m, seed: baselines.zero_filled(m)),
    "total_variation": MethodKind(
        lambda method, model, m, seed: baselines.total_variation(m, method.weight), ("weight", "tune")
    ),
    "unet": MethodKind(lambda method, model, m, seed: baselines.unet(model, m), ("model",), "supervised"),
    "unet_put_back": MethodKind(
        lambda method, model, m, seed: baselines.unet(model, m, put_back=True), ("model",), "supervised"
    ),
    "mc_ddpm": MethodKind(_mc_ddpm, ("model", "samples", "sampler", "steps", "self_check"), "diffusion"),
    **dict.fromkeys(score_based.METHODS, MethodKind(_score_based, ("model", "samples", "steps", "settings"), "prior")),
}


def reconstructor(method: Method, device: str) -> Reconstructor:
    model = model_of(method.model, device) if method.model else None
    return lambda m, seed: KINDS[method.kind].call(method, model, m, seed)


# --- what cannot be run is refused before anything is ---------------------------------------------------------------


def check(methods: Sequence[Method]) -> None:
    names = [method.name for method in methods]
    if bad := [name for name in names if re.search(r"[/\\|]", name) or name.startswith(".")]:
        raise ValueError(f"a method is called {bad[0]!r}: its name is a folder's and a table's, without / \\ | in it")
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"the methods are {', '.join(names) or 'none'}: expected different names, and at least one")
    for method in methods:
        if method.kind not in KINDS:
            raise ValueError(f"unknown method {method.kind!r}; known: {', '.join(KINDS)}")
        for mistakes in (_of_settings, _of_counts, _of_keys, _of_weight):
            for mistake in mistakes(method):
                raise ValueError(f"method {method.name}{mistake}")


def _of_settings(method: Method) -> Iterator[str]:
    known = score_based.SETTINGS.get(method.kind, ())
    if bad := sorted(set(method.settings) - set(known)):
        message = f"it has {', '.join(known)}" if known else f"{method.kind} has none"
        yield f" has no setting {bad[0]!r}: {message}"
    if bad := sorted(key for key, value in method.settings.items() if not value > 0):
        yield f": {bad[0]} is {method.settings[bad[0]]}, expected a value above 0"
    if not method.settings.get("start", math.inf) > score_based.LOWEST:
        yield f": start is {method.settings['start']}, expected over {score_based.LOWEST}"


def _of_counts(method: Method) -> Iterator[str]:
    for what, value, least in (("samples", method.samples, 1), ("steps", method.steps, 0)):
        if value < least:
            yield f": {what} is {value}, expected {least} or more"
    if method.sampler not in (known := get_args(SamplerName)):
        yield f": sampler is {method.sampler!r}, expected one of: {', '.join(known)}"
    if method.sampler == "mean" and max(method.samples, method.steps) > 1:
        message = f"samples is {method.samples} and steps {method.steps}, expected 1 of each, or neither told"
        yield f": sampler mean is one call and one image; {message}"


def _of_keys(method: Method) -> Iterator[str]:
    usual, takes = Method(), KINDS[method.kind].takes
    given = [f.name for f in fields(Method) if getattr(method, f.name) != getattr(usual, f.name)]
    if bad := [key for key in given if key not in ("name", "kind", *takes)]:
        message = ", ".join(takes) or "nothing but a name"
        yield f": {method.kind} has no use for {bad[0]}; it takes {message}"
    if method.self_check and not method.draws_samples:
        yield " asks for a self-check, which is for mc_ddpm that draws samples"
    if not method.model and "model" in takes:
        yield " needs a model"


def _of_weight(method: Method) -> Iterator[str]:
    if method.weight < 0:
        yield f": weight is {method.weight}, expected a value above 0"
    if method.kind == "total_variation" and bool(method.weight) == bool(method.tune):
        message = "a weight, or `tune`, as brain:validation:192, to find it on"
        yield f" needs {message}{'; not both' if method.tune else ''}"


def check_model(method: Method) -> None:
    """Refuse a model that is not of the kind that a method takes, by its card."""
    if not method.model:
        return
    sort, expected = _sort_of(read_card(method.model)), KINDS[method.kind].model
    if sort != expected:
        message = f"takes a {expected} model; {method.model} is a {sort} one"
        raise ValueError(f"method {method.name} ({method.kind}) {message}")


def _sort_of(card: ModelCard) -> str:
    if card.kind == "supervised":
        return "supervised"
    return "diffusion" if card.conditional else "prior"


# --- a method for a case --------------------------------------------------------------------------------------------


def for_case(method: Method, case: Case) -> Method:
    """With the model that is for the case."""
    known = {"label": case.label, "acceleration": f"{case.acceleration:g}"}
    try:
        return replace(method, model=method.model.format(**known))
    except (LookupError, ValueError) as error:
        message = f"method {method.name}: {method.model!r} cannot be filled in ({error})"
        raise ValueError(f"{message}; known: {', '.join(f'{{{key}}}' for key in known)}") from error


def tuned(method: Method, like: Case, workspace: Workspace, progress: Progress | None = None) -> Method:
    """Total variation with the weight of the highest PSNR on eight slices of `tune`, measured like the case; found once
    for a label and an acceleration."""
    if method.kind != "total_variation" or method.weight:
        return method
    name = f"weight-{method.name}-{like.label}-{like.acceleration:g}x".replace("/", "_")
    path = workspace.folder / f"{name}.json"
    with files.locked(path.with_name(f".{name}.lock")):  # processes wait for the first one's, not each its own
        if not path.exists():
            psnr, notices = _tune(method, like)
            best = max(psnr, key=lambda weight: psnr[weight])
            files.write_json(path, {"weight": best, "psnr": psnr})
            if best in (WEIGHTS[0], WEIGHTS[-1]):
                notices.append(warning(f"the best weight of {method.name} is at the edge of those tried: {best:g}"))
            for notice in notices:
                (progress or Quiet()).say(notice)
    return replace(method, weight=json.loads(path.read_text())["weight"], tune="")


def _tune(method: Method, like: Case) -> tuple[dict[float, float], list[Notice]]:
    """PSNR by weight, and each kind of notice once."""
    cases = cases_of(replace(like.choice, source=method.tune, every=1, accelerations=(like.acceleration,)))
    made = [case.make() for case in cases[len(cases) // 25 :: max(len(cases) // 8, 1)][:8]]
    quality, notices = {}, dict[str, Notice]()
    for weight in WEIGHTS:
        recons = [baselines.total_variation(m, weight) for m in made]
        quality[weight] = float(np.mean([quality_of(r.mean, m)["psnr"] for r, m in zip(recons, made, strict=True)]))
        for notice in (notice for recon in recons for notice in recon.notices):
            notices.setdefault(notice.kind, warning(f"{method.name}, tuned at {weight:g}: {notice.text}"))
    return quality, list(notices.values())


def ours(methods: Iterable[Method]) -> str:
    """The name of the MC-DDPM that draws most samples, which tables and figures are about; "" if there is none."""
    drawing = [method for method in methods if method.draws_samples]
    return max(drawing, key=lambda method: method.samples).name if drawing else ""
