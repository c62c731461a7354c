"""The JSON bodies of all answers and events: `openapi` describes them, and the types of the page are made from that.

The types say what functions return. `answers.encode` turns NaN and Inf into null, so every float may be null in JSON.
"""

from vario.web.bodies.charts import Curve, HeatHead, HeatTable, RankCurve, SeriesAnswer, Targets
from vario.web.bodies.comparing import Comparison, Desync, Ranks, SettingPair, Slowest
from vario.web.bodies.events import (
    Bye,
    LiveEvents,
    NewColumns,
    NewCurve,
    NewPoints,
    NewRows,
    Problem,
    Progress,
    Reset,
    VitalValue,
)
from vario.web.bodies.findings import Alert, Alerts, Cause, ChainLink, Change, Changes, Incident
from vario.web.bodies.model import Memory, Model, Module, Parameter, PartOff, Settings
from vario.web.bodies.runs import Pace, Quantity, RunHome, RunList, RunRow, Session

__all__ = [
    "Alert",
    "Alerts",
    "Bye",
    "Cause",
    "ChainLink",
    "Change",
    "Changes",
    "Comparison",
    "Curve",
    "Desync",
    "HeatHead",
    "HeatTable",
    "Incident",
    "LiveEvents",
    "Memory",
    "Model",
    "Module",
    "NewColumns",
    "NewCurve",
    "NewPoints",
    "NewRows",
    "Pace",
    "Parameter",
    "PartOff",
    "Problem",
    "Progress",
    "Quantity",
    "RankCurve",
    "Ranks",
    "Reset",
    "RunHome",
    "RunList",
    "RunRow",
    "SeriesAnswer",
    "Session",
    "SettingPair",
    "Settings",
    "Slowest",
    "Targets",
    "VitalValue",
]
