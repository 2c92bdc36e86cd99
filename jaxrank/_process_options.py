"""The options by which a command runs as one of several processes, and how such a process begins and ends."""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, NamedTuple

import jax
import typer

from jaxrank._processes import ALONE, HEARTBEAT_SECONDS, LostProcessError, Processes
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
    with suppress(AttributeError):  # an old JAX has no say in it
        jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process
    try:
        jax.distributed.initialize(*placement[:3], heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except (RuntimeError, ValueError) as error:
        raise DataError(
            f"the processes did not find each other ({str(error).splitlines()[0][:200]}); start all of them, with one "
            "--coordinator that process 0 may listen on and the others can reach"
        ) from error
    processes = Processes(jax.process_index(), jax.process_count())
    try:
        yield processes
    except BaseException as error:
        _end_at_once(processes, error)
    jax.distributed.shutdown()


def _end_at_once(processes: Processes, error: BaseException) -> None:
    """An ordinary exit would wait for the others, and they for this one."""
    from jaxrank.cli import message_of

    code = 2 if isinstance(error, (DataError, OSError)) else getattr(error, "exit_code", 1)
    if isinstance(error, (DataError, OSError, ImportError, LostProcessError)):
        text = f"jaxrank: error: process {processes.index} of {processes.count}: {message_of(error)}\n"
    else:
        text = "" if isinstance(error, typer.Exit) else "".join(traceback.format_exception(error))
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    if processes.first:
        time.sleep(2)  # the meeting point goes with it: let the others say first what they know
    os._exit(code)
