"""`python -m jaxrank train` and `python -m jaxrank score`."""

import hashlib
import io
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from jaxtyping import Float, UInt64

from jaxrank._checkpoints import Checkpoint, Model, load_model, save_model, write_file
from jaxrank._process_options import Coordinator, Distributed, NumProcesses, Placement, ProcessId, joined
from jaxrank._processes import ALONE, Processes
from jaxrank.data import DataError, RankingLists
from jaxrank.data.letor import LetorOptions, read_letor, read_share
from jaxrank.data.synthetic import generated_splits
from jaxrank.plots import learning_curve
from jaxrank.training import (
    LOSSES,
    TrainState,
    apply_mlp,
    best_feature,
    default_optimiser,
    features_of,
    fit,
    fit_standardiser,
    init_mlp,
    init_state,
    named_loss,
    ndcg_by_list,
    take_lists,
)

CUTOFFS = (1, 5, 10)
HIDDEN = (64, 32)
VALID_SHARE = 0.2
Figures = dict[str, Float[np.ndarray, "lists cutoffs"]]  # by ranking


class Loss(StrEnum):
    """What `--loss` may be."""

    SMOOTH = "smooth"
    SOFT = "soft"
    NEURAL = "neural"
    APPROX = "approx"
    LAPLACE = "laplace"
    LAMBDA = "lambda"
    SOFTMAX = "softmax"
    MSE = "mse"


def train(
    train: Annotated[pathlib.Path | None, typer.Option(help="LETOR (SVMlight) file; none: a generated set.")] = None,
    valid: Annotated[
        pathlib.Path | None, typer.Option(help="For early stopping; none: a fifth of the queries.")
    ] = None,
    test: Annotated[pathlib.Path | None, typer.Option(help="For the final table; none: the validation set.")] = None,
    group: Annotated[
        list[pathlib.Path] | None,
        typer.Option(help="Rows of each query, for files without qid: one file for each of the above, in that order."),
    ] = None,
    loss: Annotated[
        Loss, typer.Option(help="What is minimised: smooth NDCG, or one to compare it with.")
    ] = Loss.SMOOTH,
    k: Annotated[int, typer.Option("-k", min=1, help="Cutoff of early stopping, and of the loss.")] = 10,
    temperature: Annotated[float | None, typer.Option(help="Of a smooth loss; none: what works best.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="At most: it stops when validation NDCG rises no more.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")] = 0,
    out: Annotated[pathlib.Path | None, typer.Option(help="Directory for model, checkpoint, curve, figures.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --out, if any.")] = False,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    distributed: Distributed = False,
) -> None:
    """Train a small network on ranking lists, and compare it with simpler rankings by exact NDCG.

    With several processes each holds its share of the queries, their gradients are added up, and process 0 prints and
    writes: the result is that of one process. If one is lost, start all of them again, with --resume.
    """
    if resume and out is None:
        raise typer.BadParameter("--resume goes on from a checkpoint; give the directory that holds it by --out")
    if temperature is not None and not temperature > 0:
        raise typer.BadParameter(f"--temperature is {temperature:g}; expected a number above 0")
    if temperature is not None and "temperature" not in LOSSES[loss][1]:
        raise typer.BadParameter(f"--loss {loss} has no --temperature; leave it out")
    options = {"loss": loss.value, "k": k, "temperature": temperature, "seed": seed}
    with joined(Placement(coordinator, num_processes, process_id, distributed)) as processes:
        splits = read_splits([train, valid, test], group or [], seed, processes)
        try:
            result = run(splits, options, epochs, out, resume, processes)
        except KeyboardInterrupt:
            typer.echo("stopped; " + ("nothing was kept" if out is None else "go on with --resume"), err=True)
            raise typer.Exit(130) from None
        except FloatingPointError as error:
            raise DataError(str(error)) from error
        figures = compared(splits, result, k, processes)
        if processes.first:
            show(splits, result, figures, out)


def show(splits: "Splits", result: "Result", figures: Figures, out: pathlib.Path | None) -> None:
    """Prints the figures, and keeps them and the model if there is a directory for it."""
    print_table(splits, figures, result.model.settings["k"])
    if out is None:
        typer.echo("Nothing was kept; with --out DIR the model, checkpoints and the learning curve are.")
    else:
        save_result(out, result, figures)
        typer.echo(f"{out}: model.safetensors, learning_curve.png, figures.json")


def score(
    model: Annotated[pathlib.Path, typer.Argument(help="model.safetensors, or the directory that holds it.")],
    file: Annotated[pathlib.Path, typer.Argument(help="LETOR (SVMlight) file with features.")],
    group: Annotated[pathlib.Path | None, typer.Option(help="Rows of each query, for a file without qid.")] = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="Where the scores go; none: standard output.")] = None,
) -> None:
    """Write a saved model's score for each line of a file."""
    loaded = load_model(model / "model.safetensors" if model.is_dir() else model)
    lists = read_letor(file, group=group, n_features=loaded.settings["features"])
    text = "".join(f"{value!s}\n" for value in loaded.scores(lists))
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_file(out, text.encode())


# -------------------------------------------------------------------------------------------------------------- data


class Splits(NamedTuple):
    """The three parts. `tested` says in words what the final table is measured on."""

    train: RankingLists
    valid: RankingLists
    test: RankingLists
    tested: str


def read_splits(
    paths: list[pathlib.Path | None], groups: list[pathlib.Path], seed: int, processes: Processes = ALONE
) -> Splits:
    """Training, validation and test lists from what was given; of each, the rows of this process's share."""
    if paths[0] is None:
        if any(paths) or groups:
            raise DataError("--valid, --test and --group go with --train; expected --train FILE beside them")
        parts = {name: processes.share.of(lists) for name, lists in generated_splits().items()}
        return Splits(**parts, tested="generated test set")
    given = [path for path in paths if path is not None]
    if groups and len(groups) != len(given):
        raise DataError(f"{len(groups)} --group files for {len(given)} data files; expected one for each, in order")
    lists = dict(zip(given, _read_all(given, groups or [None] * len(given), processes), strict=True))
    train, valid, test = (None if path is None else lists[path] for path in paths)
    assert train is not None
    if valid is None:
        train, valid = _held_out(train, seed)
    if test is None:
        return Splits(train, valid, valid, "validation set, which chose the epoch (give --test for a fair figure)")
    return Splits(train, valid, test, str(paths[2]))


def _read_all(paths: list[pathlib.Path], groups: list[Any], processes: Processes) -> list[RankingLists]:
    """Each file as wide as the widest: a sparse file need not name the last feature."""
    read = [read_share(path, LetorOptions(group), processes.share) for path, group in zip(paths, groups, strict=True)]
    processes.check_same("queries", (query for lists in read for query in lists.queries))
    width = int(processes.gathered(np.array(max(features_of(lists).shape[1] for lists in read))).max())
    return [replace(lists, features=_widened(features_of(lists), width)) for lists in read]


def _widened(features: Float[np.ndarray, "rows f"], width: int) -> Float[np.ndarray, "rows g"]:
    return np.pad(features, ((0, 0), (0, width - features.shape[1])))


def _held_out(lists: RankingLists, seed: int) -> tuple[RankingLists, RankingLists]:
    count = round(len(lists) * VALID_SHARE)
    if not count:
        raise DataError(f"{len(lists)} training queries, too few to hold some out; expected --valid FILE")
    order = np.random.default_rng(seed).permutation(len(lists))
    return take_lists(lists, np.sort(order[count:])), take_lists(lists, np.sort(order[:count]))


def _fingerprint(splits: Splits, processes: Processes) -> str:
    """Tells the data of one run from that of another, however it is shared out."""
    digests = [processes.total(_digests(lists)) for lists in splits[:2]]
    return hashlib.sha256(np.concatenate(digests).tobytes()).hexdigest()[:16]


def _digests(lists: RankingLists) -> UInt64[np.ndarray, " lists"]:
    """A number for the rows of each list, 0 where it has none."""
    ends, features = lists.offsets, features_of(lists)
    return np.array([_digest(lists.labels[a:b], features[a:b]) for a, b in itertools.pairwise(ends)], np.uint64)


def _digest(labels: Float[np.ndarray, " rows"], features: Float[np.ndarray, "rows f"]) -> int:
    if not len(labels):
        return 0
    return int.from_bytes(hashlib.sha256(labels.tobytes() + features.tobytes()).digest()[:8], "little")


# ----------------------------------------------------------------------------------------------------------- the run


class Result(NamedTuple):
    """The last state, the model of its best epoch, and the model that it began as."""

    state: TrainState
    model: Model
    untrained: Model


def run(
    splits: Splits,
    options: dict[str, Any],
    epochs: int,
    out: pathlib.Path | None,
    resume: bool,
    processes: Processes = ALONE,
) -> Result:
    """Trains, and saves every epoch if there is a directory for it."""
    loss_fn = named_loss(
        options["loss"], k=options["k"], temperature=options["temperature"], summed=processes.count > 1
    )
    standardiser = fit_standardiser(features_of(splits.train), processes)
    width = features_of(splits.train).shape[1]
    params = init_mlp(jax.random.key(options["seed"]), width, HIDDEN)
    optimiser = default_optimiser()
    settings = options | {"features": width, "hidden": list(HIDDEN), "data": _fingerprint(splits, processes)}
    kept = out if processes.first else None
    checkpoint = None if kept is None else Checkpoint(kept / "checkpoint.safetensors", settings)
    state = init_state(params, optimiser)
    state = _same_state(state if checkpoint is None else checkpoint.open(state, resume), processes)
    with progress_bar(epochs, options["k"], state, processes.first) as show:
        on_epoch = show if checkpoint is None else lambda state: (checkpoint.save(state), show(state))
        train, valid = standardiser(splits.train), standardiser(splits.valid)
        state = fit(
            apply_mlp,
            state,
            train,
            valid,
            loss_fn=loss_fn,
            optimiser=optimiser,
            k=options["k"],
            epochs=epochs,
            seed=options["seed"],
            on_epoch=on_epoch,
            processes=processes,
        )
    return Result(state, Model(state.best, standardiser, settings), Model(params, standardiser, settings))


def _same_state(state: TrainState, processes: Processes) -> TrainState:
    """The state of the first process, which alone reads checkpoints, in all of them."""
    if processes.count == 1:
        return state
    epochs = int(processes.from_first(np.array(state.epoch)))
    whole = state._replace(history=np.resize(state.history, (epochs, 2)))
    return jax.tree.map(lambda leaf: processes.from_first(np.asarray(leaf)), whole)


@contextmanager
def progress_bar(epochs: int, k: int, first: TrainState, wanted: bool = True) -> Iterator[Callable[[TrainState], None]]:
    """A bar on standard error; where that is no terminal, ten lines in all."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as progress:
        task = progress.add_task("compiling", total=epochs, completed=first.epoch)

        def show(state: TrainState) -> None:
            text = _epoch_text(state, k)
            progress.update(task, completed=state.epoch, description=text)
            if not console.is_terminal and state.epoch % max(1, epochs // 10) == 0:
                console.print(f"epoch {state.epoch}/{epochs}  {text}")

        yield show if wanted else lambda state: None


def _epoch_text(state: TrainState, k: int) -> str:
    loss, value = state.history[-1]
    best = state.history[state.best_epoch - 1, 1]
    return f"loss {loss:.4f}  validation NDCG@{k} {value:.4f}  best {best:.4f} (epoch {state.best_epoch})"


# ------------------------------------------------------------------------------------------------------- the figures


def compared(splits: Splits, result: Result, k: int, processes: Processes = ALONE) -> Figures:
    """The NDCG of each test list at each cutoff, by the model and by what it has to beat."""
    feature, sign = best_feature(splits.train, k, processes)
    loss, order = result.model.settings["loss"], "highest" if sign > 0 else "lowest"
    scores = {
        f"trained ({loss}, epoch {result.state.best_epoch})": result.model.scores(splits.test),
        f"best single feature ({feature + 1}, {order} first)": sign * features_of(splits.test)[:, feature],
        "untrained": result.untrained.scores(splits.test),
    }
    return {name: processes.total(ndcg_by_list(splits.test, values, _cutoffs(k))) for name, values in scores.items()}


def _cutoffs(k: int) -> tuple[int, ...]:
    return tuple(sorted({*CUTOFFS, k}))


def print_table(splits: Splits, figures: Figures, k: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Exact NDCG, mean and standard error over {len(splits.test)} queries: {splits.tested}")
    table.add_column("ranking")
    for cutoff in _cutoffs(k):
        table.add_column(f"NDCG@{cutoff}", justify="right")
    for name, values in figures.items():
        error = values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.full(values.shape[1], np.nan)
        table.add_row(name, *(f"{mean:.4f} ± {e:.4f}" for mean, e in zip(values.mean(0), error, strict=True)))
    Console().print(table)


def save_result(out: pathlib.Path, result: Result, figures: Figures) -> None:
    """Model, picture and figures; the figures last, so that a directory with figures is complete."""
    k, settings = result.model.settings["k"], result.model.settings
    save_model(out / "model.safetensors", result.model)
    picture = io.BytesIO()
    title = f"{settings['loss']} loss, seed {settings['seed']}"
    learning_curve(result.state.history, k=k, title=title).savefig(picture)
    write_file(out / "learning_curve.png", picture.getvalue())
    means = {
        name: {f"NDCG@{cutoff}": float(mean) for cutoff, mean in zip(_cutoffs(k), values.mean(0), strict=True)}
        for name, values in figures.items()
    }
    report = {"settings": settings, "history": result.state.history.tolist(), "figures": means}
    write_file(out / "figures.json", json.dumps(report, indent=1).encode())
