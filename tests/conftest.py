"""Settings that the whole suite runs under: 8 CPU devices, no silent promotion of dtypes or ranks."""

import os
import pathlib
import zlib

# Tests compile far more than they compute: without LLVM's optimisations a program compiles in two thirds of the time.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
    ]
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# One compilation serves all workers, the processes that tests start, and the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import hypothesis
import jax
import jaxtyping
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# The first example of a shape compiles, and machines are shared: a deadline would time the compiler.
hypothesis.settings.register_profile("jaxrank", deadline=None, max_examples=30, derandomize=True)
hypothesis.settings.load_profile("jaxrank")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="one test in 24, the same ones every time")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--quick"):
        hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("jaxrank"), max_examples=15)
        hypothesis.settings.load_profile("quick")
        chosen = [item for item in items if zlib.crc32(item.nodeid.encode()) % 24 == 0]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """Real data beside the checkout; it is not part of the project."""
    path = pathlib.Path(__file__).parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"real data is not part of the project, and there is none at {path}")
    return path


@pytest.fixture
def x64():
    """64-bit types for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked(monkeypatch):
    """As users have it: without the type checks of the test run, whose errors come before the library's own."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
