"""What a report says of the hosts and GPUs of a run, from plain numbers as a training records them."""

import pytest

import vario
from vario.reports.machine_use import machine_facts, read_machine_use
from vario.runs.run import open_run


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(steps, name="run", **options):
    """A run whose steps have these readings."""
    with vario.start(name, **options) as run:
        for numbers in steps:
            run.log({"loss": 1.0, **{f"machine/{number}": value for number, value in numbers.items()}})
    return run.path


def facts(path):
    return dict(machine_facts(read_machine_use(open_run(path))))


def test_a_host_without_gpus():
    path = write(
        [
            {"cpu_percent": 20, "memory_available_bytes": 8 * 2**30, "disk_free_bytes": 2**40, "memory_total_bytes": 1},
            {},
            {"cpu_percent": 60, "memory_available_bytes": 4 * 2**30, "memory_available_bytes_min": 3 * 2**30},
        ]
    )
    assert facts(path) == {"host": "CPU 40 %, at least 3.0 GiB of memory available, 1.0 TiB of disk free"}


def gpu(number, **values):
    return {f"gpu{number}/{name}": value for name, value in values.items()}


def test_gpus_and_what_they_used():
    usual = {"utilization_percent": 90, "power_watts": 600, "temperature_celsius": 60, "thermal_share": 0.0}
    hot = {**usual, "power_watts": 500, "temperature_celsius": 80, "temperature_celsius_max": 92, "thermal_share": 1.0}
    energy = {"energy_watt_hours": 1500.0, "energy_cost": 0.45, "energy_carbon_grams": 570.0}
    path = write([{**gpu(0, **usual), **gpu(1, **usual)}, {**gpu(0, **usual), **gpu(1, **hot), **energy}])
    assert facts(path) == {
        "GPUs": "2: 90 % busy, 575 W each, up to 92 °C, throttled 50 % of the time",
        "energy": "1.5 kWh, cost 0.45, 0.57 kg CO2 (GPUs)",
    }


def test_sessions_of_a_run_add_up_their_energy():
    write([gpu(0, power_watts=500) | {"energy_watt_hours": used} for used in (10.0, 25.0)])
    path = write([gpu(0, power_watts=500) | {"energy_watt_hours": used} for used in (5.0, 12.0)], resume=True)
    assert facts(path)["energy"] == "37 Wh (GPUs)"


def test_a_run_without_readings_has_no_such_lines():
    assert read_machine_use(open_run(write([{}, {"process_cpu_percent": 90}]))) is None
