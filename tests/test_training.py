"""Training: exact resume, several processes, learning at all, and stopping early when something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mcddpm import load_model, plots
from mcddpm.cli import main
from mcddpm.data.examples import stream_of
from mcddpm.data.phantoms import drawn
from mcddpm.models.store import describe
from mcddpm.models.supervised import Supervised
from mcddpm.system.settings import from_dict, to_dict
from mcddpm.training import run
from mcddpm.training.checkpoints import validation_of
from mcddpm.training.run import Stopped, train
from mcddpm.training.settings import Config
from mcddpm.training.trainer import Diverged, Quiet, Trainer, learning_rate

TINY = {
    "data": {"drawn_size": 16, "drawn_slices": 7},
    "mask": {"families": ["random_columns", "equispaced_columns"], "accelerations": [2, 4]},
    "network": {
        "channels": 8,
        "multipliers": [1, 2],
        "attention": [2],
        "heads": 2,
        "patch": 2,
        "groups": 2,
        "dropout": 0.1,
    },
    "training": {
        **{"steps": 20, "batch": 4, "warmup": 3, "log_every": 3, "checkpoint_every": 4, "validate_every": 12},
        **{"validation_slices": 1, "validation_samples": 2, "validation_steps": 2},
    },
}


def settings(**training_keys: object) -> Config:
    return from_dict(Config, TINY | {"training": {**TINY["training"], **training_keys}})


class Interrupt(Quiet):
    """Sends a signal to this process at a step, and keeps what was said."""

    def __init__(self, at: int = -1, number: int = signal.SIGTERM) -> None:
        self.at, self.number, self.said = at, number, []

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, step: int, steps: int, loss: float, images_per_second: float) -> None:
        if step == self.at:
            os.kill(os.getpid(), self.number)


def final(run: Path) -> dict[str, bytes]:
    """All that must be the same: weights, EMA, optimiser, log."""
    folder = sorted((run / "checkpoints").iterdir())[-1]
    files = [folder / "training.safetensors", folder / "model.safetensors", run / "log.jsonl", run / "validation.jsonl"]
    return {f"{folder.name}/{file.name}": file.read_bytes() for file in [*files, run / "model" / "model.safetensors"]}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_resume_is_bit_for_bit(tmp_path: Path, number: int) -> None:
    """Stopped between two checkpoints, two log rows and in the middle of an epoch, with dropout."""
    train(settings(), tmp_path / "whole")
    with pytest.raises(Stopped, match=f"stopped by {signal.Signals(number).name} at step 10"):
        train(settings(), tmp_path / "halves", Interrupt(10, number))
    assert (tmp_path / "halves/checkpoints/step-00000010").is_dir()
    report = Interrupt()
    train(settings(), tmp_path / "halves", report)
    assert any(text.startswith("going on from step 10") for text in report.said)
    assert final(tmp_path / "halves") == final(tmp_path / "whole")


def command(run: Path, config_file: Path, *extra: str, processes: int = 1) -> list[str]:
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", "29571", "-m"]
    return [*start, "mcddpm", "train", str(config_file), "--out", str(run), *extra]


def as_toml(path: Path, values: dict) -> Path:
    lines = []
    for section, keys in values.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path.write_text("\n".join(lines))
    return path


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def test_kill_nine_loses_only_the_steps_since_the_last_checkpoint(tmp_path: Path) -> None:
    file = as_toml(tmp_path / "tiny.toml", TINY)
    subprocess.run(command(tmp_path / "whole", file), env=ENVIRONMENT, check=True, capture_output=True)
    process = subprocess.Popen(command(tmp_path / "killed", file), env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed/checkpoints/step-00000012").is_dir() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "model").exists(), "it was to be killed before the end"
    again = subprocess.run(command(tmp_path / "killed", file), env=ENVIRONMENT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert final(tmp_path / "killed") == final(tmp_path / "whole")


def test_a_truncated_newest_checkpoint_falls_back(tmp_path: Path) -> None:
    train(settings(), tmp_path / "whole")
    with pytest.raises(Stopped):
        train(settings(), tmp_path / "torn", Interrupt(10))
    newest = tmp_path / "torn/checkpoints/step-00000010/training.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    report = Interrupt()
    with pytest.warns(UserWarning, match="step-00000010.* is damaged.*using the checkpoint before it"):
        train(settings(), tmp_path / "torn", report)
    assert any(text.startswith("going on from step 8") for text in report.said)
    assert final(tmp_path / "torn") == final(tmp_path / "whole")


def assert_same_training(one: Path, two: Path, tmp_path: Path) -> None:
    """The weights of two runs differ by less than a thousandth of the way that they have come."""
    begin = Trainer(settings(), tmp_path / "begin", Quiet()).model.network.state_dict()
    start, a, b = (
        torch.cat([weights[key].flatten() for key in sorted(begin)])
        for weights in (begin, *(load_file(run / "model" / "model.safetensors") for run in (one, two)))
    )
    assert (a - b).norm() < 1e-3 * (a - start).norm()
    assert (a - start).norm() > 0.01


def test_two_processes_match_one(tmp_path: Path) -> None:
    """Half the batch each, gloo; then a run begun by two goes on with one, and says what that changes."""
    file = as_toml(tmp_path / "tiny.toml", TINY | {"network": TINY["network"] | {"dropout": 0.0}})
    short = ("--set", "training.steps=8", "--set", "training.checkpoint_every=4")
    one = subprocess.run(command(tmp_path / "one", file, *short), env=ENVIRONMENT, capture_output=True, text=True)
    two = subprocess.run(
        command(tmp_path / "two", file, *short, processes=2), env=ENVIRONMENT, capture_output=True, text=True
    )
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    assert_same_training(tmp_path / "one", tmp_path / "two", tmp_path)
    rows = [json.loads((tmp_path / run / "log.jsonl").read_text().splitlines()[-1]) for run in ("one", "two")]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=1e-4)
    more = subprocess.run(
        command(tmp_path / "two", file, "--set", "training.steps=10"), env=ENVIRONMENT, capture_output=True, text=True
    )
    assert more.returncode == 0, more.stderr
    said = " ".join(more.stderr.split())
    assert "2 processes before, 1 now" in said and "not be bit-identical" in said
    assert "training.steps was 8, is 10" in said


def test_accumulation_is_the_same_batch(tmp_path: Path) -> None:
    base = from_dict(Config, TINY | {"network": TINY["network"] | {"dropout": 0.0}})
    values = to_dict(base)
    for pieces in (1, 2):
        values["training"] |= {"accumulate": pieces, "steps": 5}
        train(from_dict(Config, values), tmp_path / str(pieces))
    assert_same_training(tmp_path / "1", tmp_path / "2", tmp_path)


def overfit(tmp_path: Path, size: int, network: dict, **training_keys: object) -> dict[str, float]:
    """The last validation of a run on four drawn slices, on those slices."""
    np.save(tmp_path / "four.npy", drawn(4, size, seed=7).images)
    hyper = {"batch": 8, "warmup": 20, "ema": 0.98, "validate_every": 10_000, **training_keys}
    values = {
        "data": {"train": str(tmp_path / "four.npy"), "validation": str(tmp_path / "four.npy")},
        "mask": {"accelerations": [4]},
        "model": {"parameterisation": "eps" if hyper.get("times") == "uniform" else "denoised"},
        "network": {"channels": 32, "multipliers": [1, 2], "attention": [2], **network},
        "training": hyper,
    }
    train(from_dict(Config, values), tmp_path / "run")
    assert list((tmp_path / "run" / "validation").glob("*.png"))
    return json.loads((tmp_path / "run" / "validation.jsonl").read_text().splitlines()[-1])


def test_a_tiny_network_overfits_four_slices(tmp_path: Path) -> None:
    row = overfit(tmp_path, 32, {"patch": 2}, steps=150, lr=2e-3)
    assert row["one_call"] >= row["zero_filled"] + 6


def test_the_papers_recipe_overfits_four_slices(tmp_path: Path) -> None:
    """eps, t uniform: slower to learn, and judged by samples, as an eps-network has no one-call mean."""
    row = overfit(tmp_path, 16, {"patch": 1}, steps=250, lr=1e-3, times="uniform")
    assert row["mean"] >= row["zero_filled"] + 6


@pytest.mark.parametrize("kind", ["radon", "sense"])
def test_other_operators_train(tmp_path: Path, kind: str) -> None:
    values = {**TINY, "operator": {"kind": kind, "views": 24}}
    if kind == "radon":
        values["mask"] = {"families": ["sparse_views", "limited_angle"], "accelerations": [3]}
    else:
        values["operator"]["maps"] = "simulated:3"
    values["training"] = {**TINY["training"], "steps": 6}
    train(from_dict(Config, values), tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert (model.operator is None) == (kind == "sense")


def test_coil_maps_from_a_file(tmp_path: Path) -> None:
    maps = np.exp(1j * np.arange(2 * 16 * 16)).reshape(2, 16, 16).astype(np.complex64)
    np.save(tmp_path / "maps.npy", maps)
    values = {**TINY, "operator": {"kind": "sense", "maps": str(tmp_path / "maps.npy")}}
    trainer = Trainer(from_dict(Config, values), tmp_path, Quiet())
    assert trainer.stream.batch([0]).y_m.shape == (1, 2, 16, 16)


def test_ema_weights_are_exported_and_logged_by_noise_level(tmp_path: Path) -> None:
    train(settings(), tmp_path)
    folder = tmp_path / "checkpoints" / "step-00000020"
    ema, net = load_file(folder / "model.safetensors"), load_file(folder / "training.safetensors")
    exported = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(ema[key], exported[key]) for key in ema)
    assert any(not torch.equal(ema[key], net[f"net.{key}"]) for key in ema)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [3, 6, 9, 12, 15, 18, 20]
    assert len(rows[0]["loss_by_sigma"]) > 2


def test_the_best_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    """Of four validations the second is the best; killed and gone on with after the third, it still is."""
    psnr = {5: 20.0, 10: 22.0, 15: 21.0, 20: 21.5}
    seen: dict[int, dict] = {}

    def validated(model, stream, hyper, device):
        step = 5 * (len(seen) + 1)
        seen[step] = {key: value.clone() for key, value in model.network.state_dict().items()}
        return {"zero_filled": 30.0, "mean": psnr[step], "one_call": 40.0}, [[plots.Panel("x", np.zeros((4, 4)))]]

    monkeypatch.setattr(run, "validate", validated)
    chosen = to_dict(settings(validate_every=5, checkpoint_every=5))
    chosen["data"] |= {"validation": chosen["data"]["train"]}
    for steps in (15, 20):
        chosen["training"] |= {"steps": steps}
        train(from_dict(Config, chosen), tmp_path / "run")
    assert main(["weights", "export", str(tmp_path / "run"), "--best", "--out", str(tmp_path / "best")]) == 0
    card, weights = describe(tmp_path / "best")
    assert card["step"] == 10 and card["data_sha256"] and all(torch.equal(weights[k], seen[10][k]) for k in weights)
    assert card["validation"] == {"step": 10, "zero_filled": 30.0, "mean": 22.0, "one_call": 40.0}
    assert describe(tmp_path / "run")[0]["step"] == 20 and validation_of(tmp_path, 20) == {}
    assert validation_of(tmp_path / "run", 19)["step"] == 15
    psnr[25] = 10.0
    chosen["training"] |= {"steps": 25, "validation_slices": 3}
    train(from_dict(Config, chosen), tmp_path / "run")
    assert describe(tmp_path / "run" / "best")[0]["step"] == 25, "on other slices, the first is the best"
    shutil.rmtree(tmp_path / "run" / "best")
    assert main(["weights", "export", str(tmp_path / "run"), "--best", "--out", str(tmp_path / "none")]) == 2
    assert "holds no best model" in capfd.readouterr().err


def test_ema_warms_up(tmp_path: Path) -> None:
    """After the first step it is a tenth of the start and nine tenths of the weights, whatever training.ema says."""
    trainer = Trainer(settings(ema=0.9999), tmp_path, Quiet())
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.advance()
    for start, now, ema in zip(before, trainer.model.parameters(), trainer.ema.parameters(), strict=True):
        assert torch.allclose(ema, 0.1 * start + 0.9 * now, atol=1e-7)


def test_what_the_advice_names_may_change_between_stretches(tmp_path: Path) -> None:
    train(settings(steps=2), tmp_path)
    report = Interrupt()
    train(settings(steps=4, lr=1e-5, warmup=1), tmp_path, report)
    assert any("training.lr was 0.0003, is 1e-05" in text for text in report.said)


def test_learning_rate_warms_up_and_decays() -> None:
    hyper = settings(warmup=10, steps=110, lr=1.0, final_lr=0.1).training
    rate = [learning_rate(hyper, step) for step in range(111)]
    assert rate[0] == 0.1 and rate[9] == 1.0 and rate[60] == pytest.approx(0.55) and rate[110] == pytest.approx(0.1)


def test_times_follow_the_asked_distribution(tmp_path: Path) -> None:
    trainer = Trainer(settings(batch=4000, times="lognormal"), tmp_path, Quiet())
    a, b = trainer.model.schedule.at(trainer.objective.times(0))
    log_sigma = (b / a).log()
    assert log_sigma.mean().item() == pytest.approx(-1.6, abs=0.02)
    assert log_sigma.std().item() == pytest.approx(1.5, rel=0.02)
    trainer = Trainer(settings(batch=4000, times="uniform"), tmp_path, Quiet())
    counts = torch.bincount(trainer.objective.times(0).long(), minlength=1001)
    assert counts[0] == 0 and (counts[1:] == 4).all()


# --- what stops a run -----------------------------------------------------------------------------------------------


def test_a_diverged_run_keeps_its_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Trainer.loss

    def loss(self: Trainer, *args: object) -> torch.Tensor:
        return honest(self, *args) * (float("nan") if self.step == 10 else 1)

    monkeypatch.setattr(Trainer, "loss", loss)
    with pytest.raises(Diverged, match=r"the loss is nan .* at step 10; slices \[.*\], t \[.*Try a lower training.lr"):
        train(settings(), tmp_path)
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008"]
    weights = load_file(tmp_path / "checkpoints/step-00000008/training.safetensors")
    assert all(torch.isfinite(w).all() for w in weights.values() if w.is_floating_point())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": {"beta_scale": 1.0}}, "schedule.beta_scale was 0.5, is 1.0"),
        ({"operator": {"kind": "radon"}}, "operator.kind was 'fourier', is 'radon'"),
        ({"network": {**TINY["network"], "channels": 16}}, "network.channels was 8, is 16"),
        ({"model": {"data_std": 0.5}}, "model.data_std was 0.1, is 0.5"),
        ({"training": {**TINY["training"], "seed": 3}}, "training.seed was 0, is 3"),
    ],
)
def test_a_run_cannot_change_what_it_is(tmp_path: Path, change: dict, message: str) -> None:
    train(settings(steps=2), tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=f"another configuration: .*{message}"):
        train(from_dict(Config, {**TINY, **change}), tmp_path)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"train": "none.npy"}}, "no file none.npy with slices"),
        ({"data": {"train": "empty.npy"}}, "empty.npy holds no slices: nothing to train on"),
        ({"data": {"train": "flat.npy"}}, r"flat.npy has shape \(4, 4\), expected \(slices, height, width\)"),
        ({"data": {"train": "text.npy"}}, "text.npy cannot be read as slices"),
        ({"data": {"train": "nan.npy"}}, "nan.npy, slice . holds NaN or infinite values"),
        ({"data": {"train": "complex.npy"}, "operator": {"kind": "radon"}}, "is complex, but operator radon"),
        ({"operator": {"kind": "sense"}}, "operator sense needs operator.maps"),
        ({"operator": {"kind": "spiral"}}, "unknown operator 'spiral'; known: fourier, sense, radon"),
        ({"schedule": {"name": "quadratic"}}, "unknown schedule 'quadratic'; known: cosine"),
        ({"mask": {"families": []}}, "the mix of masks is empty"),
        ({"mask": {"families": ["spiral"]}}, "unknown mask 'spiral'"),
        ({"training": {"batch": 3, "accumulate": 2}}, "training.batch 3 does not divide into 1 processes x 2"),
        ({"training": {"steps": 0}}, "training.steps is 0, expected 1 or more"),
        ({"training": {"times": "often"}}, "training.times is 'often'"),
        ({"training": {"precision": "float8"}}, "training.precision is 'float8'"),
        ({"training": {"compile": "of"}}, "training.compile is 'of', expected one of: auto, on, off"),
        ({"training": {"device": "banana"}}, "unknown device 'banana'"),
        ({"training": {"validation_steps": 0}}, "training.validation_steps is 0"),
        ({"data": {"validation": "typo.npy"}}, "no file typo.npy with slices"),
        ({"data": {"train": "archive.npz"}}, "archive.npz is an archive"),
        ({"mask": {"accelerations": [1.0]}}, "mask samples everything"),
        ({"network": {"heads": 0}}, "heads is 0 and head_channels 0"),
        ({"training": {"init": "nowhere"}}, "no model .nowhere."),
    ],
)
def test_bad_settings_stop_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("empty.npy", np.zeros((0, 4, 4)))
    np.save("flat.npy", np.zeros((4, 4)))
    np.save("nan.npy", np.full((3, 16, 16), np.nan))
    np.save("complex.npy", np.ones((3, 16, 16), np.complex64))
    np.savez("archive.npz", x=np.ones((3, 16, 16)))
    Path("text.npy").write_text("no array")
    small = {key: {**TINY[key], **values.get(key, {})} for key in TINY} | {
        k: v for k, v in values.items() if k not in TINY
    }
    with pytest.raises(ValueError, match=message):
        train(from_dict(Config, small), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot write to the folder"):
        train(settings(), tmp_path / "file" / "run")


def test_starting_from_another_operators_weights(tmp_path: Path) -> None:
    train(settings(steps=2), tmp_path / "mri")
    values = {**TINY, "operator": {"kind": "radon", "views": 24}, "mask": {"families": ["sparse_views"]}}
    values["training"] = {**TINY["training"], "init": str(tmp_path / "mri")}
    with pytest.raises(ValueError, match="is a model with another operator"):
        train(from_dict(Config, values), tmp_path / "ct")
    again = settings(steps=2, init=str(tmp_path / "mri"))
    train(again, tmp_path / "more")


def test_real_slices_are_warned_about(tmp_path: Path) -> None:
    np.save(tmp_path / "real.npy", np.abs(drawn(3, 16, seed=1).images))
    values = {**TINY, "data": {"train": str(tmp_path / "real.npy")}, "simulation": {"phase": 0.0}}
    report = Interrupt()
    train(from_dict(Config, {**values, "training": {**TINY["training"], "steps": 1}}), tmp_path / "r", report)
    assert any("its k-space is Hermitian" in text for text in report.said)


def test_a_run_can_be_repeated_from_its_manifest(tmp_path: Path) -> None:
    train(settings(steps=3), tmp_path / "one")
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert set(manifest["data"]) == {"train", "validation"} and len(manifest["data"]["train"]["sha256"]) == 64
    train(from_dict(Config, manifest["config"]), tmp_path / "two")
    a, b = ((tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("one", "two"))
    assert a == b


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    images = drawn(3, 16, seed=1).images
    np.save(tmp_path / "slices.npy", images)
    values = {**TINY, "data": {"train": str(tmp_path / "slices.npy")}, "training": {**TINY["training"], "steps": 2}}
    train(from_dict(Config, values), tmp_path / "run")
    np.save(tmp_path / "slices.npy", 2 * images)
    values["training"]["steps"] = 4
    with pytest.raises(ValueError, match=r"slices.npy is not what .* was trained on"):
        train(from_dict(Config, values), tmp_path / "run")


CASCADE = {"stages": 2, "channels": 8, "multipliers": [1, 2], "patch": 2, "groups": 2, "dropout": 0.1}


def test_a_cascade_with_muon_on_strips_resumes_bit_for_bit(tmp_path: Path) -> None:
    keys = {**TINY["training"], "optimiser": "muon", "strip": 8, "lr": 1e-3}
    chosen = from_dict(Config, TINY | {"network": CASCADE, "training": keys, "model": {"spectrum": False}})
    train(chosen, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(chosen, tmp_path / "halves", Interrupt(10))
    train(chosen, tmp_path / "halves")
    assert final(tmp_path / "halves") == final(tmp_path / "whole")


def test_a_strip_is_measured_as_it_is_within_its_slice() -> None:
    """Where whole columns are measured, rows are apart: the strip's measured and unmeasured images are the slice's."""
    chosen = settings()
    slices = drawn(5, 32, seed=0)
    A = stream_of(chosen, slices).A
    whole = stream_of(chosen, slices).batch(range(5))
    strip = stream_of(chosen, slices, strip=12).batch(range(5))
    assert strip.y_m.shape == (5, 12, 32) and torch.equal(strip.scale, whole.scale)
    tops = set()
    for part, full in ((strip.y_m, whole.y_m), (strip.y_c, whole.y_c)):
        for small, large in zip(A.pinv(part), A.pinv(full), strict=True):
            gaps = [float((small - large[top : top + 12]).abs().max()) for top in range(21)]
            assert min(gaps) < 1e-5
            tops.add(int(np.argmin(gaps)))
    assert len(tops) > 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"training": {"strip": 8}, "mask": {"families": ["radial"]}},
            "needs operator fourier and masks of whole columns",
        ),
        ({"training": {"strip": 8}}, r"training.strip needs model.spectrum = false"),
        ({"training": {"strip": 99}}, "training.strip is 99, expected 0 to the height of a slice, 16"),
        ({"training": {"optimiser": "magic"}}, "training.optimiser is 'magic', expected one of: adamw, muon"),
        ({"network": CASCADE, "model": {"parameterisation": "eps"}}, "goes with parameterisation denoised, not eps"),
    ],
)
def test_strips_optimisers_and_cascades_that_cannot_be(tmp_path: Path, change: dict, message: str) -> None:
    values = {key: {**TINY.get(key, {}), **change.get(key, {})} for key in {*TINY, *change}}
    if "network" in change:
        values["network"] = change["network"]
    with pytest.raises(ValueError, match=message):
        train(from_dict(Config, values), tmp_path / "run")


def test_the_card_tells_what_was_seen(tmp_path: Path) -> None:
    card = load_model(train(settings(steps=1), tmp_path / "run")).card
    low, high = card["measured_rms"]
    assert 0 < low < high < 1
    assert len(card["spectrum"]["std"]) == 12 and card["spectrum"]["shape"] == [16, 16]
    assert card["spectrum"]["std"][0] > 3 * card["spectrum"]["std"][6] > 0
    chosen = from_dict(Config, TINY | {"model": {"spectrum": False}, "training": {**TINY["training"], "steps": 1}})
    model = load_model(train(chosen, tmp_path / "flat"))
    assert "spectrum" not in model.card and model.spectrum is None


def test_a_supervised_network_learns_what_is_missing(tmp_path: Path) -> None:
    keys = {**TINY["training"], "steps": 200, "lr": 3e-3, "validate_every": 100, "validation_slices": 4}
    np.save(tmp_path / "four.npy", drawn(4, 16, seed=0).images)
    data = {"train": str(tmp_path / "four.npy"), "validation": str(tmp_path / "four.npy")}
    values = (
        TINY
        | {"data": data}
        | {"model": {"kind": "supervised"}, "training": keys, "network": {**TINY["network"], "dropout": 0.0}}
    )
    folder = train(from_dict(Config, values), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "validation.jsonl").read_text().splitlines()]
    assert rows[-1]["image"] > rows[-1]["zero_filled"] + 0.5
    model = load_model(folder)
    assert isinstance(model, Supervised) and model.card["kind"] == "supervised" and "spectrum" not in model.card


def test_a_prior_is_shown_no_measurement(tmp_path: Path) -> None:
    """Unconditional: nothing measured, everything to be denoised, and the scale that a measurement would have had."""
    values = TINY | {"model": {"conditional": False}, "training": {**TINY["training"], "steps": 60, "lr": 2e-3}}
    chosen = from_dict(Config, values)
    slices = drawn(3, 16, seed=0)
    shown, hidden = (stream_of(c, slices).batch(range(3)) for c in (settings(), chosen))
    assert not hidden.mask.any() and not hidden.y_m.any() and torch.equal(hidden.scale, shown.scale)
    assert torch.allclose(hidden.y_c, shown.y_m + shown.y_c)
    folder = train(chosen, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "validation.jsonl").read_text().splitlines()]
    assert rows[-1]["denoised"] > rows[-1]["noisy"] + 1
    assert load_model(folder).card["conditional"] is False


@pytest.mark.parametrize(
    ("choice", "network", "message"),
    [
        ({"kind": "magic"}, TINY["network"], "model.kind is 'magic', expected one of: denoiser, supervised"),
        ({"kind": "supervised"}, CASCADE, "a supervised model is one U-Net: network.stages must be 0"),
    ],
)
def test_models_that_cannot_be(tmp_path: Path, choice: dict, network: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(from_dict(Config, TINY | {"model": choice, "network": network}), tmp_path / "run")
