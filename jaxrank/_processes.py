"""Several processes that do one job: each holds some of the lists, and what they find is added up or put together.

Sums over lists are exchanged as (total, weight), never as means: shares may be uneven, or empty.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from jaxrank._watch import AGAIN, LOST
from jaxrank.data import DataError
from jaxrank.data._shares import WHOLE, Share

JOIN_SECONDS = 45  # how long the processes wait for each other at the start
HEARTBEAT_SECONDS = 30  # a process that is not heard of for so long is lost


class LostProcessError(RuntimeError):
    """Another process ended before the job was done."""


class Processes(NamedTuple):
    """This process and how many there are."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.index == 0

    @property
    def name(self) -> str:
        return f"process {self.index} of {self.count}"

    @property
    def share(self) -> Share:
        return WHOLE if self.count == 1 else Share(self.index, self.count, self.exchanged)

    def gathered(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes, which have one shape, stacked; bit by bit, whatever JAX makes of their dtype."""
        if self.count == 1:
            return array[None]
        flat = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        if not len(flat):
            return np.zeros((self.count, *array.shape), array.dtype)
        every = np.asarray(self._exchanged(flat, _same))
        return np.frombuffer(every.tobytes(), array.dtype).reshape(self.count, *array.shape)

    def total(self, array: np.ndarray) -> np.ndarray:
        """The sum over processes: the whole, where each has zeros for what it does not hold."""
        return array if self.count == 1 else self.gathered(array).sum(0, dtype=array.dtype)

    def exchanged(self, own: bytes) -> list[bytes]:
        """The bytes of all processes, however many of each."""
        lengths = self.gathered(np.array(len(own)))
        padded = np.zeros(lengths.max(), np.uint8)
        padded[: len(own)] = np.frombuffer(own, np.uint8)
        return [row[:length].tobytes() for row, length in zip(self.gathered(padded), lengths, strict=True)]

    def from_first(self, array: np.ndarray) -> np.ndarray:
        """The array of the first process; the others give one of its shape."""
        return self.gathered(array)[0]

    def check_same(self, what: str, texts: Iterable[str]) -> None:
        """Refuses to go on where processes hold different files under one name."""
        digests = self.gathered(np.frombuffer(hashlib.sha256("\n".join(texts).encode()).digest(), np.uint8))
        other = np.flatnonzero((digests != digests[0]).any(1))
        if len(other):
            raise DataError(
                f"processes 0 and {other[0]} have read different {what}; expected the same files on every machine"
            )

    def sum_on_devices(self, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """The sum over processes, by an all-reduce; the same bits in each of them."""
        return self._exchanged(vector, _sum_rows)

    def _exchanged(self, own: Any, combine: Callable[[Array], Array]) -> Array:
        """What `combine` makes of the stacked arrays of all processes, by a device of each."""
        devices = [next(d for d in jax.devices() if d.process_index == i) for i in range(self.count)]
        mesh = Mesh(np.array(devices), "processes")
        try:
            with _silent():
                row = jax.device_put(own[None], devices[self.index])
                sharding = NamedSharding(mesh, PartitionSpec("processes"))
                rows = jax.make_array_from_single_device_arrays((self.count, *own.shape), sharding, [row])
                combined = jax.jit(combine, out_shardings=NamedSharding(mesh, PartitionSpec()))(rows)
                return combined.addressable_data(0).block_until_ready()
        except Exception as error:  # JAX raises several kinds, by version and by transport
            raise LostProcessError(f"{LOST} ({str(error).splitlines()[0][:200]}); {AGAIN}") from error


ALONE = Processes()


@contextmanager
def _silent() -> Iterator[None]:
    """Gloo announces itself on standard output, amid the figures."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _same(rows: Array) -> Array:
    return rows


def _sum_rows(rows: Float[Array, "count n"]) -> Float[Array, " n"]:
    return rows.sum(0)
