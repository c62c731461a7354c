"""nvidia-ml-py: what can be tested without a GPU, and on one what it reads."""

import os

import pytest

from vario.machine import gpus
from vario.machine.readings import Reading

pynvml = pytest.importorskip("pynvml")


def has_gpu():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return pynvml.nvmlDeviceGetCount() > 0


def test_what_is_called_exists_and_constants_are_those_of_the_package():
    assert pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES == gpus.PCIE_SENT
    assert pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES == gpus.PCIE_RECEIVED
    assert pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX == gpus.LINK_SENT
    assert pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX == gpus.LINK_RECEIVED
    assert pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES == gpus.NEW_LINK_SENT
    assert pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES == gpus.NEW_LINK_RECEIVED
    assert pynvml.nvmlClocksThrottleReasonSwPowerCap == gpus.POWER_CAP
    assert pynvml.nvmlClocksThrottleReasonHwSlowdown == gpus.SLOWDOWN
    assert pynvml.nvmlClocksThrottleReasonSwThermalSlowdown == gpus.SOFTWARE_THERMAL
    assert pynvml.nvmlClocksThrottleReasonHwThermalSlowdown == gpus.HARDWARE_THERMAL
    assert pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown == gpus.POWER_BRAKE


@pytest.mark.parametrize(
    ("kind", "member", "value"),
    [
        ("NVML_VALUE_TYPE_DOUBLE", "dVal", 2.0),
        ("NVML_VALUE_TYPE_UNSIGNED_INT", "uiVal", 7),
        ("NVML_VALUE_TYPE_UNSIGNED_LONG", "ulVal", 2**40),
        ("NVML_VALUE_TYPE_UNSIGNED_LONG_LONG", "ullVal", 2**60),
        ("NVML_VALUE_TYPE_SIGNED_LONG_LONG", "sllVal", 2**50),
    ],
)
def test_a_field_is_read_as_its_type_says(kind, member, value):
    field = pynvml.c_nvmlFieldValue_t()
    field.valueType = getattr(pynvml, kind)
    setattr(field.value, member, value)
    assert gpus.field_value(pynvml, field) == value


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_driver_there_are_no_gpus():
    assert gpus.open_gpus(os.environ, 1) is None


@pytest.mark.gpu
def test_a_gpu_is_read():
    found = gpus.open_gpus({}, 1)
    if found is None:
        pytest.skip("there is no GPU")
    first, second = Reading(), Reading()
    found.read(first)
    found.read(second)
    found.close()
    assert {"gpu0/power_watts", "gpu0/sm_clock_mhz", "gpu0/temperature_celsius"} <= second.levels.keys()
    assert 0 < second.levels["gpu0/memory_used_bytes"] <= second.constants["gpu0/memory_total_bytes"]
    assert second.joules["gpu0"] >= first.joules["gpu0"] > 0
    assert {"gpu0/thermal_share", "gpu0/power_cap_share", "gpu0/slowdown_share"} <= second.levels.keys()
