"""The options by which a command runs as one of several processes, and how such a process begins and ends."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, NamedTuple

import jax
import typer

from jaxrank._processes import ALONE, HEARTBEAT_SECONDS, JOIN_SECONDS, LostProcessError, Processes
from jaxrank._watch import AGAIN, APART, LOST, watched
from jaxrank.data import DataError

GROUP = "Several processes"
Coordinator = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        rich_help_panel=GROUP,
        help="Address of process 0, which the others reach; the same for all.",
    ),
]
NumProcesses = Annotated[
    int | None, typer.Option(min=1, metavar="N", rich_help_panel=GROUP, help="How many there are; the same for all.")
]
ProcessId = Annotated[
    int | None, typer.Option(min=0, metavar="I", rich_help_panel=GROUP, help="Which of them this is, from 0.")
]
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed", rich_help_panel=GROUP, help="Instead of these three, where SLURM, MPI or a TPU pod tells JAX."
    ),
]


class Placement(NamedTuple):
    """What the options say."""

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    distributed: bool = False

    def check(self) -> None:
        given = [value is not None for value in self[:3]]
        if any(given) and (not all(given) or self.distributed):
            raise typer.BadParameter(
                "--coordinator, --num-processes and --process-id go together, without --distributed; "
                "expected all three, or --distributed alone"
            )
        if self.coordinator is not None and not self.coordinator.rpartition(":")[2].isdecimal():
            raise typer.BadParameter(f"{self.coordinator!r}; expected HOST:PORT", param_hint="--coordinator")
        if self.num_processes is not None and self.process_id is not None and self.process_id >= self.num_processes:
            raise typer.BadParameter(
                f"{self.process_id} of {self.num_processes} processes; expected 0 to {self.num_processes - 1}",
                param_hint="--process-id",
            )


@contextmanager
def joined(placement: Placement) -> Iterator[Processes]:
    """This process among the others, until the job is done or one of them fails."""
    placement.check()
    if placement == Placement():
        yield ALONE
        return
    worker, processes = watched(), None
    try:
        processes = _found(placement)
        worker.tell(name=processes.name)
        yield processes
        _left()
    except BaseException as error:
        worker.end(*_last_words(error, processes), lost=isinstance(error, LostProcessError))


def _found(placement: Placement) -> Processes:
    """This process among the others, once all are there."""
    with suppress(AttributeError):  # an old JAX has no say in it
        jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    try:
        jax.distributed.initialize(
            *placement[:3], initialization_timeout=JOIN_SECONDS, heartbeat_timeout_seconds=HEARTBEAT_SECONDS
        )
        return Processes(jax.process_index(), jax.process_count())
    except (RuntimeError, ValueError) as error:
        raise LostProcessError(f"{APART} ({str(error).splitlines()[0][:200]})") from error


def _left() -> None:
    """Waits until the others have done their part."""
    try:
        jax.distributed.shutdown()
    except RuntimeError as error:
        raise LostProcessError(f"{LOST} ({str(error).splitlines()[0][:200]}); {AGAIN}") from error


def _last_words(error: BaseException, processes: Processes | None) -> tuple[int, str]:
    from jaxrank.cli import message_of

    if isinstance(error, (typer.Exit, KeyboardInterrupt)):
        return getattr(error, "exit_code", 130), ""
    if isinstance(error, (DataError, OSError, ImportError, LostProcessError)):
        name = f"{processes.name}: " if processes else ""
        return 2 if isinstance(error, (DataError, OSError)) else 1, f"jaxrank: error: {name}{message_of(error)}\n"
    return 1, "".join(traceback.format_exception(error))
