"""A process that watches over the one that works, and has the last word.

JAX ends a process that has lost another from a thread of its own, by an abort with its stack or a mere exit: nothing in
that process can choose the words or the exit code. So a fork does the work, and the process that was started waits for
it, withholds what is not Python's on standard error, and says in plain words how it ended.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

LOST = "another process ended before the job was done"
AGAIN = "see what it wrote, and start all of them again (train: with --resume)"
APART = (
    "the processes did not find each other; start all of them at once, with one --coordinator that process 0 "
    "may listen on and the others can reach"
)
WORDS_OF_JAX = "distributed service detected fatal errors"  # in 0.8 to 0.12


class Worker(NamedTuple):
    """The process that works, and its line to the one that watches, where there is one."""

    line: socket.socket | None

    def tell(self, **facts: Any) -> None:
        if self.line is not None:
            self.line.sendall(json.dumps(facts).encode() + b"\n")

    def end(self, code: int, text: str, lost: bool = False) -> NoReturn:
        """Ends at once: an ordinary exit would wait for the others, and they for this one."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.flush()
        if self.line is None:
            sys.stderr.write(text)
        sys.stderr.flush()
        self.tell(code=code, text=text, lost=lost)
        os._exit(code)


def watched() -> Worker:
    """Goes on in a fork; the process that was started waits for it and ends as it does."""
    if not hasattr(os, "fork"):
        return Worker(None)
    sys.stdout.flush()
    sys.stderr.flush()
    ours, theirs = socket.socketpair()
    withheld = tempfile.TemporaryFile()  # noqa: SIM115
    child = os.fork()
    if child:
        theirs.close()
        _watch(child, ours, withheld)
    ours.close()
    os.setpgrp()  # a Ctrl-C reaches the watching process alone, which passes it on: once
    kept = {"encoding": sys.stderr.encoding, "errors": sys.stderr.errors}
    sys.stderr = os.fdopen(os.dup(2), "w", 1, **kept)
    os.dup2(withheld.fileno(), 2)
    threading.Thread(target=_end_with, args=(theirs,), daemon=True).start()
    return Worker(theirs)


def _end_with(line: socket.socket) -> NoReturn:
    line.recv(1)  # nothing is ever sent: this returns when the watching process is no more
    os._exit(1)


def _watch(child: int, line: socket.socket, withheld: Any) -> NoReturn:
    def pass_on(number: int, _: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGINT, pass_on)
    told: dict[str, Any] = {}
    with line.makefile() as facts:
        for fact in facts:
            told |= json.loads(fact)
    _, status = os.waitpid(child, 0)
    withheld.seek(0)
    code, text = verdict(told, os.waitstatus_to_exitcode(status), withheld.read().decode(errors="replace"))
    sys.stderr.write(text)
    sys.stderr.flush()
    os._exit(code)


def verdict(told: dict[str, Any], code: int, withheld: str) -> tuple[int, str]:
    """Exit code and last words, from what the worker told, its exit code and what else was written."""
    if "code" in told:
        return told["code"], ("" if told["lost"] else withheld) + told["text"]
    if code and WORDS_OF_JAX in withheld:
        why = withheld.partition(WORDS_OF_JAX)[2].partition("absl::Status: ")[2].partition("\n")[0][:200]
        lost = f"{told['name']}: {LOST} ({why}); {AGAIN}" if "name" in told else f"{APART} ({why})"
        return 1, f"jaxrank: error: {lost}\n"
    if code < 0:
        name = told.get("name", "this process")
        return 128 - code, f"{withheld}jaxrank: error: {name}: ended by {signal.Signals(-code).name}\n"
    return code, withheld
