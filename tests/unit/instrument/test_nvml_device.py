"""The device that is watched is the one that CUDA means, and the door to NVML says why it does not open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pymllm.instrument import nvml_device
from pymllm.instrument.nvml_device import (
    cuda_uuid,
    device_index,
    device_names,
    find_device,
    mig_uuids,
    visible_devices,
    visible_name,
)
from pymllm.instrument.nvml_library import FUNCTION_NOT_FOUND, LOST, NvmlFailure, NvmlLibrary
from pymllm.instrument.reading import Unreadable
from tests.fake_nvml.machine import GIB, calls, on_machine, raised, say, users

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


@on_machine(without=[f"{PROCESSES}_v3"], fail__nvmlDeviceGetUUID=15)
def test_errors_keep_their_number() -> None:
    """An error keeps its number, of a binding without the function and of a driver that is older."""
    with NvmlLibrary() as library:
        assert code_of(library, "nvmlDeviceGetTomorrow") == FUNCTION_NOT_FOUND
        assert "this nvidia-ml-py lacks it" in raised(NvmlFailure, library.call, "nvmlDeviceGetTomorrow")
        handle = library.call("nvmlDeviceGetHandleByIndex", 0)
        assert code_of(library, "nvmlDeviceGetUUID", handle) == LOST
        assert code_of(library, PROCESSES, handle) == FUNCTION_NOT_FOUND
        assert "older than nvidia-ml-py" in raised(NvmlFailure, library.call, PROCESSES, handle)
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


@on_machine()
def test_a_forked_child_does_not_close_its_parents_library() -> None:
    """A child closes no library that its parent opened before the fork."""
    with NvmlLibrary() as library:
        child = os.fork()
        if child == 0:
            library.close()
            os._exit(users())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@on_machine(**{"hang.nvmlInitWithFlags": 1})
def test_a_driver_that_hangs_is_left_alone() -> None:
    """A driver that hangs is reported to the caller, and the process does not wait for it again."""
    said = raised(Unreadable, NvmlLibrary().open, 0.2)
    assert said == "nvmlInit: no answer within 0.2 s, the driver hangs; see pymllm doctor"
    assert raised(Unreadable, NvmlLibrary().open) == said
    assert calls("nvmlInitWithFlags") == 1


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


UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"


@pytest.mark.parametrize(
    ("text", "index", "name"),
    [
        (None, 5, 5),
        ("2,0", 0, 2),
        ("2,0", 1, 0),
        (" 1 , 3", 1, 3),
        ("3gpu,1", 0, 3),
        (UUID, 0, UUID),
        ("GPU-4cf8,1", 1, 1),
        ("MIG-aa,MIG-bb", 1, "MIG-bb"),
        ("MIG-GPU-4cf8/1/0", 0, "MIG-GPU-4cf8/1/0"),
    ],
)
def test_an_index_is_what_cuda_makes_of_it(text: str | None, index: int, name: int | str) -> None:
    """Unset means all, and entries count from zero."""
    assert visible_name(index, {} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == name


@pytest.mark.parametrize(
    ("text", "index", "why"),
    [
        ("", 0, "shows 0 devices"),
        ("-1,0", 0, "shows 0 devices"),
        ("0,-1,1", 1, "shows 1 device, so"),
        ("none", 0, "shows 0 devices"),
        ("0,1", 2, "shows 2 devices"),
        ("0,0", 0, "twice"),
        (f"{UUID},{UUID}", 0, "twice"),
    ],
)
def test_a_hidden_device_has_no_name(text: str, index: int, why: str) -> None:
    """A device that CUDA hides from the process is not replaced by another."""
    with pytest.raises(Unreadable, match=why):
        visible_name(index, {"CUDA_VISIBLE_DEVICES": text})


VISIBLE = "CUDA_VISIBLE_DEVICES"


def found(device: int | str) -> str:
    """The UUID of the device that is found, or the reason why none is."""
    try:
        with NvmlLibrary() as library:
            return find_device(library, device).identity.uuid
    except Unreadable as reason:
        return str(reason)


# Torch is imported where it is needed: the processes that are started from here need none.


def test_cuda_is_asked_only_where_it_is_in_use() -> None:
    """A torch that is loaded is not made to look for devices."""
    import torch

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    assert cuda_uuid(0) is None
    assert not torch.cuda.is_initialized()


@pytest.mark.gpu
def test_a_device_in_use_is_found_by_what_cuda_says_it_is() -> None:
    """CUDA's own UUID leads to the device, whatever order NVML has; that of the whole GPU, to an instance."""
    import torch

    torch.zeros(1, device="cuda")
    uuid = cuda_uuid(torch.cuda.current_device())
    assert uuid is not None
    with NvmlLibrary() as library:
        identity = find_device(library, device_index(None)).identity
    assert any(uuid in it for it in (identity.uuid, identity.gpu_uuid))


@on_machine(gpus=2, gpu1__mig=3)
def test_an_instance_of_a_divided_gpu_is_found() -> None:
    """MIG: memory is the instance's, clocks and errors the GPU's."""
    with NvmlLibrary() as library:
        device = find_device(library, "MIG-00000001-0002")
        identity = device.identity
        assert (identity.uuid, identity.gpu_uuid) == ("MIG-00000001-0002-fake", "GPU-00000001-fake")
        assert identity.is_mig
        assert device.instance == 2
        assert library.call("nvmlDeviceGetUUID", device.gpu) == "GPU-00000001-fake"
        whole = find_device(library, 0)
        assert (whole.identity.is_mig, whole.instance) == (False, None)
    assert "divided into 3 MIG instances" in found(1)
    say(mig=2, fail__nvmlDeviceGetGpuInstanceId=3)
    with NvmlLibrary() as library:
        assert find_device(library, "MIG-00000000-0001").instance is None


@on_machine(gpu1__mig=3, gpus=2, environment={VISIBLE: "MIG-GPU-00000001-fake/2/0"})
def test_an_instance_may_have_its_former_name() -> None:
    """CUDA still takes names from before instances had UUIDs."""
    with NvmlLibrary() as library:
        device = find_device(library, 0)
        assert (device.identity.uuid, device.instance) == ("MIG-00000001-0002-fake", 2)
        assert device.identity.gpu_uuid == "GPU-00000001-fake"
    assert found("MIG-GPU-00000001-fake/7/0") == "nvmlDeviceGetHandleByUUID: Not Found"


@on_machine(gpus=2, gpu1__mig=3)
def test_the_instances_of_a_gpu_are_listed_as_far_as_they_say_who_they_are() -> None:
    """Of a whole GPU, and where the driver does not know of MIG, there are none; a lost one is left out."""

    def listed(index: int) -> list[str]:
        with NvmlLibrary() as library:
            return list(mig_uuids(library, library.call("nvmlDeviceGetHandleByIndex", index)))

    assert listed(0) == []
    assert listed(1) == [f"MIG-00000001-000{place}-fake" for place in range(3)]
    say(mig=2, fail__nvmlDeviceGetUUID=15)
    assert listed(0) == []
    say(mig=2, fail__nvmlDeviceGetMaxMigDeviceCount=3)
    assert listed(0) == []
    say(mig=2, fail__nvmlDeviceGetMigMode=3)
    assert listed(0) == []


@on_machine(without=["nvmlDeviceGetMigMode"], gpus=2)
def test_a_driver_that_knows_no_mig_has_whole_gpus() -> None:
    """An older driver divides nothing."""
    assert found(1) == "GPU-00000001-fake"


@on_machine(gpus=3, gpu1__mig=2)
def test_cudas_own_uuid_comes_first() -> None:
    """A device that CUDA uses is looked for by its UUID, of a GPU or of an instance."""
    with NvmlLibrary() as library:

        def said(uuid: str) -> str:
            return find_device(library, 0, uuid_of=lambda index: uuid).identity.uuid

        assert said("00000002-fake") == "GPU-00000002-fake"
        assert said("00000001-0001-fake") == "MIG-00000001-0001-fake"
        assert "no device has a UUID" in raised(Unreadable, said, "77")


@pytest.mark.parametrize(
    ("device", "expected"),
    [(None, 0), (3, 3), ("cuda", 0), ("cuda:2", 2), ("GPU-1", "GPU-1"), ("MIG-1", "MIG-1")],
)
def test_a_device_is_named_in_many_ways(device: object, expected: int | str) -> None:
    """An index, torch's names, a UUID; CUDA is not initialised to tell."""
    assert device_index(device) == expected


@pytest.mark.parametrize(
    ("device", "error"),
    [
        *((device, ValueError) for device in ("cpu", "cuda:", "cuda:x", "cuda:-1", "", -1)),
        *((device, TypeError) for device in (1.0, True, [0], b"cuda")),
    ],
)
def test_what_is_no_cuda_device_is_refused(device: object, error: type[Exception]) -> None:
    """X1: refused before anything is opened."""
    with pytest.raises(error, match=r"no CUDA device|at least 0|must be an index"):
        device_index(device)


# Torch is imported where it is needed: the processes that are started from here need none.
def test_a_device_of_torch_is_taken() -> None:
    """Whoever has a torch.device gives that."""
    import torch

    assert device_index(torch.device("cuda")) == 0
    assert device_index(torch.device("cuda", 1)) == 1
    with pytest.raises(ValueError, match="no CUDA device"):
        device_index(torch.device("cpu"))


TWO_MODELS: dict[str, object] = {"gpus": 2, "gpu1__name": "Another GPU"}
HIDDEN: dict[str, object] = {
    "gpus": 3,
    "gpu0__forbidden": 1,
    "gpu1__fail__nvmlDeviceGetUUID": 15,
    "gpu2__mig": 1,
}
# A machine, what CUDA is to show of it, a device, and the UUID that is found or what is said instead.
MACHINES: list[tuple[dict[str, object], str | None, int | str, str]] = [
    # NVML ignores CUDA_VISIBLE_DEVICES, so its index is another one; unset shows all.
    ({"gpus": 4}, "2,0", 0, "GPU-00000002-fake"),
    ({"gpus": 4}, "2,0", 1, "GPU-00000000-fake"),
    ({"gpus": 4}, "2,0", 2, "shows 2 devices"),
    ({"gpus": 2}, None, 1, "GPU-00000001-fake"),
    ({"gpus": 2}, None, 2, "the driver shows 2 devices, so none has index 2"),
    ({}, None, 1, "the driver shows 1 device, so none has index 1"),
    # CUDA takes the beginning of a UUID where it leads to one device.
    ({"gpus": 3}, "GPU-00000002,GPU-0000000", 0, "GPU-00000002-fake"),
    ({"gpus": 3}, "GPU-00000002,GPU-0000000", 1, "3 devices have a UUID that begins with GPU-0000000"),
    ({"gpus": 3}, None, "GPU-00000001-fake", "GPU-00000001-fake"),
    ({"gpus": 3}, None, "GPU-9", "no device has a UUID that begins with GPU-9"),
    # CUDA counts the fastest first, NVML by address: only a setting or a UUID tells.
    (TWO_MODELS, None, 0, "ambiguous among Another GPU, Fake GPU"),
    (TWO_MODELS, None, "GPU-00000001", "GPU-00000001-fake"),
    # CUDA shows a divided GPU as one instance; where there is one, it is that.
    ({"mig": 1}, "0", 0, "MIG-00000000-0000-fake"),
    ({"mig": 2, "fail__nvmlDeviceGetMaxMigDeviceCount": 3}, None, 0, "divided into 0 MIG instances"),
    ({"mig": 2, "fail__nvmlDeviceGetMaxMigDeviceCount": 3}, None, "GPU-00000000-fake", "GPU-00000000-fake"),
    # A container may show GPUs and forbid them, and a lost one says nothing of the others.
    (HIDDEN, None, "GPU-00000002-fake", "GPU-00000002-fake"),
    (HIDDEN, None, "MIG-00000002-0000", "MIG-00000002-0000-fake"),
    (HIDDEN, None, "GPU-00000000-fake", "no device has a UUID"),
    (HIDDEN, None, 2, "ambiguous among Fake GPU, one that may not be looked at"),
    # A name is no reason to watch nothing, unless it is needed to tell devices apart.
    ({"gpus": 2, "fail__nvmlDeviceGetName": 4}, None, "GPU-00000001", "GPU-00000001-fake"),
    ({"gpus": 2, "fail__nvmlDeviceGetName": 4}, None, 1, "nvmlDeviceGetName: Insufficient Permissions"),
]


@on_machine()
def test_a_device_is_found_as_cuda_would_find_it() -> None:
    """By index through what CUDA shows, by UUID, and by neither where that would be a guess."""
    os.environ.pop("CUDA_DEVICE_ORDER", None)
    for state, visible, device, said in MACHINES:
        say(**state)
        os.environ.pop(VISIBLE, None)
        if visible is not None:
            os.environ[VISIBLE] = visible
        assert said in found(device), (state, visible, device)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    say(**TWO_MODELS)
    assert found(1) == "GPU-00000001-fake"
    assert "torch" not in sys.modules


@on_machine(fail__nvmlShutdown=999)
def test_a_closed_library_answers_nothing() -> None:
    """Before opening or after closing, also where that failed: a lost device is no error at the end."""
    library = NvmlLibrary()
    assert raised(Unreadable, library.call, "nvmlDeviceGetCount") == "NVML is not open"
    library.open()
    library.close()
    assert raised(Unreadable, library.call, "nvmlDeviceGetCount") == "NVML is not open"


# -- what CUDA says of itself --------------------------------------------------------------------------


class Properties:
    """A torch in use whose device has this much memory."""

    def __init__(self, total: int) -> None:
        self.total_memory = total
        self.cuda = self

    def get_device_properties(self, index: int) -> Properties:
        return self


INSTANCES = {"mig": 2, "gpu0.mig0.total": 10 * GIB, "gpu0.mig1.total": 20 * GIB, "total": 80 * GIB}


@on_machine(**INSTANCES)
def test_an_instance_that_cuda_gives_the_gpus_uuid_is_found_by_its_memory() -> None:
    """Not the whole GPU is watched; where two are alike, nobody guesses."""
    with NvmlLibrary() as library:
        torch_in_use = nvml_device._torch_in_use
        for total, found in ((10 * GIB, 0), (int(19.5 * GIB), 1)):
            nvml_device._torch_in_use = lambda total=total: Properties(total)  # type: ignore[misc]
            device = find_device(library, 0, lambda index: "00000000-fake")
            assert device.identity.uuid == f"MIG-00000000-000{found}-fake"
        say(**{**INSTANCES, "gpu0.mig1.total": 10 * GIB})
        nvml_device._torch_in_use = lambda: Properties(10 * GIB)  # type: ignore[assignment, return-value]
        told = raised(Unreadable, find_device, library, 0, lambda index: "00000000-fake")
        assert (
            "CUDA device 0 is one of 2 MIG instances, and CUDA tells the UUID of the whole GPU; 2 of" in told
        )
        os.environ["CUDA_VISIBLE_DEVICES"] = "MIG-00000000-0001"
        device = find_device(library, 0, lambda index: "00000000-fake")
        assert device.identity.uuid == "MIG-00000000-0001-fake"
        nvml_device._torch_in_use = torch_in_use


@on_machine(gpus=3, gpu1__mig=2)
def test_each_device_that_may_be_used_has_a_name() -> None:
    """By the variable, else all GPUs, and instances in the place of what they divide."""
    assert visible_devices() == [0, 1, 2]
    instances = ["MIG-00000001-0000-fake", "MIG-00000001-0001-fake"]
    assert device_names({}) == ["GPU-00000000-fake", *instances, "GPU-00000002-fake"]
    assert device_names({"CUDA_VISIBLE_DEVICES": "2,GPU-00"}) == ["2", "GPU-00"]
    os.environ["CUDA_VISIBLE_DEVICES"] = "2,1"
    assert visible_devices() == [0, 1]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    assert (visible_devices(), device_names(os.environ)) == ([0], [])
