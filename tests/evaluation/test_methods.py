"""What is compared: every kind of method does what its module does, and what cannot be run is refused first."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from mcddpm.data.cases import Cases, cases_of, quality_of
from mcddpm.evaluation import baselines, methods, score_based
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation
from mcddpm.models.store import load_model
from mcddpm.physics.measurement import Measurement
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import reconstruct
from mcddpm.system.progress import note
from mcddpm.system.workspace import Workspace
from tests.conftest import Told
from tests.evaluation.studies import METHODS, only, rows
from tests.knees import Stop, knee, saved

pytest_plugins = ["tests.evaluation.fixtures"]


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(saved(tmp_path_factory.mktemp("prior") / "prior", {"model": {"conditional": False}}))


def one_slice(asked: Evaluation, *given: Method) -> Evaluation:
    return only(asked, *given, accelerations=(4.0,), every=4)


def test_every_kind_of_method(asked: Evaluation, prior: str, tmp_path: Path) -> None:
    """Each runs in the harness, is what its module makes, and costs what it says."""
    unet = str(saved(tmp_path / "unet", {"model": {"kind": "supervised"}}))
    ours = asked.methods[2].model
    models = dict.fromkeys(("unet", "unet_put_back"), unet) | dict.fromkeys(score_based.METHODS, prior)
    given = {"total_variation": {"weight": 1e-3}, "mc_ddpm": {"steps": 2, "samples": 2}}
    given |= {kind: {"samples": 2, "steps": 2} for kind in score_based.METHODS}
    models["mc_ddpm"] = ours
    every = [Method(k, k, models.get(k, ""), **given.get(k, {})) for k in methods.KINDS]  # type: ignore[arg-type]
    evaluate(one_slice(asked, *every), tmp_path / "out")
    found = {row.method: row for row in rows(tmp_path / "out")}
    calls = {"zero_filled": 0, "total_variation": 0, "unet": 1, "unet_put_back": 1, "mc_ddpm": 4}
    calls |= {name: 2 * each for name, each in {"chung_ye": 4, "song": 4, "jalal": 5, "ddpm": 2}.items()}
    assert {name: row.calls for name, row in found.items()} == calls
    case = cases_of(asked.cases[0])[0]
    m, seed, supervised = case.make(), case.draw_seed(0), load_model(unet)
    expected = {
        "zero_filled": baselines.zero_filled(m),
        "total_variation": baselines.total_variation(m, 1e-3),
        "unet": baselines.unet(supervised, m),  # type: ignore[arg-type]
        "unet_put_back": baselines.unet(supervised, m, put_back=True),  # type: ignore[arg-type]
        "mc_ddpm": reconstruct(load_model(ours), m, samples=2, steps=2, seed=seed),  # type: ignore[arg-type]
        **{
            name: call(load_model(prior), m, samples=2, steps=2, seed=seed)
            for name, call in score_based.METHODS.items()
        },
    }
    assert expected.keys() == found.keys()
    for name, recon in expected.items():
        assert found[name].quality["psnr"] == pytest.approx(quality_of(recon.mean, m)["psnr"], abs=1e-3), name
    assert len({row.quality["psnr"] for row in found.values()}) == len(found), "no two of them are the same"
    weights = {name: row.weight for name, row in found.items() if row.weight is not None}
    assert weights == {"total_variation": 1e-3}


def test_how_ours_draws_its_samples() -> None:
    assert Method(samples=5, steps=3, sampler="heun").plan == DrawPlan(5, "heun", 3)
    assert Method(samples=5).plan == DrawPlan(5), "steps: the usual, unless told"
    assert str(Method(sampler="mean").plan) == "1 sample of mean in 1 step"
    ours = Method("Ours", "mc_ddpm", samples=2)
    drawn = {m: m.draws_samples for m in (ours, replace(ours, samples=1), replace(ours, sampler="mean"), METHODS[0])}
    assert list(drawn.values()) == [True, False, False, False]
    assert ours.meaning == {"name": "Ours", "kind": "mc_ddpm", "samples": 2}, "what is as usual means nothing"


def test_ours_is_the_one_that_draws_most_samples() -> None:
    theirs, ours = Method("Song", "song", "prior", samples=32), Method("Ours", "mc_ddpm", samples=2)
    mean = replace(ours, name="Mean", sampler="mean", samples=64)
    assert methods.ours([theirs, ours, mean, replace(ours, name="Three", samples=3)]) == "Three"
    assert methods.ours([theirs, ours, mean]) == "Ours"
    assert methods.ours([theirs]) == "", "of a comparison of baselines, none"


# --- total variation's weight ---------------------------------------------------------------------------------------


def known_best(monkeypatch: pytest.MonkeyPatch, best: float) -> list[float]:
    """In total variation's place, a method whose best weight is known; returns what it was shown."""
    seen: list[float] = []

    def total_variation(m: Measurement, weight: float) -> Reconstruction:
        seen.append(float(m.y_m.abs().sum()))
        assert m.truth is not None
        image = m.truth / m.scale * (1 + 0.1 * abs(math.log(weight / best)) + 0.01)
        return Reconstruction(image[None], 0, (note("it went on and on"),) if weight == methods.WEIGHTS[1] else ())

    monkeypatch.setattr(baselines, "total_variation", total_variation)
    return seen


@pytest.mark.parametrize("best", [methods.WEIGHTS[2], methods.WEIGHTS[-1]])
def test_the_weight_that_is_best_on_other_slices_is_taken(
    asked: Evaluation, tmp_path: Path, told: Told, monkeypatch, best: float
) -> None:
    seen = known_best(monkeypatch, best)
    knee(tmp_path / "tune" / "file1000009.h5", 4, seed=9)
    method = Method("TV", "total_variation", tune=str(tmp_path / "tune"))
    like = cases_of(replace(asked.cases[0], label="a/b"))[0]
    workspace = Workspace(tmp_path, "evaluation")
    with monkeypatch.context() as patch, pytest.raises(Stop):  # half-way through the weights
        patch.setattr(methods, "quality_of", Mock(side_effect=[{"psnr": 99.0}] * 11 + [Stop]))
        methods.tuned(method, like, workspace)
    seen.clear()
    found = methods.tuned(method, like, workspace, told)
    assert found == replace(method, weight=best, tune="")
    edge = [f"warning: the best weight of TV is at the edge of those tried: {best:g}"] * (best == methods.WEIGHTS[-1])
    assert [n.line for n in told.notices] == ["warning: TV, tuned at 0.001: it went on and on", *edge]
    cases = cases_of(replace(asked.cases[0], source=str(tmp_path / "tune"), accelerations=(4.0,)))
    assert len(cases) == 4 and set(seen) == {float(case.make().y_m.abs().sum()) for case in cases}, "measured alike"
    monkeypatch.setattr(baselines, "total_variation", None)
    assert methods.tuned(method, like, workspace).weight == best, "found once"
    with pytest.raises(TypeError):
        methods.tuned(method, replace(like, acceleration=8.0), workspace)  # another acceleration's is another


def test_a_row_says_which_weight_was_taken(asked: Evaluation, tmp_path: Path, monkeypatch) -> None:
    known_best(monkeypatch, methods.WEIGHTS[2])
    evaluate(one_slice(asked, Method("TV", "total_variation", tune=asked.cases[0].source)), tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "weight-TV-PD-4x.json").read_text())
    assert [row.weight for row in rows(tmp_path / "out")] == [kept["weight"]] == [methods.WEIGHTS[2]]
    assert list(kept["psnr"]) == [str(weight) for weight in methods.WEIGHTS]


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a/b", "a|b", "a\\b", ".hidden"])
def test_names_that_are_none(asked: Evaluation, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="its name is a folder's and a table's"):
        evaluate(only(asked, Method(name, "zero_filled")), tmp_path / "out")


def test_a_score_based_methods_settings_reach_it_and_count(asked: Evaluation, prior: str, tmp_path: Path) -> None:
    """They change the image; in a folder a name keeps its settings, and has none where none were given."""
    plain = Method("Song", "song", prior, steps=2)
    longer = replace(plain, name="longer", settings={"start": 0.5})
    evaluate(one_slice(asked, plain, longer), tmp_path / "out")
    found = {row.method: row.quality["psnr"] for row in rows(tmp_path / "out")}
    assert found["Song"] != found["longer"]
    with pytest.raises(ValueError, match=r"methods\.Song\.settings was None, is \{'start': 0\.5\}"):
        evaluate(one_slice(asked, replace(plain, settings={"start": 0.5})), tmp_path / "out")
    with pytest.raises(ValueError, match=r"methods\.longer\.settings\.start was 0\.5, is 0\.6"):
        evaluate(one_slice(asked, replace(longer, settings={"start": 0.6})), tmp_path / "out")
    evaluate(one_slice(asked, plain), tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        ("song", {"step": 0.1}, "method S has no setting 'step': it has start, snr"),
        ("ddpm", {"start": 0.1}, "method S has no setting 'start': ddpm has none"),
        ("song", {"snr": -1.0}, "method S: snr is -1.0, expected a value above 0"),
        ("song", {"start": 0.005}, r"method S: start is 0.005, expected over 0.01"),
    ],
)
def test_settings_that_are_none(
    asked: Evaluation, tmp_path: Path, kind: str, settings: dict[str, float], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        evaluate(only(asked, Method("S", kind, "anything", settings=settings)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ()}, "the methods are none"),
        ({"methods": (METHODS[0], METHODS[0])}, "expected different names"),
        ({"methods": (Method("A", "magic"),)}, "unknown method 'magic'; known: zero_filled"),
        ({"methods": (Method("A", "unet"),)}, "method A needs a model"),
        ({"methods": (Method("A", "total_variation"),)}, "method A needs a weight, or `tune`"),
        ({"methods": (Method("A", "zero_filled", samples=0),)}, "method A: samples is 0, expected 1 or more"),
        ({"methods": (Method("A", "mc_ddpm", "default", steps=-1),)}, "method A: steps is -1, expected 0 or more"),
        (
            {"methods": (Method("A", "zero_filled", samples=20),)},
            "zero_filled has no use for samples; it takes nothing",
        ),
        ({"methods": (Method("A", "unet", "unet", steps=9),)}, "unet has no use for steps; it takes model"),
        (
            {"methods": (Method("A", "song", "prior", weight=1.0),)},
            "song has no use for weight; it takes model, samples",
        ),
        (
            {"methods": (Method("A", "mc_ddpm", "default", sampler="ddmi"),)},  # type: ignore[arg-type]
            "method A: sampler is 'ddmi', expected one of: ",
        ),
        (
            {"methods": (Method("A", "mc_ddpm", "default", self_check=True),)},
            "method A asks for a self-check, which is for mc_ddpm that draws samples",
        ),
        (
            {"methods": (Method("A", "mc_ddpm", "knee-{labl}"),)},
            r"cannot be filled in \('labl'\); known: {label}, {acc",
        ),
        (
            {"methods": (METHODS[0], Method("A", "jalal", "default"))},
            r"A \(jalal\) takes a prior model; default is a diff",
        ),
        (
            {"methods": (METHODS[0], Method("A", "unet", "prior"))},
            r"A \(unet\) takes a supervised model; prior is a prior",
        ),
        ({"methods": (METHODS[0], Method("A", "mc_ddpm", "prior"))}, r"takes a diffusion model; prior is a prior one"),
        ({"methods": (METHODS[0], Method("A", "mc_ddpm", "nowhere"))}, r"no model 'nowhere'"),
        ({"reference": "U-net"}, "reference names U-net; the methods are: ZF, One, Ours"),
        ({"shown": ("Ours", "Theirs")}, "shown names Theirs; the methods are: ZF, One, Ours"),
        ({"cases": (Cases(source="nowhere", protocol="paper"),)}, "no .h5 files in nowhere"),
        ({"cases": (Cases(source="brain"),)}, "is not of the form NAME:SPLIT:SIZE"),
        ({"cases": (Cases(protocol="papr"),)}, "cases of brain: unknown protocol 'papr'; known: simulated, paper"),
        ({"cases": (Cases(every=0),)}, "every is 0, expected 1 or more"),
        ({"cases": (Cases(accelerations=()),)}, r"accelerations are \[\], expected some of 1 or more"),
        ({"cases": (Cases(family="colums"),)}, "unknown family 'colums'; known: random_columns"),
        ({"cases": (Cases(snr=0.0),)}, "snr is 0.0, expected a value above 0"),
        ({"cases": (Cases(protocol="paper", snr=20.0),)}, "protocol paper has no use for snr"),
        ({"cases": (Cases(label="a"), Cases(label="a"))}, "the cases are called a, a: give each a label of its own"),
        ({"methods": (Method("A", "total_variation", weight=-1.0),)}, "weight is -1.0, expected a value above 0"),
        ({"methods": (Method("A", "total_variation", weight=1.0, tune="b"),)}, "to find it on; not both"),
        (
            {"methods": (Method("A", "mc_ddpm", "default", sampler="mean", samples=5),)},
            "sampler mean is one call and one image; samples is 5 and steps 0, expected 1 of each",
        ),
    ],
)
def test_mistakes(tmp_path: Path, asked: Evaluation, change: dict, message: str) -> None:
    values = {"cases": asked.cases, "methods": asked.methods} | change
    with pytest.raises(ValueError, match=message):
        evaluate(Evaluation(**values), tmp_path / "out")
    assert not (tmp_path / "out").exists(), "before anything is done"
