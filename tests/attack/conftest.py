import sys
from pathlib import Path

# What writes runs serves the tests of other parts too, so it lies above.
sys.path.insert(0, str(Path(__file__).parents[1]))


def pytest_addoption(parser):
    parser.addoption("--least-cases", type=int, default=0, help="fail where fewer hostile cases were run")


def num_cases(config):
    """The hostile cases of all tests that passed, on all workers."""
    reports = config.pluginmanager.get_plugin("terminalreporter").stats.get("passed", [])
    return sum(count for report in reports for name, count in report.user_properties if name == "cases")


def pytest_terminal_summary(terminalreporter, config):
    if num := num_cases(config):
        terminalreporter.write_line(f"{num:,} hostile cases held")


def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        return
    if num_cases(session.config) < session.config.option.least_cases:
        session.exitstatus = 1


def pytest_configure(config):
    # Only a session that was started with this folder has the option.
    if not hasattr(config.option, "least_cases"):
        config.option.least_cases = 0
