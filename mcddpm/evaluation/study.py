"""A study: what is compared on what, and the folder in which reconstructions are made and kept.

    OUT/evaluation.json      what the evaluation is (`system.workspace`)
    OUT/parts/               each reconstruction that is done: its mean and std, PSNR by number of samples, its row

Every method gets the same measurement of the same slice. What is done is not done again, and torchrun shares the
work. A row's numbers depend on the configuration, the weights and the kind of device alone (a GPU draws other noise
than a CPU), but for `seconds`, and for the last digits: threads sum in an order of their own. A configuration may gain
methods and cases later: what has a name in a folder keeps its meaning there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcddpm import metrics
from mcddpm.data.cases import Case, Cases, cases_of, fitted, quality_of, target_of
from mcddpm.evaluation.methods import Method, check, for_case, model_of, reconstructor, tuned
from mcddpm.evaluation.rows import REGIONS, Row
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import read_card
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.system.progress import Notice, Once, Progress, Quiet
from mcddpm.system.settings import from_dict, to_dict
from mcddpm.system.workspace import Piece, Workspace
from mcddpm.uncertainty import case_checks, scores
from mcddpm.uncertainty.calibration import load_calibration
from mcddpm.uncertainty.kept_slices import arrays_of

Pair = tuple[Case, Method]


@dataclass(frozen=True)
class Evaluation:
    """What is compared on what."""

    cases: tuple[Cases, ...] = (Cases(),)
    methods: tuple[Method, ...] = ()
    reference: str = ""
    """Name of the method whose gains the tables show."""
    shown: tuple[str, ...] = ()
    """Names of the methods in Table 1 and in the figure of reconstructions. Empty: all."""
    seed: int = 0
    """Decides the samples, together with the name of the case."""


def chosen(evaluation: Evaluation) -> list[Pair]:
    """All that is to be reconstructed, and by what: methods have their names, and the model that is for the case."""
    methods = [replace(method, name=method.name or method.kind) for method in evaluation.methods]
    check(methods)
    known = [method.name for method in methods]
    for what, names in (("reference", {evaluation.reference} - {""}), ("shown", set(evaluation.shown))):
        if unknown := sorted(names - set(known)):
            raise ValueError(f"{what} names {', '.join(unknown)}; the methods are: {', '.join(known)}")
    labels = [choice.name for choice in evaluation.cases]
    if len(set(labels)) < len(labels):
        raise ValueError(f"the cases are called {', '.join(labels)}: give each a label of its own")
    pairs = []
    for choice in evaluation.cases:
        if unknown := sorted(set(choice.methods) - set(known)):
            raise ValueError(f"cases ask for the methods {', '.join(unknown)}; known: {', '.join(known)}")
        own = [method for method in methods if not choice.methods or method.name in choice.methods]
        for case in cases_of(choice):
            pairs += [(case, for_case(method, case)) for method in own]
    return pairs


def piece_name(case: Case, method: Method) -> str:
    """The name of a reconstruction in the workspace."""
    return f"{method.name}/{case.name}"


def check_name(case: Case, method: Method) -> str:
    """The name of a self-check in the workspace."""
    known = load_calibration(method.model).checked
    return case_checks.name_of(method.name, case, known.plan, known.operator)


@dataclass
class Study:
    """An evaluation's folder, and one process's work in it."""

    workspace: Workspace
    seed: int
    device: str = "cpu"
    progress: Progress = field(default_factory=Quiet)

    @cached_property
    def once(self) -> Once:
        return Once(self.progress)

    def claim(self, evaluation: Evaluation, wanted: Sequence[Pair], *, any_device: bool = False) -> None:
        """The folder is for this evaluation, which may have more methods and cases than last time, or fewer; but a
        method, a case, a model and a file that was there must be what it was, and the kind of device."""
        models = sorted({method.model for _, method in wanted if method.model})
        named: dict[str, dict[str, Any]] = {
            "cases": {choice.name: choice.meaning for choice in evaluation.cases},
            "methods": {method.name or method.kind: method.meaning for method in evaluation.methods},
            "weights": {name: weights_of(name) for name in models},
            "data": {f"{case.label} {case.volume}": case.data[:16] for case, _ in wanted},
        }
        fixed = {"seed": evaluation.seed} | ({} if any_device else {"device": torch.device(self.device).type})
        self.workspace.claim(fixed, named, last=to_dict(evaluation))

    def work(self, wanted: Sequence[Pair]) -> bool:
        """Make what is missing of this process's share, the self-checks last; True if all is there."""
        made = {piece_name(*pair): partial(self.draw, *pair) for pair in wanted}
        made |= {check_name(*pair): partial(self._check, *pair) for pair in wanted if pair[1].self_check}
        return self.workspace.work(list(made), lambda name: made[name](), self.progress)

    def piece(self, case: Case, method: Method) -> Piece:
        return self.workspace.read(piece_name(case, method))

    def has(self, case: Case, method: Method) -> bool:
        return self.workspace.all_there([piece_name(case, method)])

    def draw(self, case: Case, method: Method, keep: int = 0) -> None:
        """One reconstruction, its row, and the first `keep` of its samples."""
        method = tuned(method, case, self.workspace, self.progress)
        measurement, call, seed = case.make(), reconstructor(method, self.device), case.draw_seed(self.seed)
        start = time.monotonic()
        try:
            recon = call(measurement, seed)
        except ValueError as error:
            raise ValueError(f"{method.name}, {case.name}: {error}") from error
        seconds = round(time.monotonic() - start, 3)
        self.tell("", case, measurement.notices)
        self.tell(method.name, case, [notice for notice in recon.notices if notice not in measurement.notices])
        target = target_of(measurement)
        shown = magnitudes(recon, target)
        row = Row(
            *(case.label, case.protocol, case.volume, case.slice, case.acceleration, method.name),
            quality=quality_of(recon.mean, measurement),
            foreground=metrics.inside(fitted(recon.mean, target), target, scores.foreground(target)),
            samples=len(recon.samples),
            calls=recon.calls * len(recon.samples),
            seconds=seconds,
            seed=seed,
            weight=method.weight or None,
            device=torch.device(self.device).type,
            truth=case.choice.truth,
            **doubts(shown, target),
        )
        arrays = arrays_of(recon, measurement) | {"samples": np.asarray(shown[:keep], np.float32)}
        arrays["by_count"] = np.array([float(metrics.psnr(mean, target)) for mean in running_means(shown)])
        if len(shown) > 1:
            arrays["ranks"] = scores.ranks(shown, target, scores.even_foreground(shown, target)).numpy()
        self.workspace.keep(piece_name(case, method), arrays, to_dict(row))

    def _check(self, case: Case, method: Method) -> None:
        model, known = model_of(method.model, self.device), load_calibration(method.model).checked
        assert isinstance(model, Denoiser)
        seed, name = case.draw_seed(self.seed), check_name(case, method)
        case_checks.make(self.workspace, name, model, case, known.plan, seed, known.operator)

    def tell(self, method: str, case: Case, notices: Iterable[Notice]) -> None:
        """Each kind of notice once a method; without a method, what is to be known of the scan."""
        self.once.say(method, f"{method}, {case.name}" if method else case.name, notices)


def weights_of(model: str) -> str:
    """The first digits of the sha256 of a model's weights; "" without a model."""
    return read_card(model).sha256[:16] if model else ""


def row_of(piece: Piece) -> Row:
    """As it was kept: intervals and more are added when all rows are written."""
    return from_dict(Row, piece.notes)


def doubts(shown: Tensor, target: Tensor) -> dict[str, Any]:
    """Of several samples (N, H, W), how right their spread is."""
    if len(shown) < 2:
        return {}
    inside = scores.even_foreground(shown, target)
    by_region = {region: scores.scores(shown, target, w) for region, w in zip(REGIONS, (inside, None), strict=True)}
    return {"scores": by_region, "pixels_foreground": int(inside.sum())}


def magnitudes(recon: Reconstruction, target: Tensor) -> Tensor:
    """All samples as images in the target's matrix.  (N, H, W)"""
    samples = torch.as_tensor(recon.samples).cpu()
    return torch.stack([fitted(x.abs() if x.is_complex() else x, target) for x in samples])


def running_means(samples: Tensor) -> Tensor:
    """The mean of the first 1, 2, ... samples."""
    return samples.cumsum(0) / torch.arange(1, len(samples) + 1).reshape(-1, 1, 1)
