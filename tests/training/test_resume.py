"""Stopped by a signal, killed, torn, or begun by the package of before: what comes out is the same, bit for bit."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mcddpm import load_model
from mcddpm.cli import main
from mcddpm.training.run import Stopped, train
from tests.processes import start
from tests.training.small import CASCADE, SMALL, Interrupt, as_toml, final, killed_train, rows, settings


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole")
    train(settings(), run)
    return run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped between two checkpoints, two log rows and in the middle of an epoch. To be copied."""
    run = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 10; the same command goes on from there"):
        train(settings(), run, Interrupt(10))
    return run


def copy(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to))


def test_resume_is_bit_for_bit(tmp_path: Path, whole: Path, stopped: Path) -> None:
    """With dropout."""
    assert (stopped / "checkpoints/step-00000010").is_dir()
    run, report = copy(stopped, tmp_path / "run"), Interrupt()
    train(settings(), run, report)
    assert any(text.startswith("going on from step 10") for text in report.said)
    assert final(run) == final(whole)


def test_control_c_ends_a_run_as_sigterm_does(tmp_path: Path, stopped: Path) -> None:
    with pytest.raises(Stopped, match="stopped by SIGINT at step 10"):
        train(settings(), tmp_path, Interrupt(10, signal.SIGINT))
    states = [(run / "checkpoints/step-00000010/training.safetensors").read_bytes() for run in (tmp_path, stopped)]
    assert states[0] == states[1]


def test_a_cascade_with_muon_on_strips_resumes_bit_for_bit(tmp_path: Path) -> None:
    chosen = settings({"network": CASCADE, "model": {"spectrum": False}}, optimiser="muon", strip=8, lr=1e-3)
    train(chosen, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(chosen, tmp_path / "halves", Interrupt(10))
    flat = copy(tmp_path / "halves", tmp_path / "flat")
    as_of_before(flat)
    for run in (tmp_path / "halves", flat):
        train(chosen, run)
        assert final(run) == final(tmp_path / "whole")


@pytest.mark.parametrize("moment", ["between", "within"])
def test_kill_nine_loses_only_the_steps_since_the_last_checkpoint(tmp_path: Path, whole: Path, moment: str) -> None:
    """The command, killed between two checkpoints, and in the middle of writing the second."""
    arguments = [str(as_toml(tmp_path / "small.toml", SMALL)), "--out", str(tmp_path / "run")]
    process = start(killed_train, moment, *arguments)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    names = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert names[-2:] == ["step-00000008", "step-00000012"] and len(names) == (3 if moment == "within" else 2)
    assert main(["train", *arguments]) == 0
    assert final(tmp_path / "run") == final(whole)
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 2, "nothing half written is left"


def test_a_truncated_newest_checkpoint_falls_back(tmp_path: Path, whole: Path, stopped: Path) -> None:
    run, report = copy(stopped, tmp_path / "run"), Interrupt()
    newest = run / "checkpoints/step-00000010/training.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="step-00000010.* is damaged.*using the checkpoint before it"):
        train(settings(), run, report)
    assert any(text.startswith("going on from step 8") for text in report.said)
    assert final(run) == final(whole)


# --- runs of before -------------------------------------------------------------------------------------------------


CASCADES = ("stages", "channels", "multipliers", "blocks", "patch", "groups", "dropout", "in_channels", "out_channels")


def as_of_before(run: Path) -> None:
    """Give a run's checkpoints the cards that mcddpm wrote when its modules were flat."""
    for path in run.glob("checkpoints/*/model.json"):
        card = json.loads(path.read_text())
        architecture = card["architecture"]
        known = CASCADES if architecture["stages"] else [key for key in architecture if key != "stages"]
        card |= {"format": 1, "architecture": {key: architecture[key] for key in known}}
        later = ("validation", "imported_from", *(["spectrum"] if card["spectrum"] is None else []))
        path.write_text(json.dumps({key: value for key, value in card.items() if key not in later}, indent=1) + "\n")


def test_a_run_of_the_flat_package_goes_on_bit_for_bit(tmp_path: Path, whole: Path, stopped: Path) -> None:
    run, report = copy(stopped, tmp_path / "run"), Interrupt()
    as_of_before(run)
    assert load_model(run).card.step == 10
    train(settings(), run, report)
    assert any(text.startswith("going on from step 10") for text in report.said)
    assert final(run) == final(whole)


# --- what a run leaves ----------------------------------------------------------------------------------------------


def test_ema_weights_are_exported_and_the_log_is_by_noise_level(whole: Path) -> None:
    folder = whole / "checkpoints" / "step-00000020"
    ema, net = load_file(folder / "model.safetensors"), load_file(folder / "training.safetensors")
    exported = load_file(whole / "model" / "model.safetensors")
    assert all(torch.equal(ema[key], exported[key]) for key in ema)
    assert any(not torch.equal(ema[key], net[f"net.{key}"]) for key in ema)
    logged = rows(whole / "log.jsonl")
    assert [row["step"] for row in logged] == [3, 6, 9, 12, 15, 18, 20]
    assert len(logged[0]["loss_by_sigma"]) > 2
