"""Rules about the machine, each beside a healthy twin. Readings come every ten seconds of a made-up time."""

import numpy as np
import pytest
from courses import Course

GIB = 2**30
APART = 10.0


def said(rule, readings, hours=2.0, ranks=1):
    """What a rule says about `readings(seconds)`: plain numbers without their prefix."""
    course = Course([rule], ranks=ranks)
    found = []
    for seconds in np.arange(0, 3600 * hours, APART):
        scalars = {f"machine/{name}": float(value) for name, value in readings(seconds).items()}
        found += course.step_of_ranks([[]] * ranks, [scalars] * ranks, time=1e9 + seconds)
    return found


def gpus(*each):
    """Readings of some GPUs; what is not said of one is usual."""
    usual = {"sm_clock_mhz": 1900, "utilization_percent": 99, "power_watts": 650, "temperature_celsius": 60}
    usual |= {"thermal_share": 0, "slowdown_share": 0, "power_cap_share": 1, "sm_clock_top_mhz": 1980}
    return {f"gpu{n}/{name}": value for n, one in enumerate(each) for name, value in {**usual, **one}.items()}


def test_a_gpu_slowed_by_heat_is_noted_once():
    hot = {"thermal_share": 1.0, "temperature_celsius": 91, "sm_clock_mhz": 1200}
    (alert,) = said("throttled", lambda seconds: gpus({}, hot if seconds > 600 else {}))
    assert alert.target == "machine/gpu1/thermal_share"
    assert alert.severity == "note"
    assert alert.text == "gpu1 is slowed down because of heat (91 °C, 650 W, 1200 MHz)"
    assert alert.step == pytest.approx((600 + 60) / APART, abs=2)


def test_a_power_brake_is_noted():
    (alert,) = said("throttled", lambda seconds: gpus({"slowdown_share": 0.8}), hours=0.2)
    assert "by its power supply" in alert.text


def test_a_gpu_at_its_power_limit_or_hot_for_a_moment_is_healthy():
    brief = {"thermal_share": 1.0}
    assert said("throttled", lambda seconds: gpus({"power_cap_share": 1.0}, brief if seconds % 300 < 40 else {})) == []


def test_a_gpu_slower_than_its_peers_is_noted():
    slow = {"sm_clock_mhz": 1300, "power_watts": 400}
    (alert,) = said("slow_gpu", lambda seconds: gpus({}, {}, slow, {}))
    assert alert.target == "machine/gpu2/sm_clock_mhz"
    assert alert.severity == "note"
    assert alert.text.startswith("gpu2 runs at 1300 MHz, the other GPUs of its host at 1900 MHz")


@pytest.mark.parametrize(
    "other",
    [
        {"sm_clock_mhz": 1300, "utilization_percent": 5},  # it has nothing to do
        {"sm_clock_mhz": 1700},  # GPUs are not all alike
        {"sm_clock_mhz": 1500, "power_watts": 700},  # it has more to do
        {"sm_clock_mhz": 1300, "sm_clock_top_mhz": 1400},  # of another kind
        {"sm_clock_mhz": 1300, "thermal_share": 1.0},  # what `throttled` says
    ],
)
def test_gpus_that_differ_for_a_reason_are_healthy(other):
    assert said("slow_gpu", lambda seconds: gpus({}, other, {}, {})) == []


def test_a_gpu_that_is_alone_has_no_peers():
    assert said("slow_gpu", lambda seconds: gpus({"sm_clock_mhz": 600})) == []


def memory(course, left=50 * GIB):
    noise = np.random.default_rng(0)

    def readings(seconds):
        used = course(seconds) * (1 + abs(noise.normal(0, 0.01)))
        return {"process_private_bytes": used, "memory_available_bytes": left - used}

    return readings


def test_a_leak_is_noted_once_with_what_is_left():
    (alert,) = said("memory_leak", memory(lambda seconds: 4 * GIB + 3 * GIB * seconds / 3600), hours=4)
    assert (alert.target, alert.severity) == ("machine/process_private_bytes", "note")
    assert "grows steadily" in alert.text
    assert "are left last" in alert.text
    assert 3600 <= alert.step * APART < 5400


def test_a_leak_that_soon_ends_the_run_is_noted_sooner():
    found = said("memory_leak", memory(lambda seconds: 4 * GIB + 60 * GIB * seconds / 3600, 50 * GIB), hours=0.7)
    assert len(found) == 1
    assert found[0].step * APART < 2400


@pytest.mark.parametrize(
    "course",
    [
        lambda seconds: 8 * GIB,
        lambda seconds: 2 * GIB + 20 * GIB * (1 - np.exp(-seconds / 1200)),  # a cache that fills
        lambda seconds: 2 * GIB + 5 * GIB * min(seconds, 900) / 900,  # warm-up, then nothing
        lambda seconds: 2 * GIB + 4 * GIB * np.log1p(seconds / 60),  # ever more slowly
        lambda seconds: 4 * GIB + 3 * GIB * (seconds % 1800) / 1800,  # epochs
        lambda seconds: 8 * GIB * (1 + 0.02 * seconds / 3600),  # little of it
    ],
)
def test_memory_that_levels_off_is_healthy(course):
    assert said("memory_leak", memory(course), hours=5) == []


def test_growth_that_the_host_has_room_for_is_healthy():
    assert said("memory_leak", memory(lambda seconds: 4 * GIB + 3 * GIB * seconds / 3600, 2000 * GIB), hours=5) == []


def test_a_disk_that_fills_is_noted_once_before_it_is_full():
    (alert,) = said("disk_full", lambda seconds: {"disk_free_bytes": 400 * GIB * (1 - seconds / 7200)}, hours=1.9)
    assert (alert.target, alert.severity) == ("machine/disk_free_bytes", "note")
    assert 3300 < alert.step * APART < 4200
    assert "at this rate it is full in" in alert.text


def test_a_disk_that_fills_within_minutes_is_noted_in_time():
    found = said("disk_full", lambda seconds: {"disk_free_bytes": 60 * GIB * (1 - seconds / 1200)}, hours=0.3)
    assert len(found) == 1
    assert found[0].step * APART < 600


@pytest.mark.parametrize(
    "free",
    [
        lambda seconds: 400 - 0.01 * seconds / 60,  # logs
        lambda seconds: 100 - 40 * (seconds % 1800 < 300),  # a checkpoint, and the one before it removed
        lambda seconds: 60 - 50 * (seconds > 1800),  # one large file
        lambda seconds: 400 - seconds / 3600 * 30,  # full in half a day
        lambda seconds: 50 + seconds / 3600,  # others clear up
    ],
)
def test_a_disk_with_checkpoints_and_logs_is_healthy(free):
    assert said("disk_full", lambda seconds: {"disk_free_bytes": free(seconds) * GIB}, hours=3) == []


def test_without_readings_the_rules_say_nothing():
    for rule in ("throttled", "slow_gpu", "memory_leak", "disk_full"):
        assert said(rule, lambda seconds: {}, hours=0.5) == []
