"""The common set-up of all tests: the Hypothesis profiles, and the header that names their seed."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from pymllm import __version__
from pymllm.machines.registry import CI, DEEP, DEV, PROFILES
from pymllm.work import workers
from tests.fake_nvml.machine import FakeNvml
from tests.source_tree import pytest_make_collect_report
from tests.warm_workers import START_COLD, start_warm

if TYPE_CHECKING:
    import torch

__all__ = ["pytest_make_collect_report"]

# Set before anything imports torch, so that child processes inherit it: tensors in tests are small, and a
# second thread costs them more than it gives.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYMLLM_PROGRESS", "off")  # a slow machine has more to say on standard error

# No deadlines: a slow machine is not a wrong cache. A machine's test takes its length from the profile, so
# that one class serves a commit (dev, ci) and a night (deep: at most 100,000 steps for each machine). The
# numbers are those of pymllm verify --profile.
for profile in PROFILES.values():
    settings.register_profile(
        profile.name,
        deadline=None,
        max_examples=profile.examples,
        stateful_step_count=profile.steps,
        derandomize=profile is CI,
        print_blob=profile is not DEV,
        suppress_health_check=[HealthCheck.too_slow] if profile is DEEP else [],
    )
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stress", "tests/stress of pymllm")
    group.addoption(
        "--stress-seconds",
        type=float,
        default=0.0,
        help="how long each test that can go on does so (default: its fixed number of rounds)",
    )
    group.addoption(
        "--stress-memory",
        metavar="SIZE",
        help='most memory of a device that a test takes, such as "8 GiB" (default: a quarter of a GPU\'s)',
    )
    group.addoption(
        "--stress-seed", type=int, default=0, help="where choices of stress tests come from (default: 0)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Hypothesis would draw a seed of its own and name it only for a failure. One that the header shows can
    # be given again for any run. A derandomized profile does not look at it.
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(2**32))


def pytest_report_header(config: pytest.Config) -> str:
    seed = "fixed by each test" if settings.default.derandomize else f"{config.option.hypothesis_seed}"
    return (
        f"pymllm {__version__}, torch {version('torch')}, numpy {version('numpy')}; "
        f"profile {settings.get_current_profile_name()}, --hypothesis-seed: {seed}"
    )


@pytest.fixture(scope="module", autouse=True)
def _few_objects() -> None:
    """Let the garbage collector pass over what was there before a file's first test.

    A process that has run some thousand tests keeps a gigabyte of objects, and looks through all of it for a
    second at a time: four fifths of the time of the campaigns' tests, which ask for it after each run.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    """Builds a fake NVML library when it is first asked for one."""
    return FakeNvml(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def device(kv_device: torch.device) -> torch.device:
    """Each device that the test is to run on, under the name that most tests know it by."""
    return kv_device


@pytest.fixture(scope="session", autouse=True)
def _warm_workers() -> Iterator[None]:
    """Forks worker processes from a prepared one: to import torch takes each two seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_start", start_warm)
        yield


@pytest.fixture
def cold_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts worker processes as users get them: new interpreters, which have nothing in common."""
    monkeypatch.setattr(workers, "_start", START_COLD)
