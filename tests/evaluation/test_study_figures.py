"""Figures of an evaluation show what its pieces hold; what they need beyond it is made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mcddpm import plots
from mcddpm.cli import main
from mcddpm.evaluation import study_figures
from mcddpm.evaluation.methods import Method
from mcddpm.evaluation.run import evaluate
from mcddpm.evaluation.study import Evaluation
from mcddpm.uncertainty.calibration import load_calibration
from tests.conftest import Told
from tests.evaluation.studies import pieces, rows
from tests.knees import FILES, Stop, StopAt

pytest_plugins = ["tests.evaluation.fixtures"]

NAMES = [f"{name}-PD.png" for name in ("reconstruction", "samples", "steps", "count", "doubt", "calibration")]
SHOWN = f"PD-{FILES[1]}-0001"  # of the slices with this number, the middle one


def noting(draw: Callable[..., None], drawn: dict[str, Any]) -> Callable[..., None]:
    """A function that draws, and notes what."""

    def call(path: Path, *rest: object, **more: object) -> None:
        drawn[path.name] = rest
        draw(path, *rest, **more)

    return call


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_figures, "FEW_STEPS", (1, 2))
    monkeypatch.setattr(study_figures, "COUNT", 6)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What would be drawn."""
    drawn: dict[str, Any] = {}
    for name in ("panels", "plots"):
        monkeypatch.setattr(plots, name, noting(lambda *_, **__: None, drawn))
    return drawn


@pytest.fixture(scope="module")
def figures(done: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with all figures, and what is on them."""
    out, drawn = shutil.copytree(done, tmp_path_factory.mktemp("figures") / "run"), dict[str, Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_figures, "FEW_STEPS", (1, 2))
        patch.setattr(study_figures, "COUNT", 6)
        for name in ("panels", "plots"):
            patch.setattr(plots, name, noting(getattr(plots, name), drawn))
        study_figures.draw(out, slice=1)
    return out, drawn


def test_all_figures_are_drawn(figures: tuple[Path, dict]) -> None:
    out, drawn = figures
    assert sorted(path.name for path in (out / "figures").iterdir()) == sorted(NAMES) and list(drawn) == NAMES
    assert all((out / "figures" / name).stat().st_size > 10_000 for name in NAMES)


def test_reconstructions_and_their_errors_in_the_box(done: Path, figures: tuple[Path, dict]) -> None:
    images, insets, errors = figures[1][NAMES[0]][0][:3]
    assert [p.title.split("\n")[0] for p in images] == ["truth, 4x", "ZF", "One", "Ours", "std, 0 to 0.2"]
    box = images[0].box
    top, left, height, width = box
    expected = abs(images[2].image - images[0].image)[top : top + height, left : left + width]
    assert all(p.box == box for p in images) and np.array_equal(errors[2].image, expected) and errors[0] is None
    assert np.array_equal(insets[1].image, images[1].image[top : top + height, left : left + width])
    assert len({panel.vmax for panel in errors[1:]}) == 1, "one range for all errors"
    (part,) = pieces(done, "One", lambda name: name == f"{SHOWN}-4x")
    assert np.array_equal(images[2].image, part["mean"]) and np.array_equal(images[0].image, part["target"])
    row = next(r for r in rows(done) if (r.volume, r.slice, *r.key[1:]) == (FILES[1], 1, "One", 4.0))
    assert images[2].title == f"One\n{row.quality['psnr']:.2f}, {row.quality['ssim']:.3f}"


def test_std_is_shown_in_the_papers_ranges(done: Path, figures: tuple[Path, dict]) -> None:
    images, line = figures[1][NAMES[0]][0][0], figures[1][NAMES[1]][0][0]
    (part,) = pieces(done, "Ours", lambda name: name == f"{SHOWN}-4x")
    std = part["std"] * part["scale"]
    assert np.allclose(images[-1].image, std) and (images[-1].vmin, images[-1].vmax) == (0, 0.2)
    assert np.allclose(line[2].image, std) and (line[2].vmin, line[2].vmax) == (0, 1)
    assert len(line) == 4 + 5 and "sample 5" in line[-1].title


def test_curves_are_means_over_slices_with_the_same_seeds(done: Path, figures: tuple[Path, dict]) -> None:
    steps, count = (figures[1][name][0][0][0].lines["4x"] for name in NAMES[2:4])
    assert [x for x, _ in steps] == [1, 2] and [x for x, _ in count] == [1, 2, 3, 4, 5, 6]
    of_all = [row.quality["psnr"] for row in rows(done) if row.key == ("PD", "Ours", 4.0)]
    assert len(of_all) == 4 and steps[1][1] == pytest.approx(np.mean(of_all)), "the same seeds, so the same means"
    assert count[1][1] == pytest.approx(np.mean(of_all), abs=1e-3) and steps[0][1] != steps[1][1]


def test_doubt_beside_the_error(done: Path, figures: tuple[Path, dict]) -> None:
    line = figures[1][NAMES[4]][0][0]
    assert [panel.title for panel in line] == ["mean, 4x", "|error| of the mean", "std"]
    (part,) = pieces(done, "Ours", lambda name: name == f"{SHOWN}-4x")
    assert np.allclose(line[1].image, abs(part["mean"] - part["target"])) and np.allclose(line[2].image, part["std"])
    assert line[1].vmax == line[2].vmax


def test_by_command_nothing_is_made_twice(figures: tuple[Path, dict], unseen: dict, capfd) -> None:
    out = figures[0]
    made = {path: path.stat().st_mtime_ns for path in (out / "parts").rglob("*.npz")}
    assert len(made) == 24 + 8 + 16, "of each slice and acceleration, one of many samples, and one for every step"
    assert main(["figures", str(out), "--slice", "1", "--device", "cpu"]) == 0
    assert capfd.readouterr().out.split() == [str(out / "figures" / name) for name in NAMES]
    assert made == {path: path.stat().st_mtime_ns for path in (out / "parts").rglob("*.npz")}
    titles = [panel.title for panel in unseen[NAMES[1]][0][0][4:]]
    assert titles == [panel.title for panel in figures[1][NAMES[1]][0][0][4:]]


def test_what_was_begun_goes_on(done: Path, tmp_path: Path, unseen: dict, figures: tuple[Path, dict]) -> None:
    out = shutil.copytree(done, tmp_path / "run")
    with pytest.raises(Stop):
        study_figures.draw(out, slice=1, progress=StopAt(5))
    assert not unseen and len(list((out / "parts").rglob("*.npz"))) == 24 + 5
    told = Told()
    study_figures.draw(out, slice=1, progress=told)
    assert told.places[-1] == (19, 19, "")
    for name in NAMES[2:4]:
        assert unseen[name][0][0][0].lines == figures[1][name][0][0][0].lines


def test_half_of_an_interval_stands_beside_a_calibrated_std(
    calibrated: Evaluation, checked: Path, tmp_path: Path, unseen: dict
) -> None:
    out = shutil.copytree(checked, tmp_path / "run")
    evaluate(replace(calibrated, methods=calibrated.methods[:1]), out)
    study_figures.draw(out, slice=1)
    line = unseen[NAMES[4]][0][0]
    assert line[-1].title == "half of the 90 % interval"
    (part,) = pieces(out, "Ours", lambda name: name == f"{SHOWN}-4x")
    known = load_calibration(calibrated.methods[0].model).intervals
    (check,) = (r.self_check for r in rows(out) if (r.volume, r.slice, r.acceleration) == (FILES[1], 1, 4.0))
    images = (torch.from_numpy(part[key] * part["scale"]) for key in ("mean", "std"))
    assert check is not None
    stretch, _ = known.stretch(*images, 0.9, float(part["reached"]), check.overall)
    assert np.allclose(line[-1].image, stretch.numpy() * part["std"], rtol=1e-5) and len(np.unique(stretch)) == 2


def test_intervals_that_do_not_follow_the_self_check_are_told(
    calibrated: Evaluation, checked: Path, tmp_path: Path, unseen: dict, told: Told
) -> None:
    out = shutil.copytree(checked, tmp_path / "run")
    model = shutil.copytree(calibrated.methods[0].model, tmp_path / "model")
    known = load_calibration(model)
    replace(known, intervals=replace(known.intervals, adaptive=())).save(model)
    path = out / "evaluation.json"
    path.write_text(path.read_text().replace(calibrated.methods[0].model, str(model)))
    evaluate(replace(calibrated, methods=(replace(calibrated.methods[0], model=str(model)),)), out)
    study_figures.draw(out, slice=1, progress=told)
    assert [notice.line for notice in told.notices] == [
        f"warning: Ours, {SHOWN}-4x: this model's intervals do not follow the self-check: not all calibration slices "
        "had one (check_every)"
    ]
    assert unseen[NAMES[4]][0][0][-1].title == "half of the 90 % interval"


def test_another_device_draws_what_is_there_and_makes_no_more(
    done: Path, figures: tuple[Path, dict], tmp_path: Path, unseen: dict
) -> None:
    study_figures.draw(figures[0], slice=1, device="cuda")
    out = shutil.copytree(done, tmp_path / "run")
    with pytest.raises(ValueError, match="device was 'cpu', is 'cuda'"):
        study_figures.draw(out, device="cuda")


def test_the_papers_sampler_is_shown_at_its_own_numbers_of_steps() -> None:
    ours = Method("a", "mc_ddpm", sampler="ancestral")
    assert study_figures.steps_of(ours)[-1] == 1000 and 250 in study_figures.steps_of(ours)
    assert study_figures.steps_of(replace(ours, sampler="ddim"))[0] == 1


def test_figures_of_what_is_not_there(done: Path, tmp_path: Path, capfd) -> None:
    assert main(["figures", str(tmp_path)]) == 2
    assert "holds no finished evaluation: there is no rows.csv in it" in " ".join(capfd.readouterr().err.split())
    assert main(["figures", str(done), "--slice", "40"]) == 2
    assert "PD has no slice 40; it has 0, 1" in capfd.readouterr().err
    out = shutil.copytree(done, tmp_path / "out")
    next((out / "parts" / "ZF").iterdir()).unlink()
    with pytest.raises(ValueError, match="is not complete: mcddpm evaluate it again"):
        study_figures.draw(out)
    (out / "evaluation.json").unlink()
    with pytest.raises(ValueError, match=r"holds no finished evaluation: there is no evaluation\.json in it"):
        study_figures.draw(out)


def test_the_box_is_where_the_edges_are() -> None:
    truth = np.zeros((64, 64))
    truth[40:50, 8:18] = 1.0
    top, left, height, width = study_figures.box_of(truth)
    assert (height, width) == (16, 16) and top <= 39 and top + 16 >= 51 and left <= 7 and left + 16 >= 19
