"""`python -m jaxrank train` and `score`: what they print and write, and that nothing is lost when they are killed."""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from jaxrank import _checkpoints, _train_command, cli, training
from jaxrank.data import DataError, RankingLists, read_letor
from jaxrank.data.synthetic import generated_splits

ROOT = pathlib.Path(__file__).parents[1]


def write_letor(path, lists, with_qid=True):
    rows = zip(np.repeat(lists.queries, lists.lengths), lists.labels, lists.features, strict=True)
    lines = [
        f"{label:g} {f'qid:{query} ' if with_qid else ''}" + " ".join(f"{i}:{v:g}" for i, v in enumerate(features, 1))
        for query, label, features in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    path.with_name(path.name + ".sizes").write_text("".join(f"{n}\n" for n in lists.lengths))


def lists_of(length, count, seed=0):
    """Lists of one length, so that there is one shape to compile."""
    rows = generated_splits(queries=(5 * count, 1, 1), features=8, seed=seed)["train"]
    end = length * count
    names = tuple(str(i) for i in range(count))
    return RankingLists(names, np.full(count, length), rows.labels[:end], features=training.features_of(rows)[:end])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("letor")
    for name, count in {"train": 64, "valid": 12, "test": 12}.items():
        write_letor(folder / name, lists_of(14, count, seed=count))
    return folder


@pytest.fixture
def arguments(files):
    return train_arguments(files)


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """What a run gives that nothing stops."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run(*train_arguments(files), "--out", out) == 0
    return report(out)


def train_arguments(files):
    parts = [item for name in ("train", "valid", "test") for item in (f"--{name}", str(files / name))]
    return ["train", *parts, "--loss", "softmax", "--epochs", "6"]


def run(*arguments):
    """Exit code of the command line, 0 if it just ends."""
    try:
        cli.run([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code or 0
    return 0


def report(out):
    return json.loads((out / "figures.json").read_text())


# --------------------------------------------------------------------------------------------------- what comes out


def test_options_name_every_loss():
    assert [str(loss) for loss in _train_command.Loss] == list(training.LOSSES)


@pytest.mark.parametrize("loss", list(training.LOSSES))
def test_every_loss_learns(loss):
    lists = lists_of(12, 120)
    train, test = (training.take_lists(lists, part) for part in (np.arange(80), np.arange(80, 120)))
    splits = _train_command.Splits(train, test, test, "generated")
    options = {"loss": loss, "k": 10, "temperature": None, "seed": 0}
    result = _train_command.run(splits, options, 6, None, False)
    before, after = (training.ndcg_by_list(test, m.scores(test), 10).mean() for m in (result.untrained, result.model))
    assert after > before + 0.08


def test_table_shows_the_model_and_what_it_must_beat(arguments, files, capsys):
    assert run(*arguments) == 0
    shown = capsys.readouterr()
    assert "NDCG@1 " in shown.out and "NDCG@5 " in shown.out and "NDCG@10 " in shown.out
    for name in ("trained", "best single", "untrained"):
        assert re.search(rf"{name}.* 0\.\d{{4}} ± 0\.\d{{4}}", shown.out)
    assert "12 queries" in shown.out and "Nothing was kept" in shown.out
    assert "epoch 6/6  loss" in shown.err and "validation NDCG@10 0." in shown.err


def test_directory_holds_model_curve_and_figures(arguments, tmp_path):
    assert run(*arguments, "--out", tmp_path / "new" / "run", "-k", 3) == 0
    out = tmp_path / "new" / "run"
    names = ["checkpoint.safetensors", "figures.json", "learning_curve.png", "model.safetensors"]
    assert sorted(os.listdir(out)) == names
    assert (out / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert len(report(out)["history"]) == 6
    assert all(set(row) == {"NDCG@1", "NDCG@3", "NDCG@5", "NDCG@10"} for row in report(out)["figures"].values())


def test_scores_of_the_saved_model_give_the_figures_of_the_table(arguments, files, tmp_path, capsys):
    assert run(*arguments, "--out", tmp_path) == 0
    assert run("score", tmp_path, files / "test", "--out", tmp_path / "scores") == 0
    capsys.readouterr()
    assert run("score", tmp_path / "model.safetensors", files / "test") == 0
    assert capsys.readouterr().out == (tmp_path / "scores").read_text()
    command = "evaluate", "--letor", files / "test", "--scores", tmp_path / "scores", "-k", "1,5,10", "--format", "json"
    assert run(*command) == 0
    evaluated = json.loads(capsys.readouterr().out)["metrics"]
    for name, value in next(iter(report(tmp_path)["figures"].values())).items():
        np.testing.assert_allclose(evaluated[name.lower()]["mean"], value, atol=1e-6)


def test_groups_stand_in_for_qid(files, tmp_path):
    lists = read_letor(files / "train")
    write_letor(tmp_path / "bare", lists, with_qid=False)
    common = ["--loss", "mse", "--epochs", 2, "--out"]
    assert run("train", "--train", files / "train", *common, tmp_path / "a") == 0
    sizes = tmp_path / "bare.sizes"
    assert run("train", "--train", tmp_path / "bare", "--group", sizes, *common, tmp_path / "b") == 0
    assert report(tmp_path / "a")["history"] == report(tmp_path / "b")["history"]


def test_a_sparse_file_may_lack_the_last_feature(files, arguments, tmp_path):
    narrow = re.sub(r" 8:\S+", "", (files / "test").read_text())
    (tmp_path / "narrow").write_text(narrow)
    arguments[arguments.index("--test") + 1] = str(tmp_path / "narrow")
    assert run(*arguments, "--out", tmp_path / "run") == 0
    assert run("score", tmp_path / "run", tmp_path / "narrow", "--out", tmp_path / "scores") == 0


def test_without_a_test_file_the_table_says_what_it_shows(files, capsys):
    assert run("train", "--train", files / "train", "--loss", "mse", "--epochs", 1) == 0
    assert "validation set, which chose the epoch" in " ".join(capsys.readouterr().out.split())


# ------------------------------------------------------------------------------------------------------ nothing lost


def killed_run(arguments, out, delay):
    """Starts a run, and kills it `delay` seconds after it has saved an epoch. Whether it was still running."""
    checkpoint = out / "checkpoint.safetensors"
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(out.parent / "compiled")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "XLA_FLAGS": ""}
    command = [sys.executable, "-m", "jaxrank", *arguments, "--out", str(out), "--resume"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if delay is not None:
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.001)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode != 0


def test_killed_at_random_points_it_resumes_to_the_same_figures(arguments, tmp_path):
    arguments[-1] = "60"
    killed_run(arguments, tmp_path / "whole", None)
    rng = random.Random(0)
    kills = [killed_run(arguments, tmp_path / "killed", rng.uniform(0, 0.15)) for _ in range(3)]
    assert sum(kills) >= 2
    killed_run(arguments, tmp_path / "killed", None)
    assert report(tmp_path / "killed") == report(tmp_path / "whole")
    names = [name for name in os.listdir(tmp_path / "killed") if not name.endswith(".tmp")]
    assert sorted(names) == sorted(os.listdir(tmp_path / "whole"))
    scores = [_checkpoints.load_model(tmp_path / name / "model.safetensors").params for name in ("killed", "whole")]
    jax.tree.map(np.testing.assert_array_equal, *scores)


class StoppedError(BaseException):
    """Stands in for a kill: nothing catches it."""


@pytest.mark.parametrize(("function", "call"), [("fsync", 1), ("fsync", 6), ("replace", 1), ("replace", 4)])
def test_stopped_within_a_save_it_resumes_to_the_same_figures(arguments, whole, tmp_path, monkeypatch, function, call):
    real, calls = getattr(os, function), []

    def stopping(*values):
        calls.append(values)
        if len(calls) == call:
            raise StoppedError
        return real(*values)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, stopping)
        with pytest.raises(StoppedError):
            run(*arguments, "--out", tmp_path / "stopped")
    assert run(*arguments, "--out", tmp_path / "stopped", "--resume") == 0
    assert report(tmp_path / "stopped") == whole


def test_more_epochs_go_on_where_fewer_ended(arguments, whole, tmp_path):
    assert run(*arguments[:-1], 2, "--out", tmp_path / "short") == 0
    assert run(*arguments, "--out", tmp_path / "short", "--resume") == 0
    assert report(tmp_path / "short") == whole


def test_ctrl_c_says_how_to_go_on(arguments, tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxrank._train_command.fit", interrupted)
    assert run(*arguments, "--out", tmp_path) == 130
    assert "stopped; go on with --resume" in capsys.readouterr().err


def test_disk_that_fills_up_later_leaves_the_last_epoch(arguments, tmp_path, monkeypatch, capsys):
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 6:
            raise OSError(28, "No space left on device")
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert run(*arguments, "--out", tmp_path / "run") == 2
    assert "checkpoint.safetensors: cannot be written: No space left on device" in capsys.readouterr().err
    assert os.listdir(tmp_path / "run") == ["checkpoint.safetensors"]
    assert run(*arguments, "--out", tmp_path / "run", "--resume") == 0


# ------------------------------------------------------------------------------------------- errors before it starts


@pytest.fixture
def no_training(monkeypatch):
    monkeypatch.setattr("jaxrank._train_command.fit", lambda *_, **__: pytest.fail("training started"))


def test_full_disk(arguments, tmp_path, no_training, capsys):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        assert run(*arguments, "--out", tmp_path / "run") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    shown = capsys.readouterr().err
    assert re.search(r"run: training would not be saved here: File too large; it needs \d\.\d MB", shown), shown
    assert os.listdir(tmp_path / "run") == []


def test_directory_that_cannot_be_made(arguments, tmp_path, no_training, capsys):
    (tmp_path / "file").touch()
    assert run(*arguments, "--out", tmp_path / "file" / "run") == 2
    assert "would not be saved here: Not a directory; give a directory that can be made" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_directory_that_cannot_be_written(arguments, tmp_path, no_training, capsys):
    tmp_path.chmod(0o555)
    assert run(*arguments, "--out", tmp_path) == 2
    assert "would not be saved here: Permission denied" in capsys.readouterr().err


def test_a_run_is_not_overwritten(arguments, tmp_path, no_training, capsys):
    (tmp_path / "checkpoint.safetensors").touch()
    assert run(*arguments, "--out", tmp_path) == 2
    assert "holds a run already; add --resume to go on, or give another --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--resume"], "give the directory that holds it by --out"),
        (["--group", "a"], "1 --group files for 3 data files; expected one for each, in order"),
        (["--train", "missing"], "missing: No such file or directory"),
        (["--loss", "sofmax"], "'sofmax' is not one of"),
        (["-k", "0"], "greater than or equal to 1"),
        (["--temperature", "1"], "--loss softmax has no --temperature; leave it out"),
        (["--temperature", "0"], "--temperature is 0; expected a number above 0"),
    ],
)
def test_bad_arguments(arguments, no_training, capsys, extra, message):
    assert run(*arguments, *extra) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_options_of_another_run_are_refused(arguments, tmp_path, capsys):
    assert run(*arguments, "--out", tmp_path) == 0
    assert run(*arguments, "--out", tmp_path, "--resume", "--seed", 1) == 2
    assert "checkpoint.safetensors: made with seed = 0, not 1; give the same options" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- damaged files


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    assert run("train", "--train", files / "train", "--loss", "mse", "--epochs", 1, "--out", out) == 0
    return out


def damaged(data, how):
    size = int.from_bytes(data[:8], "little")
    return {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "one bit of a weight": data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        "one letter of the settings": data.replace(b"mse", b"mst", 1),
        "header": data[:10] + b"\xff" + data[11:],
        "length of the header": (2**62).to_bytes(8, "little") + data[8:],
        "longer": data + b"\0",
        "a pickle": b"cos\nsystem\n(S'touch pwned'\ntR.",
        "zeros": bytes(len(data)),
        "no metadata": (len(h := b"{}" + b" " * (size - 2))).to_bytes(8, "little") + h,
    }[how]


DAMAGES = ["empty", "cut", "one bit of a weight", "one letter of the settings", "header", "length of the header"]
DAMAGES += ["longer", "a pickle", "zeros", "no metadata"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors"])
def test_damaged_file_is_refused_by_name(finished, files, tmp_path, capsys, how, name):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / name).write_bytes(damaged((finished / name).read_bytes(), how))
    if name.startswith("model"):
        assert run("score", out, files / "test") == 2
    else:
        common = ["--loss", "mse", "--epochs", 1, "--out", out, "--resume"]
        assert run("train", "--train", files / "train", *common) == 2
    assert str(out / name) in capsys.readouterr().err


def test_a_checkpoint_is_no_model(finished, files, capsys):
    assert run("score", finished / "checkpoint.safetensors", files / "test") == 2
    assert "checkpoint.safetensors: holds a checkpoint; expected a model" in capsys.readouterr().err


def test_missing_model_says_where_models_come_from(files, tmp_path, capsys):
    assert run("score", tmp_path, files / "test") == 2
    assert "model.safetensors: no such file; expected a model that `python -m jaxrank train" in capsys.readouterr().err


def test_a_file_with_more_features_than_the_model_is_refused(finished, tmp_path, capsys):
    (tmp_path / "wide").write_text("1 qid:1 9:1\n")
    assert run("score", finished, tmp_path / "wide") == 2
    assert "wide:1: feature index 9; expected at most 8" in capsys.readouterr().err


def test_arrays_of_another_shape_are_named(tmp_path):
    path = tmp_path / "arrays"
    _checkpoints.save_arrays(path, {"a": np.zeros((2, 3))}, {"kind": "thing"})
    with pytest.raises(DataError, match=r"arrays: array \['a'\] is \(\(2, 3\), dtype\('float64'\)\); expected \(\(3,"):
        _checkpoints.load_arrays(path, "thing", {"a": np.zeros(3)})


def test_any_tree_comes_back_as_it_was(tmp_path):
    tree = {"a": [np.float32(3), np.arange(6).reshape(2, 3).T], "b": (np.array([True]), np.zeros((0, 2)))}
    _checkpoints.save_arrays(tmp_path / "arrays", tree, {"kind": "thing", "x": [0.1, None]})
    back, settings = _checkpoints.load_arrays(tmp_path / "arrays", "thing", tree)
    jax.tree.map(np.testing.assert_array_equal, back, tree)
    assert settings == {"kind": "thing", "x": [0.1, None]}
