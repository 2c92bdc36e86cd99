"""Arrays and settings in one safetensors file, which is written whole or not at all.

A file is first written under another name, then renamed over the old one: whenever the process is killed, one whole
version is there. Nothing is unpickled, so a file from a stranger can do no harm.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float32, PyTree

from jaxrank.data import DataError, RankingLists
from jaxrank.training import Standardiser, TrainState, apply_mlp, init_mlp, predict

Path = str | os.PathLike[str]
SPARE_BYTES = 1 << 20  # for the picture and the figures


def write_file(path: Path, data: bytes) -> None:
    """Replaces a file in one step; until then the old one stays."""
    path = pathlib.Path(path)
    fresh = path.with_name(path.name + ".tmp")
    try:
        with open(fresh, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise OSError(f"{path}: cannot be written: {error.strerror}; what was there before is unchanged") from error
    _sync_directory(path.parent)


def _sync_directory(directory: pathlib.Path) -> None:
    """Without this a power cut may undo the renaming. Windows cannot open a directory, and needs no such thing."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def check_writable(directory: Path, needed: int) -> None:
    """Fails now rather than after an hour: makes the directory and fills it with `needed` bytes for a moment.

    Raises:
      OSError: the directory cannot be made or written, or the disk is full; says which, and what to do.
    """
    directory = pathlib.Path(directory)
    trial = directory / "trial.tmp"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(trial, "wb") as file:
            for start in range(0, needed, SPARE_BYTES):
                file.write(bytes(min(SPARE_BYTES, needed - start)))
            file.flush()
            os.fsync(file.fileno())
        trial.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):  # where there is no such directory, there is nothing to remove
            trial.unlink()
        raise OSError(f"{directory}: {_reason(error, directory, needed)}") from error


def _reason(error: OSError, directory: pathlib.Path, needed: int) -> str:
    text = f"training would not be saved here: {error.strerror}; "
    if not directory.is_dir():
        return text + "give a directory that can be made (--out)"
    free = shutil.disk_usage(directory).free
    return (
        text
        + f"it needs {needed / 1e6:.1f} MB and the disk has {free / 1e6:.1f} MB free; make room, or use another --out"
    )


def save_arrays(path: Path, tree: PyTree, settings: dict[str, Any]) -> None:
    """Writes the arrays of any pytree, and settings that JSON can hold."""
    write_file(path, _packed(tree, settings))


def packed_size(tree: PyTree) -> int:
    """Bytes that `save_arrays` will write, nearly."""
    return len(_packed(tree, {})) + 65_536


def _packed(tree: PyTree, settings: dict[str, Any]) -> bytes:
    numpy = _safetensors().numpy
    arrays, text = _named(tree), json.dumps(settings)
    return numpy.save(arrays, metadata={"jaxrank": text, "sha256": _digest(arrays, text)})


def _named(tree: PyTree) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
    return {
        jax.tree_util.keystr(name) or ".": np.ascontiguousarray(leaf).reshape(np.shape(leaf)) for name, leaf in leaves
    }


def _digest(arrays: dict[str, np.ndarray], text: str) -> str:
    """safetensors has no checksum of its own: a flipped bit in a weight would pass."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def load_settings(path: Path, kind: str) -> dict[str, Any]:
    """The settings of a file that `save_arrays` wrote, checked against damage."""
    return _load(path, kind)[1]


def load_arrays(path: Path, kind: str, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """What `save_arrays` wrote, as a tree with the structure of `like`.

    Raises:
      FileNotFoundError: there is no such file.
      DataError: it is damaged, of another kind, or its arrays are not those of `like`.
    """
    arrays, settings = _load(path, kind)
    named, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {jax.tree_util.keystr(name) or ".": (np.shape(leaf), np.dtype(leaf.dtype)) for name, leaf in named}
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if found != wanted:
        odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))[0]
        raise DataError(f"{path}: array {odd} is {found.get(odd)}; expected {wanted.get(odd)}, as this model has it")
    return jax.tree.unflatten(structure, [arrays[name] for name in wanted]), settings


def _load(path: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    module = _safetensors()
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file; expected a {kind} that `python -m jaxrank train --out` wrote")
    try:
        with module.safe_open(path, framework="numpy") as file:
            written = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file, not a dict)
    except module.SafetensorError as error:
        raise DataError(f"{path}: damaged, or not a safetensors file ({error}); {_advice(kind)}") from error
    if "jaxrank" not in written:
        raise DataError(f"{path}: a safetensors file, but not one of jaxrank; {_advice(kind)}")
    if written.get("sha256") != _digest(arrays, written["jaxrank"]):
        raise DataError(
            f"{path}: damaged: its contents do not have the checksum they were written with; {_advice(kind)}"
        )
    settings = json.loads(written["jaxrank"])
    if settings.get("kind") != kind:
        raise DataError(f"{path}: holds a {settings.get('kind')}; {_advice(kind)}")
    return arrays, settings


def _advice(kind: str) -> str:
    return f"expected a {kind} as `python -m jaxrank train --out` writes it; copy it again, or train anew"


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError('models are saved with safetensors: pip install "jaxrank[train]"') from error
    return safetensors


class Checkpoint(NamedTuple):
    """Where the state of a run is kept, and the settings that must be the same for it to go on."""

    path: pathlib.Path
    settings: dict[str, Any]

    def save(self, state: TrainState) -> None:
        """Writes the state of an epoch over that of the one before."""
        arrays, history = state[:3], state.history.tolist()
        save_arrays(self.path, arrays, {"kind": "checkpoint", "settings": self.settings, "history": history})

    def open(self, first: TrainState, resume: bool) -> TrainState:
        """The state to go on from: the saved one, or `first`. Makes sure that all later ones can be saved.

        Raises:
          FileExistsError: there is a checkpoint, and nobody said to resume.
          OSError: the directory cannot be written, or is full.
          DataError: the checkpoint is damaged, or of a run with other settings.
        """
        exists = self.path.exists()
        if exists and not resume:
            raise FileExistsError(f"{self.path}: holds a run already; add --resume to go on, or give another --out")
        check_writable(self.path.parent, 2 * packed_size(first[:3]) + SPARE_BYTES)
        return self._load(first) if exists else first

    def _load(self, first: TrainState) -> TrainState:
        saved = load_settings(self.path, "checkpoint")
        for name, value in self.settings.items():
            if saved["settings"].get(name) != value:
                raise DataError(
                    f"{self.path}: made with {name} = {saved['settings'].get(name)}, not {value}; "
                    "give the same options and files as before, or another --out"
                )
        (params, opt_state, best), _ = load_arrays(self.path, "checkpoint", first[:3])
        return TrainState(params, opt_state, best, np.array(saved["history"], np.float64).reshape(-1, 2))


class Model(NamedTuple):
    """A trained network with the measures of its features.

    Args:
      params: of `apply_mlp`.
      standardiser: fitted to the training set.
      settings: what it was trained with; "features" and "hidden" give the network's shape.
    """

    params: PyTree
    standardiser: Standardiser
    settings: dict[str, Any]

    def scores(self, lists: RankingLists) -> Float32[np.ndarray, " rows"]:
        """The score of each row."""
        return predict(apply_mlp, self.params, self.standardiser(lists))


def save_model(path: Path, model: Model) -> None:
    save_arrays(path, (model.params, model.standardiser), model.settings | {"kind": "model"})


def load_model(path: Path) -> Model:
    """Reads what `save_model` wrote; errors as `load_arrays`."""
    settings = load_settings(path, "model")
    width = settings["features"]
    params = jax.eval_shape(lambda: init_mlp(jax.random.key(0), width, settings["hidden"]))
    like = Standardiser(np.zeros(width, bool), np.zeros(width, np.float32), np.zeros(width, np.float32))
    (params, standardiser), _ = load_arrays(path, "model", (params, like))
    return Model(params, standardiser, settings)
