"""Rates, means and energy of made-up readings, with a made-up clock."""

import pytest

from vario.machine.machine import MOST_ROWS, Machine
from vario.machine.readings import Energy, Gathered, Rates, Reading

OPTIONS = {"seconds": 1.0}


def machine(readings, **options):
    """A machine whose looks find these readings, one after the other."""
    left = iter(readings)

    def read(reading):
        for name, value in next(left).items():
            getattr(reading, name).update(value)

    return Machine([read], {**OPTIONS, **options})


def test_totals_become_rates_and_those_set_back_are_left_out():
    rates = Rates()
    assert rates.follow({"a": 100.0, "b": 5.0}, 10.0) == {}
    assert rates.follow({"a": 300.0, "b": 4.0, "c": 1.0}, 12.0) == {"a": 100.0}
    assert rates.follow({"a": 300.0, "b": 4.0, "c": 3.0}, 13.0) == {"a": 0.0, "b": 0.0, "c": 2.0}
    assert rates.follow({"a": 400.0}, 13.0) == {}


def test_several_readings_become_their_mean_and_extreme():
    gathered = Gathered()
    for watts, free, hot in ((300, 50, 0), (600, 20, 1), (300, 80, 0)):
        gathered.add({"power_watts": watts, "memory_available_bytes": free, "thermal_share": hot})
    assert gathered.take() == {
        "power_watts": 400,
        "power_watts_max": 600,
        "memory_available_bytes": 50,
        "memory_available_bytes_min": 20,
        "thermal_share": pytest.approx(1 / 3),
    }
    gathered.add({"power_watts": 500})
    assert gathered.take() == {"power_watts": 500}
    assert gathered.take() == {}


def test_energy_is_counted_by_the_device_or_else_follows_from_its_power():
    counted, estimated = Energy(), Energy()
    for second in range(0, 7201, 600):
        counted.follow(Reading(watts={"gpu0": 1.0}, joules={"gpu0": 5e6 + 500 * second}), second)
        estimated.follow(Reading(watts={"gpu0": 500.0}), second)
    assert counted.watt_hours == pytest.approx(1000)
    assert estimated.watt_hours == pytest.approx(1000)
    counted.follow(Reading(watts={"gpu0": 300.0}, joules={"gpu0": 0.0}), 7260)  # the driver was loaded again
    assert 1000 < counted.watt_hours < 1010


def test_numbers_of_a_step_are_those_read_since_the_last_one():
    seen = machine([{"levels": {"a": 1.0}}, {"levels": {"a": 3.0}}, {"levels": {"a": 8.0}}])
    assert seen.take(0.0) == {}
    seen.look(0.0)
    seen.look(1.0)
    assert seen.take(1.5) == {"machine/a": 2.0, "machine/a_max": 3.0}
    assert seen.take(1.6) == {}
    seen.look(2.0)
    assert seen.take(2.5) == {"machine/a": 8.0}


def test_what_never_changes_is_recorded_once():
    seen = machine([{"constants": {"memory_total_bytes": 5.0}, "levels": {"a": 1.0}}] * 2)
    seen.look(0.0)
    assert seen.take(0.0) == {"machine/memory_total_bytes": 5.0, "machine/a": 1.0}
    seen.look(1.0)
    assert seen.take(1.0) == {"machine/a": 1.0}


def test_use_of_the_cpu_is_at_most_all_of_it():
    seen = machine([{"totals": {"cpu_percent": total}} for total in (0.0, 101.5)])
    seen.look(0.0)
    seen.look(1.0)
    assert seen.take(1.0) == {"machine/cpu_percent": 100.0}


def test_energy_has_a_cost_where_prices_are_given():
    readings = [{"watts": {"gpu0": 1000.0}}] * 2
    for prices, more in (({}, {}), ({"price": 0.3, "carbon": 400.0}, {"cost": 0.3, "carbon_grams": 400.0})):
        seen = machine(readings, **prices)
        seen.look(0.0)
        seen.look(3600.0)
        expected = {"machine/energy_watt_hours": 1000.0}
        expected |= {f"machine/energy_{name}": value for name, value in more.items()}
        assert seen.take(3600.0) == pytest.approx(expected)


@pytest.mark.parametrize("hours", [1, 10])
def test_a_long_run_has_few_rows_and_their_means_leave_nothing_out(hours):
    looks = 3600 * hours
    seen = machine({"levels": {"a": float(second)}} for second in range(looks))
    rows = []
    for second in range(looks):
        seen.look(float(second))
        rows.append(seen.take(float(second)))
    recorded = [row for row in rows if row]
    assert len(recorded) <= MOST_ROWS * (1.0 if hours == 1 else 3.4)
    assert max(row.get("machine/a_max", 0.0) for row in recorded) >= looks - 12 or hours == 1
