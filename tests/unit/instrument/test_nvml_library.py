"""The door to NVML opens, closes, and says why it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pymllm.instrument.nvml_library import FUNCTION_NOT_FOUND, LOST, NvmlFailure, NvmlLibrary
from pymllm.instrument.reading import Unreadable
from tests.fake_nvml.machine import calls, on_machine, raised, users

PROCESSES = "nvmlDeviceGetComputeRunningProcesses"


def code_of(library: NvmlLibrary, *call: object) -> int:
    try:
        library.call(*call)  # type: ignore[arg-type]
    except NvmlFailure as failure:
        return failure.code
    raise AssertionError(f"{call[0]} did not fail")


@on_machine()
def test_users_of_one_process_share_the_library() -> None:
    """It stays open until the last has closed it; closing twice is nothing."""
    first, second = NvmlLibrary(), NvmlLibrary()
    first.open()
    with second:
        first.close()
        first.close()
        assert users() == 1
        assert second.call("nvmlDeviceGetCount") == 1
    assert users() == 0


@on_machine()
def test_a_closed_library_answers_nothing() -> None:
    """A call before opening or after closing is a reason, not a crash."""
    library = NvmlLibrary()
    assert raised(Unreadable, library.call, "nvmlDeviceGetCount") == "NVML is not open"


@on_machine()
def test_a_function_that_this_binding_lacks_is_a_reason() -> None:
    """An older nvidia-ml-py lacks functions, too."""
    with NvmlLibrary() as library:
        assert code_of(library, "nvmlDeviceGetTomorrow") == FUNCTION_NOT_FOUND
        assert "this nvidia-ml-py lacks it" in raised(NvmlFailure, library.call, "nvmlDeviceGetTomorrow")


@on_machine(without=[f"{PROCESSES}_v3"], fail__nvmlDeviceGetUUID=15)
def test_errors_keep_their_number() -> None:
    """Of a driver older than the binding too, whose error is no NVMLError."""
    with NvmlLibrary() as library:
        handle = library.call("nvmlDeviceGetHandleByIndex", 0)
        assert code_of(library, "nvmlDeviceGetUUID", handle) == LOST
        assert code_of(library, PROCESSES, handle) == FUNCTION_NOT_FOUND
        assert "older than nvidia-ml-py" in raised(NvmlFailure, library.call, PROCESSES, handle)


@on_machine(without=[f"{PROCESSES}_v3"])
def test_an_older_form_is_called_where_the_newer_is_missing() -> None:
    """The newest function that the driver has is asked."""
    with NvmlLibrary() as library:
        handle = library.call("nvmlDeviceGetHandleByIndex", 0)
        assert library.first_of((f"{PROCESSES}_v3", handle), (f"{PROCESSES}_v2", handle)) == []
    assert calls(f"{PROCESSES}_v2") == 1


@on_machine(**{f"fail.{PROCESSES}_v3": 4})
def test_an_error_is_not_hidden_by_an_older_form() -> None:
    """A missing permission is the reason, not the absence of an older function."""
    with NvmlLibrary() as library:
        handle = library.call("nvmlDeviceGetHandleByIndex", 0)
        both = (f"{PROCESSES}_v3", handle), (f"{PROCESSES}_v2", handle)
        assert raised(NvmlFailure, library.first_of, *both) == f"{PROCESSES}_v3: Insufficient Permissions"
    assert calls(f"{PROCESSES}_v2") == 0


@on_machine(fail__nvmlShutdown=999)
def test_a_library_that_cannot_be_shut_down_is_let_go_of() -> None:
    """A device that was lost must not turn the end of a run into an error."""
    library = NvmlLibrary()
    library.open()
    library.close()
    assert raised(Unreadable, library.call, "nvmlDeviceGetCount") == "NVML is not open"


@on_machine()
def test_a_forked_child_does_not_close_its_parents_library() -> None:
    """What was opened before the fork is the parent's."""
    with NvmlLibrary() as library:
        child = os.fork()
        if child == 0:
            library.close()
            os._exit(users())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_without_the_package_there_is_a_reason(tmp_path: Path) -> None:
    """From a source tree it may be missing: the reason says how to get it."""
    (tmp_path / "pynvml.py").write_text("raise ImportError('not here')")
    code = """if True:
        from pymllm.instrument.nvml_library import NvmlLibrary, Unreadable
        try:
            NvmlLibrary().open()
        except Unreadable as reason:
            print(reason)
    """
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "nvidia-ml-py is not installed; python -m pip install nvidia-ml-py brings it\n"
