"""The TEXT page: every entry of a training configuration, one text each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from vario.compat.mindformers.settings import Settings

NEVER = frozenset(
    (
        *("adapter_id", "enable_mindio_ttp_save_ckpt", "exclude_cann_cpu", "infer_precision_sync", "local_rank"),
        *("rank_id", "postprocess_use_numpy", "train_precision_sync", "processor", "input_data", "predict_batch_size"),
        *("auto_tune", "autotune_per_step", "save_file", "filepath_prefix"),
    )
)
"""Entries that are not about training."""

ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "ignore_data_skip": ("resume_training",),
    "data_skip_steps": ("resume_training", "!ignore_data_skip"),
    "load_ckpt_format": ("load_checkpoint",),
    "auto_trans_ckpt": ("load_checkpoint",),
    "load_ckpt_async": ("load_checkpoint",),
    "transform_process_num": ("load_checkpoint", "auto_trans_ckpt"),
    "src_strategy_path_or_dir": ("load_checkpoint", "auto_trans_ckpt"),
    "init_start_profile": ("profile",),
    "lr_scale_factor": ("lr_scale",),
}
"""Entries that mean nothing unless others are set; `!`: unless it is not."""
FAMILIES = (("profile_", "profile"), ("eval_", "do_eval"))
"""Beginnings of names of entries, and the entry that turns them on."""


def entries(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each entry, with the settings in effect where defaults were filled in."""
    content = dict(settings.content)
    if "monitor_config" in content:
        content["monitor_config"] = _plain(asdict(settings.monitor))
    if settings.tensorboard is not None:
        content["tensorboard"] = asdict(settings.tensorboard)
    for name, value in content.items():
        if _is_shown(str(name), content):
            yield str(name), as_text(value)


def as_text(value: Any) -> str:
    """Return a plain value as it is, and a table or list as indented JSON, which Markdown shows as code."""
    if not isinstance(value, (Mapping, list, tuple)):
        return str(value)
    lines = json.dumps(_plain(value), indent=2, ensure_ascii=False, default=str).splitlines()
    return "\n".join(f"    {line}" for line in lines)


def _is_shown(name: str, content: Mapping[str, Any]) -> bool:
    if name in NEVER:
        return False
    needs = list(ONLY_WITH.get(name, ()))
    needs += [switch for beginning, switch in FAMILIES if name.startswith(beginning)]
    return all(bool(content.get(need.removeprefix("!"))) != need.startswith("!") for need in needs)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return sorted(value) if isinstance(value, frozenset) else value
