"""The JSON bodies of all responses and events: `openapi` describes them, and the frontend's types are generated from
it.

The types describe what functions return. `answers.encode` turns NaN and Inf into null, so every float may be null in
JSON.
"""

from vario.web.bodies.attachments import AttachedTable, Attachment, Attachments
from vario.web.bodies.charts import Curve, HeatHead, HeatTable, RankCurve, SeriesAnswer, Targets
from vario.web.bodies.comparing import Comparison, Desync, Ranks, SettingPair
from vario.web.bodies.effects import EffectRow, SettingEffect, SettingEffects, SettingMean
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
from vario.web.bodies.model import Memory, Model, Module, NotOffered, Parameter, PartOff, RunOrigin, Settings
from vario.web.bodies.overlay import ChartArrangement, OverlayChart, OverlayLine, Overlays, StoredCharts
from vario.web.bodies.precision import Channels, DistributionPicture, Precision
from vario.web.bodies.runs import Noted, Pace, Quantity, RunHome, RunList, RunRow, Session, SeverityCounts
from vario.web.bodies.table import KnownColumn, KnownColumns, RunTable, TableColumn, TableGroup, TableRow

__all__ = [
    "Alert",
    "Alerts",
    "AttachedTable",
    "Attachment",
    "Attachments",
    "Bye",
    "Cause",
    "ChainLink",
    "Change",
    "Changes",
    "Channels",
    "ChartArrangement",
    "Comparison",
    "Curve",
    "Desync",
    "DistributionPicture",
    "EffectRow",
    "HeatHead",
    "HeatTable",
    "Incident",
    "KnownColumn",
    "KnownColumns",
    "LiveEvents",
    "Memory",
    "Model",
    "Module",
    "NewColumns",
    "NewCurve",
    "NewPoints",
    "NewRows",
    "NotOffered",
    "Noted",
    "OverlayChart",
    "OverlayLine",
    "Overlays",
    "Pace",
    "Parameter",
    "PartOff",
    "Precision",
    "Problem",
    "Progress",
    "Quantity",
    "RankCurve",
    "Ranks",
    "Reset",
    "RunHome",
    "RunList",
    "RunOrigin",
    "RunRow",
    "RunTable",
    "SeriesAnswer",
    "Session",
    "SettingEffect",
    "SettingEffects",
    "SettingMean",
    "SettingPair",
    "Settings",
    "SeverityCounts",
    "StoredCharts",
    "TableColumn",
    "TableGroup",
    "TableRow",
    "Targets",
    "VitalValue",
]
