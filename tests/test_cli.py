"""The command: mistakes get one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest
import torch

from mcddpm import load_model
from mcddpm.cli import main
from tests.processes import start


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.toml"], "no configuration file none.toml"),
        (["train", "bad.toml"], "unknown key training.stepz; did you mean steps"),
        (["train", "good.toml", "--set", "nonsense"], "is not of the form section.key=value"),
        (["train", "good.toml", "--out", "bad.toml/run"], "cannot write to the folder"),
        (["weights", "show", "none"], "no model 'none'"),
        (["weights", "show", "."], "is not a model folder: model.json is missing"),
        (["weights", "import", "none.pt", "--config", "none.json", "--out", "m"], "no file none.pt"),
        (["reconstruct", "none.h5", "--out", "o", "--mask", "random_columns"], "no file or folder none.h5"),
        (["reconstruct", "none.h5", "--out", "o", "--format", "gif"], "unknown format gif"),
        (["reconstruct", "none.h5", "--out", "o", "--interval", "0.9999"], "a level of 0.9999 takes"),
        (["reconstruct", "none.h5", "--out", "o", "--interval", "0.9", "--mean-only"], "takes 2 samples or more"),
        (["reconstruct", "none.h5", "--out", "o", "--self-check", "--calibration", "."], "holds no calibration.json"),
        (["weights", "import", "bad.toml", "--config", "bad.toml", "--out", "m"], "is not a checkpoint"),
    ],
)
def test_mistakes_get_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    Path("bad.toml").write_text("[training]\nstepz = 3\n")
    Path("good.toml").write_text("[training]\nsteps = 3\n")
    assert main(arguments) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ") and message in said and said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["fly"], ["train"], ["train", "a.toml", "--sett", "x=1"], ["weights"]])
def test_wrong_usage_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


def test_train_then_show(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text(
        "[data]\ndrawn_size = 16\n[network]\nchannels = 8\nheads = 2\n[training]\nsteps = 2\n"
    )
    run = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "a.toml"), "--out", run, "--set", "training.batch=2"]) == 0
    assert "trained:" in capfd.readouterr().err
    assert main(["weights", "show", run]) == 0
    model = str(tmp_path / "model")
    assert main(["weights", "export", run, "--out", model]) == 0
    assert {p.name for p in (tmp_path / "model").iterdir()} >= {
        "model.safetensors",
        "model.json",
        "config.json",
        "log.jsonl",
    }
    for a, b in zip(load_model(model).parameters(), load_model(run).parameters(), strict=True):
        assert torch.equal(a, b)
    assert main(["weights", "export", run, "--out", model]) == 2  # not overwritten
    assert main(["weights", "export", model, "--out", model + "2"]) == 2  # not a run
    out = capfd.readouterr().out
    assert '"parameterisation": "denoised"' in out and "parameters in" in out


def module(said: str, processes: str) -> None:
    """`python -m mcddpm data info nosuch` in this process, as torchrun starts it; what is said goes to a file."""
    os.environ |= {"WORLD_SIZE": processes, "RANK": "0"}
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    sys.argv[1:] = ["data", "info", "nosuch"]
    try:
        runpy.run_module("mcddpm", run_name="__main__")
    finally:  # where Python goes on to its end
        print("late", file=sys.stderr, flush=True)


@pytest.mark.parametrize(("processes", "late"), [("1", True), ("2", False)])
def test_a_process_of_torchrun_ends_at_once_with_its_code(tmp_path: Path, processes: str, late: bool) -> None:
    """gloo's threads would abort one that takes its time to end."""
    process = start(module, str(tmp_path / "said"), processes)
    process.join(60)
    said = (tmp_path / "said").read_text()
    assert process.exitcode == 2 and "nosuch" in said
    assert ("late" in said) == late
