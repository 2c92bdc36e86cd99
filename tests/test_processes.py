"""Several processes give what one gives, whatever their shares; and when one is lost, the others say so and end.

Shares, sums and figures are tested on threads that stand in for processes, which share what is compiled; the command
line is tested on processes.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import pytest
from stand_ins import together

from jaxrank import _evaluate_command, _process_options, _train_command, cli, training
from jaxrank._checkpoints import load_model
from jaxrank._processes import ALONE
from jaxrank._watch import AGAIN, APART, LOST, Worker, verdict
from jaxrank.data import DataError, RankingLists, padded_batches
from jaxrank.data._shares import Share
from jaxrank.data.synthetic import generated_splits

ROOT = pathlib.Path(__file__).parents[1]
OPTIMISER = optax.adam(1e-2)
LENGTH = 8


def lists_of(count, seed=0):
    """Lists of one length, so that there is one shape to compile."""
    rows = generated_splits(queries=(4 * count + 8, 1, 1), features=8, seed=seed)["train"]
    end = LENGTH * count
    names = tuple(str(i) for i in range(count))
    return RankingLists(names, np.full(count, LENGTH), rows.labels[:end], features=training.features_of(rows)[:end])


def write_letor(path, lists):
    rows = zip(np.repeat(lists.queries, lists.lengths), lists.labels, lists.features)
    path.write_text(
        "".join(f"{y:g} qid:{q} {' '.join(f'{i}:{v:g}' for i, v in enumerate(x, 1))}\n" for q, y, x in rows)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name, count in {"train": 24, "valid": 7, "test": 2}.items():
        write_letor(folder / name, lists_of(count, seed=count))
    scores = rng.normal(size=24 * LENGTH)
    (folder / "scores").write_text("".join(f"{score:.4f}\n" for score in scores))
    pairs = [(q, d) for q in range(7) for d in range(5)]
    (folder / "qrels").write_text("".join(f"q{q} 0 d{d} {rng.integers(0, 3)}\n" for q, d in pairs))
    (folder / "run").write_text("".join(f"q{q} Q0 d{d + 2} 0 {rng.normal():.3f} t\n" for q, d in pairs[:25]))
    return folder


# ------------------------------------------------------------------------------------------- shares, sums and figures


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint64, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_one_process_is_all_there_is(dtype, shape):
    array = np.ones(shape, dtype)
    assert (ALONE.gathered(array) == array[None]).all() and (ALONE.total(array) == array).all()
    assert ALONE.first and ALONE.share == Share()


def test_words_of_any_length_are_exchanged():
    words = [b"", b"ab\0", b"c"]
    assert together(3, lambda processes: processes.exchanged(words[processes.index])) == [words] * 3


@pytest.mark.parametrize("count", [2, 3, 40])
def test_batches_of_shares_make_up_the_batches_of_the_whole(count):
    lists = generated_splits(queries=(31, 1, 1), features=8)["train"]
    want = list(padded_batches(lists, batch_size=8, rng=3))
    parts = [Share(index, count).of(lists) for index in range(count)]
    assert sum(part.lengths for part in parts).tolist() == lists.lengths.tolist()
    found = [list(padded_batches(part, batch_size=8, rng=3, lengths=lists.lengths)) for part in parts]
    for i, batch in enumerate(want):
        held = np.concatenate([batches[i].lists for batches in found])
        assert sorted(held[held >= 0]) == sorted(batch.lists[batch.lists >= 0])
    assert len({batch.where.shape for batch in found[0]}) <= 2 * len({batch.where.shape for batch in want})
    rows = [row for batches in found for b in batches for row in b.labels[b.where]]
    assert sorted(rows) == sorted(lists.labels)


@pytest.mark.parametrize("count", [2, 5, 30])
def test_features_are_measured_over_all_shares(count):
    lists = lists_of(24)
    want = training.fit_standardiser(lists.features)

    def measured(processes):
        return training.fit_standardiser(processes.share.of(lists).features, processes)

    for found in together(count, measured):
        assert found.skewed.tolist() == want.skewed.tolist()
        np.testing.assert_allclose(found.shift, want.shift, rtol=1e-6)
        np.testing.assert_allclose(found.scale, want.scale, rtol=1e-6)


@pytest.mark.parametrize("loss, count", [("softmax", 2), ("softmax", 30), ("mse", 3)])
def test_training_ends_in_the_same_state(loss, count):
    train, valid = lists_of(24), lists_of(7, seed=1)
    standardiser = training.fit_standardiser(train.features)
    train, valid = standardiser(train), standardiser(valid)
    apply = scorer  # without a bias at the end: the gradient of such a one is rounding alone

    def fitted(processes):
        params = {"w": jax.numpy.linspace(-0.5, 0.5, 24).reshape(8, 3), "v": jax.numpy.linspace(1.0, -1.0, 3)}
        state = training.init_state(params, OPTIMISER)
        loss_fn = training.named_loss(loss, summed=processes.count > 1)
        parts = processes.share.of(train), processes.share.of(valid)
        options = {"loss_fn": loss_fn, "optimiser": OPTIMISER, "epochs": 4, "batch_size": 8, "processes": processes}
        return training.fit(apply, state, *parts, **options)

    want = fitted(ALONE)
    for found in together(count, fitted):
        np.testing.assert_allclose(found.history, want.history, rtol=1e-5)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found[:3], want[:3])


def scorer(params, features):
    return jax.numpy.tanh(features @ params["w"]) @ params["v"]


@pytest.mark.parametrize("name", ["smooth", "softmax", "mse"])
def test_sum_over_weight_is_the_loss(name):
    rng = np.random.default_rng(0)
    scores, labels = (jax.numpy.asarray(x, np.float32) for x in (rng.normal(size=(3, 4)), rng.integers(0, 3, (3, 4))))
    where = jax.numpy.array([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], bool)
    summed, mean = jax.jit(training.named_loss(name, summed=True)), training.named_loss(name)
    total, weight = summed(scores, labels, where=where)
    np.testing.assert_allclose(total / weight, mean(scores, labels, where=where), rtol=1e-6)
    assert [float(x) for x in summed(scores, labels, where=jax.numpy.zeros_like(where))] == [0, 0]


@pytest.mark.parametrize("count", [2, 3, 30])
@pytest.mark.parametrize("kind", ["trec", "letor"])
def test_evaluation_gives_the_same_figures(files, kind, count):
    settings = _evaluate_command._settings(["3"], None, None, "skip", None, None)
    given = {
        "trec": (files / "qrels", files / "run", *[None] * 3),
        "letor": (None, None, files / "train", files / "scores", None),
    }
    sources = _evaluate_command.Files(*given[kind])
    want = _evaluate_command._source(sources, settings, ALONE)
    assert len(want.values) == {"trec": 7, "letor": 24}[kind]
    for found in together(count, lambda processes: _evaluate_command._source(sources, settings, processes)):
        np.testing.assert_array_equal(found.values, want.values)
        assert found._replace(values=0) == want._replace(values=0)


def test_best_feature_and_fingerprint_are_those_of_the_whole(files):
    paths = [files / "train", None, None]  # a fifth is held out

    def found(processes):
        splits = _train_command.read_splits(paths, [], 0, processes)
        counts = [processes.total(lists.lengths).tolist() for lists in splits[:2]]
        fingerprint = _train_command._fingerprint(splits, processes)
        return counts, fingerprint, training.best_feature(splits.train, 5, processes)

    want = found(ALONE)
    for count in (3, 25):
        assert together(count, found) == [want] * count


def test_different_files_under_one_name_are_refused(files):
    def read(processes):
        processes.check_same("queries", ["a", "b" if processes.index < 2 else "c"])

    with pytest.raises(DataError, match="processes 0 and 2 have read different queries; expected the same files"):
        together(3, read)


# ------------------------------------------------------------------------------------------------------ real processes


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def started(count, *arguments, only=None, program=("-m", "jaxrank")):
    """Processes of one command, or one of them; `{index}` in an argument is which of them it is."""
    port = free_port()
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    group = ["--coordinator", f"localhost:{port}", "--num-processes", str(count), "--process-id", "{index}"]
    command = [sys.executable, *program, *map(str, arguments), *group]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT, "env": environment}
    chosen = range(count) if only is None else [only]
    return [subprocess.Popen([part.format(index=i) for part in command], **pipes) for i in chosen]


def ended(processes, timeout=300):
    """Exit codes and what was printed."""
    try:
        shown = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()  # whatever happened, none is left behind
    return [(process.returncode, *texts) for process, texts in zip(processes, shown)]


def alone(capsys, *arguments):
    try:
        cli.run(list(map(str, arguments)))
    except SystemExit as stop:
        assert not stop.code
    return capsys.readouterr()


def worker_of(process):
    """The fork that does the work, where the system tells."""
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(children.read_text()) if children.exists() else process.pid


def killed(processes, victim, pid=None):
    """Kills one; what the others wrote, once each has ended in our words and nothing else, with exit code 1."""
    assert all(process.poll() is None for process in processes), ended(processes)
    os.kill(pid or processes[victim].pid, signal.SIGKILL)
    start = time.monotonic()
    shown = ended(processes)
    assert time.monotonic() - start < 60
    lost = shown.pop(victim)
    assert lost[0] in (-signal.SIGKILL, 128 + signal.SIGKILL), lost
    for code, out, errors in shown:
        assert (code, out) == (1, ""), (code, out, errors)
        assert errors.count("\n") == 1 or "epoch" in errors, errors
        *before, last = errors.splitlines()
        assert re.match(r"jaxrank: error: process \d of \d: another process ended before the job was done \(", last)
        assert last.endswith("); see what it wrote, and start all of them again (train: with --resume)")
        assert all(re.match(r"epoch \d", line) for line in before), errors
    return lost


READING = """
import pathlib, sys, time
from jaxrank import cli, _processes
folder, index = pathlib.Path(sys.argv.pop(1)), sys.argv[-1]
def read(*_):
    (folder / ("reading" + index)).touch()
    time.sleep(600)
_processes.Processes.gathered = read
cli.run(sys.argv[1:])
"""


def killed_while_reading(folder, count, victim):
    """Kills the worker of one while each does what needs no other, and has not told the others anything yet."""
    (folder / str(count)).mkdir()
    command = "evaluate", folder / "qrels", folder / "run", "-q"
    processes = started(count, folder / str(count), *command, program=("-c", READING))
    while len(list((folder / str(count)).iterdir())) < count and all(process.poll() is None for process in processes):
        time.sleep(0.02)
    return killed(processes, victim, worker_of(processes[victim]))


@pytest.fixture(scope="module")
def slow_ends(files):
    """What JAX notices by a time limit only, awaited while other tests run."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        yield {
            "first": pool.submit(killed_while_reading, files, 2, 0),
            "other": pool.submit(killed_while_reading, files, 3, 1),
            "lonely": pool.submit(lambda: ended(started(2, "evaluate", only=1), 70)),
        }


def test_two_processes_evaluate(files, capsys, slow_ends):
    arguments = ["evaluate", files / "qrels", files / "run", "-k", "3", "--format", "json", "-q"]
    first, second = ended(started(2, *arguments))
    assert first[0] == second[0] == 0, (first, second)
    assert json.loads(first[1]) == json.loads(alone(capsys, *arguments).out)
    assert second[1] == ""


def trained(files, out):
    common = [item for name in ("train", "valid", "test") for item in (f"--{name}", files / name)]
    return ["train", *common, "--loss", "softmax", "--epochs", "25", "--out", out]


def killed_while_training(command, count, victim):
    processes = started(count, *command)
    checkpoint = command[-1] / "checkpoint.safetensors"
    while not checkpoint.exists() and processes[0].poll() is None:
        time.sleep(0.005)
    killed(processes, victim)
    assert not (checkpoint.parent / "figures.json").exists()


def test_one_of_three_processes_is_killed_and_two_go_on(files, tmp_path, capsys):
    command = trained(files, tmp_path / "run")
    killed_while_training(command, 3, 2)
    again = ended(started(2, *command, "--resume"))
    assert [code for code, *_ in again] == [0, 0], again
    assert "NDCG@10" in again[0][1] and again[1][1:] == ("", "")
    alone(capsys, *trained(files, tmp_path / "alone"))
    assert_same_runs(tmp_path / "run", tmp_path / "alone")


def test_the_first_of_two_processes_is_killed_and_one_goes_on(files, tmp_path, capsys):
    command = trained(files, tmp_path / "run")
    killed_while_training(command, 2, 0)
    alone(capsys, *command, "--resume")
    alone(capsys, *trained(files, tmp_path / "alone"))
    assert_same_runs(tmp_path / "run", tmp_path / "alone")


def assert_same_runs(one, other):
    reports = [json.loads((folder / "figures.json").read_text()) for folder in (one, other)]
    assert reports[0]["settings"] == reports[1]["settings"]
    np.testing.assert_allclose(*(report["history"] for report in reports), rtol=1e-4)
    for a, b in zip(*(report["figures"].values() for report in reports)):
        assert a == pytest.approx(b, abs=1e-6)
    params = [load_model(folder / "model.safetensors").params for folder in (one, other)]
    for layers in params:
        layers[-1].pop("bias")  # moves all scores alike, so its gradient is rounding alone
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *params)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--coordinator", "localhost:1"], "expected all three, or --distributed alone"),
        (["--coordinator", "localhost:1", "--num-processes", "2"], "expected all three, or --distributed alone"),
        (["--coordinator", "host", "--num-processes", "2", "--process-id", "0"], "'host'; expected HOST:PORT"),
        (["--coordinator", "a:1", "--num-processes", "2", "--process-id", "2"], "2 of 2 processes; expected 0 to 1"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_options_that_do_not_go_together(command, options, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.run([command, *options])
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_processes_that_do_not_find_each_other_are_told_how(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("DEADLINE_EXCEEDED: Barrier timed out.")

    class Unwatched(Worker):
        def end(self, *last, lost):
            raise SystemExit(last)

    monkeypatch.setattr(jax.distributed, "initialize", fails)
    monkeypatch.setattr(_process_options, "watched", lambda: Unwatched(None))
    with pytest.raises(SystemExit) as stop:
        cli.run(["evaluate", "--distributed"])
    code, text = stop.value.code
    assert code == 1
    assert text.startswith("jaxrank: error: the processes did not find each other; start all of them at once")
    assert text.endswith("(DEADLINE_EXCEEDED: Barrier timed out.)\n")
    assert _process_options.Placement(distributed=True) != _process_options.Placement()


LOST_BY_JAX = (
    "E\nF client.h:80] Terminating process because the JAX distributed service detected fatal errors. absl::Status: "
)


@pytest.mark.parametrize(
    "told, code, withheld, last",
    [
        ({"name": "process 0 of 2"}, 0, "", (0, "")),
        ({"name": "process 0 of 2"}, 0, "a warning\n", (0, "a warning\n")),
        ({"code": 2, "text": "no file\n", "lost": False}, -6, "a warning\n", (2, "a warning\nno file\n")),
        ({"code": 1, "text": "lost\n", "lost": True}, -6, LOST_BY_JAX, (1, "lost\n")),
        (
            {"name": "process 1 of 2"},
            -6,
            LOST_BY_JAX + "UNAVAILABLE: gone\n stack",
            (1, f"jaxrank: error: process 1 of 2: {LOST} (UNAVAILABLE: gone); {AGAIN}\n"),
        ),
        ({}, 1, LOST_BY_JAX + "LATE\n", (1, f"jaxrank: error: {APART} (LATE)\n")),
        ({}, -9, "", (137, "jaxrank: error: this process: ended by SIGKILL\n")),
        ({"name": "process 1 of 2"}, -11, "s\n", (139, "s\njaxrank: error: process 1 of 2: ended by SIGSEGV\n")),
        ({"name": "process 1 of 2"}, 3, "odd\n", (3, "odd\n")),
    ],
)
def test_last_words_say_how_the_worker_ended(told, code, withheld, last):
    assert verdict(told, code, withheld) == last


@pytest.mark.parametrize("which", ["first", "other"])
def test_one_is_killed_while_all_read(slow_ends, which):
    code, _, errors = slow_ends[which].result()
    assert code < 0 or errors.endswith("ended by SIGKILL\n")


def test_a_process_whose_first_never_comes_ends_within_a_minute(slow_ends):
    ((code, out, errors),) = slow_ends["lonely"].result()
    assert (code, out) == (1, "")
    assert errors.startswith("jaxrank: error: the processes did not find each other; start all of them at once")
    assert errors.count("\n") == 1
