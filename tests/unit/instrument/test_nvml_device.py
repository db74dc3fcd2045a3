"""The device that is watched is the one that CUDA means."""

from __future__ import annotations

import os
import sys

import pytest

from pymllm.instrument.nvml_device import cuda_uuid, device_index, find_device
from pymllm.instrument.nvml_library import NvmlLibrary
from pymllm.instrument.reading import Unreadable
from tests.fake_nvml.machine import on_machine, raised, say

VISIBLE = "CUDA_VISIBLE_DEVICES"


def found(device: int | str) -> str:
    """The UUID of the device that is found, or the reason why none is."""
    try:
        with NvmlLibrary() as library:
            return find_device(library, device).identity.uuid
    except Unreadable as reason:
        return str(reason)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (None, 0),
        (3, 3),
        ("cuda", 0),
        ("cuda:2", 2),
        ("GPU-1", "GPU-1"),
        ("MIG-1", "MIG-1"),
    ],
)
def test_a_device_is_named_in_many_ways(device: object, expected: int | str) -> None:
    """An index, torch's names, a UUID; CUDA is not initialised to tell."""
    assert device_index(device) == expected


# Torch is imported where it is needed: the processes that are started from here need none.
def test_a_device_of_torch_is_taken() -> None:
    """Whoever has a torch.device gives that."""
    import torch

    assert device_index(torch.device("cuda")) == 0
    assert device_index(torch.device("cuda", 1)) == 1
    with pytest.raises(ValueError, match="no CUDA device"):
        device_index(torch.device("cpu"))


@pytest.mark.parametrize("device", ["cpu", "cuda:", "cuda:x", "cuda:-1", "", -1])
def test_what_is_no_cuda_device_is_refused(device: object) -> None:
    """X1: refused before anything is opened."""
    with pytest.raises(ValueError, match=r"no CUDA device|at least 0"):
        device_index(device)


@pytest.mark.parametrize("device", [1.0, True, [0], b"cuda"])
def test_another_type_is_refused(device: object) -> None:
    """X1: a type that names no device."""
    with pytest.raises(TypeError, match="must be an index"):
        device_index(device)


def test_cuda_is_asked_only_where_it_is_in_use() -> None:
    """A torch that is loaded is not made to look for devices."""
    import torch

    if torch.cuda.is_initialized():
        pytest.skip("CUDA is in use in this process")
    assert cuda_uuid(0) is None
    assert not torch.cuda.is_initialized()


@pytest.mark.gpu
def test_a_device_in_use_is_found_by_what_cuda_says_it_is() -> None:
    """CUDA's own UUID leads to the device, whatever order NVML has."""
    import torch

    torch.zeros(1, device="cuda")
    uuid = cuda_uuid(torch.cuda.current_device())
    assert uuid is not None
    with NvmlLibrary() as library:
        assert uuid in find_device(library, device_index(None)).identity.uuid


@on_machine(gpus=4, environment={VISIBLE: "2,0"})
def test_an_index_goes_through_what_cuda_shows() -> None:
    """NVML ignores CUDA_VISIBLE_DEVICES, so its index is another one."""
    assert found(0) == "GPU-00000002-fake"
    assert found(1) == "GPU-00000000-fake"
    assert "shows 2 devices" in found(2)
    assert "torch" not in sys.modules


@on_machine(gpus=2)
def test_without_the_variable_indices_are_the_machines() -> None:
    """Unset shows all; an index beyond them is a reason."""
    assert found(1) == "GPU-00000001-fake"
    assert found(2) == "the driver shows 2 devices, so none has index 2"


@on_machine(gpus=1)
def test_one_device_is_no_plural() -> None:
    """As a person would say it."""
    assert found(1) == "the driver shows 1 device, so none has index 1"


@on_machine(gpus=3, environment={VISIBLE: "GPU-00000002,GPU-0000000"})
def test_a_uuid_may_be_cut_short_but_not_ambiguous() -> None:
    """CUDA takes the beginning of a UUID where it leads to one device."""
    assert found(0) == "GPU-00000002-fake"
    assert found(1) == "3 devices have a UUID that begins with GPU-0000000"
    assert found("GPU-00000001-fake") == "GPU-00000001-fake"
    assert found("GPU-9") == "no device has a UUID that begins with GPU-9"


@on_machine(gpus=2)
def test_an_index_among_different_models_is_not_guessed() -> None:
    """CUDA counts the fastest first, NVML by address: only a setting or a UUID tells."""
    say(gpus=2, gpu1__name="Another GPU")
    os.environ.pop("CUDA_DEVICE_ORDER", None)
    assert "ambiguous among Another GPU, Fake GPU" in found(0)
    assert found("GPU-00000001") == "GPU-00000001-fake"
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert found(1) == "GPU-00000001-fake"


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


@on_machine(gpu1__mig=3, gpus=2, environment={VISIBLE: "MIG-GPU-00000001-fake/2/0"})
def test_an_instance_may_have_its_former_name() -> None:
    """CUDA still takes names from before instances had UUIDs."""
    with NvmlLibrary() as library:
        device = find_device(library, 0)
        assert (device.identity.uuid, device.instance) == ("MIG-00000001-0002-fake", 2)
        assert device.identity.gpu_uuid == "GPU-00000001-fake"
    assert found("MIG-GPU-00000001-fake/7/0") == "nvmlDeviceGetHandleByUUID: Not Found"


@on_machine(mig=1, environment={VISIBLE: "0"})
def test_the_only_instance_is_what_an_index_means() -> None:
    """CUDA shows a divided GPU as one instance; where there is one, it is that."""
    assert found(0) == "MIG-00000000-0000-fake"


@on_machine(mig=2, fail__nvmlDeviceGetGpuInstanceId=3)
def test_an_instance_without_a_number_is_still_found() -> None:
    """Without its number, what is reported for any instance is taken as its own."""
    with NvmlLibrary() as library:
        assert find_device(library, "MIG-00000000-0001").instance is None


@on_machine(without=["nvmlDeviceGetMigMode"], gpus=2)
def test_a_driver_that_knows_no_mig_has_whole_gpus() -> None:
    """An older driver divides nothing."""
    assert found(1) == "GPU-00000001-fake"


@on_machine(gpus=3, gpu0__forbidden=1, gpu1__fail__nvmlDeviceGetUUID=15, gpu2__mig=1)
def test_a_device_that_may_not_be_looked_at_hides_no_other() -> None:
    """A container may show GPUs and forbid them, and a lost one says nothing of the others."""
    assert found("GPU-00000002-fake") == "GPU-00000002-fake"
    assert found("MIG-00000002-0000") == "MIG-00000002-0000-fake"
    assert "no device has a UUID" in found("GPU-00000000-fake")
    assert "ambiguous among Fake GPU, one that may not be looked at" in found(2)


@on_machine(mig=2, fail__nvmlDeviceGetMaxMigDeviceCount=3)
def test_a_divided_gpu_without_instances_is_no_device() -> None:
    """CUDA cannot use it either."""
    assert "divided into 0 MIG instances" in found(0)
    assert found("GPU-00000000-fake") == "GPU-00000000-fake"


@on_machine(gpus=2, fail__nvmlDeviceGetName=4)
def test_what_a_device_is_called_may_be_unknown() -> None:
    """A name is no reason to watch nothing, unless it is needed to tell devices apart."""
    with NvmlLibrary() as library:
        assert find_device(library, "GPU-00000001").identity.name.startswith("unknown (nvmlDeviceGetName")
    assert found(1) == "nvmlDeviceGetName: Insufficient Permissions"


@on_machine(gpus=2, gpu1__mig=2)
def test_cudas_own_uuid_comes_first() -> None:
    """A device that CUDA uses is looked for by its UUID, of a GPU or of an instance."""
    with NvmlLibrary() as library:

        def said(uuid: str) -> str:
            return find_device(library, 0, uuid_of=lambda index: uuid).identity.uuid

        assert said("00000001-fake") == "GPU-00000001-fake"
        assert said("00000001-0001-fake") == "MIG-00000001-0001-fake"
        assert "no device has a UUID" in raised(Unreadable, said, "77")
