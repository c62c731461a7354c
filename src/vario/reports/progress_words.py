"""The text of the progress report, in English and Chinese. Both languages have every entry."""

# ruff: noqa: RUF001 - Chinese has commas and brackets of its own

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from vario.core.text import duration

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

ENGLISH: Mapping[str, str] = {
    # headings of the summary
    "progress": "Progress",
    "loss": "Loss",
    "values": "Training values",
    "evaluation": "Evaluation",
    "time": "Time",
    "others": "Other numbers",
    "notes": "Notes",
    # its lines
    "read": "read",
    "epoch": "epoch",
    "step": "step",
    "state": "state",
    "finished": "finished",
    "not_finished": "not finished",
    "part_of": "{part} of {whole}",
    "current": "current",
    "lowest": "lowest",
    "highest": "highest",
    "mean": "mean",
    "trend": "trend",
    "at_step": "{value} at step {step}",
    "untrusted": "{value} (unreliable)",
    "falling": "falling",
    "rising": "rising",
    "flat": "flat",
    "slope": "{direction}: {slope} per step ({low} to {high}), over steps {first} to {last}",
    "no_trend": "unknown: too few points",
    "no_trend_broken": "none: the run is broken",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "highest_was": "{value} (highest {highest} at step {step})",
    "total_steps": "total steps",
    "total_epochs": "total epochs",
    "not_logged": "not logged",
    "no_loss": "no training loss was logged",
    "last": "last",
    "best": "best",
    "best_checkpoint": "best checkpoint",
    "written": "written",
    "ago": "{moment} ({age} ago)",
    "runtime": "last session",
    "speed": "speed",
    "speed_is": "{seconds} per step, {rate} steps/s ({source})",
    "remaining": "remaining",
    "about": "about {time}",
    # the source of a pace
    "checkpoint_times": "from the times of the last checkpoints",
    "train_runtime": "from train_runtime in the rows",
    "final_row": "mean of the last session, from its final row",
    "event_times": "from the event times",
    "elapsed_time": "from elapsed_time in the rows",
    "iteration_time": "from the iteration times in the log",
    "line_times": "from the times of the lines",
    "progress_bar": "from the clock of the progress bar",
    "row_times": "from the times of the rows",
    # verdicts
    "broken": "Broken: {name} is {value} from step {step} to the end.",
    "shaken": "{name} was {value} at step {step}. {count} rows were not finite; later ones are. "
    "This is normal for steps that a loss scaler skips.",
    "hidden": "The loss in those rows is finite only because the trainer filters NaN and Inf: do not trust it.",
    "between": "It happened after step {previous}.",
    "zero_loss": "The loss has been exactly 0 since step {step}, and no gradient norm was logged: "
    "this may be a filtered NaN.",
    # the plot
    "plot_title": "Training progress",
    "plot_loss": "Training loss",
    "plot_rate": "Learning rate",
    "plot_norm": "Gradient norm (logarithmic)",
    "plot_spread": "Distribution of the loss",
    "plot_step": "step",
    "plot_epoch": "epoch",
    "plot_each": "each row",
    "plot_average": "moving average ({count} rows)",
    "plot_not_finite": "not finite",
    "plot_count": "rows",
    "plot_median": "median {value}",
    "plot_last": "last {value}",
    "plot_cut": "cut off: {count} rows, up to {highest}",
    "plot_compare": "Comparison",
    "plot_shared": "shared by all",
    "plot_broken": "broken from step {step}",
    # comparing
    "compare_loss": "loss",
    "compare_loss_log": "loss (logarithmic)",
    "compare_same": "These are one run at different steps.",
    "compare_until": "Identical up to step {step}, different from step {next} on.",
    "compare_apart": "Different from the first row.",
    "compare_equal": "All rows are identical.",
    "compare_table": "Where they differ",
    "compare_by_epoch": "Compared by epoch, since they share no steps.",
    "compare_no_overlap": "They share neither steps nor epochs.",
    "difference": "difference",
    "change": "change",
}

CHINESE: Mapping[str, str] = {
    "progress": "训练进度",
    "loss": "损失",
    "values": "训练参数",
    "evaluation": "评估",
    "time": "时间",
    "others": "其他数值",
    "notes": "说明",
    "read": "读取",
    "epoch": "当前轮次",
    "step": "当前步骤",
    "state": "状态",
    "finished": "已结束",
    "not_finished": "未结束",
    "part_of": "{part} / {whole}",
    "current": "当前损失",
    "lowest": "最小损失",
    "highest": "最大损失",
    "mean": "平均损失",
    "trend": "损失趋势",
    "at_step": "{value}（步骤 {step}）",
    "untrusted": "{value}（不可信）",
    "falling": "下降",
    "rising": "上升",
    "flat": "持平",
    "slope": "{direction}：每步 {slope}（{low} 至 {high}），步骤 {first} 至 {last}",
    "no_trend": "未知：数据点太少",
    "no_trend_broken": "无：训练已损坏",
    "learning_rate": "学习率",
    "grad_norm": "梯度范数",
    "highest_was": "{value}（最大 {highest}，步骤 {step}）",
    "total_steps": "总训练步数",
    "total_epochs": "训练轮次",
    "not_logged": "未记录",
    "no_loss": "没有记录训练损失",
    "last": "最近",
    "best": "最佳",
    "best_checkpoint": "最佳检查点",
    "written": "检查点时间",
    "ago": "{moment}（{age}前）",
    "runtime": "上次运行",
    "speed": "速度",
    "speed_is": "每步 {seconds}，每秒 {rate} 步（{source}）",
    "remaining": "剩余时间",
    "about": "约 {time}",
    "checkpoint_times": "依据最近检查点的时间",
    "train_runtime": "依据各行的 train_runtime",
    "final_row": "上次运行的平均值，依据其最后一行",
    "event_times": "依据事件的时间",
    "elapsed_time": "依据各行的 elapsed_time",
    "iteration_time": "依据日志中的迭代时间",
    "line_times": "依据各行的时间戳",
    "progress_bar": "依据进度条的时间",
    "row_times": "依据各行的时间",
    "broken": "已损坏：{name} 在步骤 {step} 变为 {value}，直到最后都没有恢复。",
    "shaken": "{name} 在步骤 {step} 为 {value}；共 {count} 行异常，之后恢复正常。被损失缩放器跳过的步骤就是这样。",
    "hidden": "这些行的损失看起来正常，但训练器会滤掉其中的 NaN 和 Inf：不要相信它。",
    "between": "发生在步骤 {previous} 之后。",
    "zero_loss": "从步骤 {step} 起损失恰好为 0，又没有记录梯度范数：被滤掉的 NaN 就是这样。",
    "plot_title": "训练进度",
    "plot_loss": "训练损失曲线",
    "plot_rate": "学习率变化",
    "plot_norm": "梯度范数（对数）",
    "plot_spread": "损失值分布",
    "plot_step": "步骤",
    "plot_epoch": "轮次",
    "plot_each": "每一行",
    "plot_average": "移动平均（{count} 行）",
    "plot_not_finite": "非有限值",
    "plot_count": "行数",
    "plot_median": "中位数 {value}",
    "plot_last": "最近 {value}",
    "plot_cut": "其他 {count} 行，最大 {highest}",
    "plot_compare": "比较",
    "plot_shared": "共同部分",
    "plot_broken": "从步骤 {step} 起损坏",
    "compare_loss": "损失",
    "compare_loss_log": "损失（对数）",
    "compare_same": "同一次训练：这是同一段历史的不同步骤。",
    "compare_until": "到步骤 {step} 为止相同，从步骤 {next} 起不同。",
    "compare_apart": "从第一行起就不同。",
    "compare_equal": "所有行都相同。",
    "compare_table": "不同之处",
    "compare_by_epoch": "按轮次比较：它们没有共同的步骤。",
    "compare_no_overlap": "它们没有共同的步骤，也没有共同的轮次。",
    "difference": "差",
    "change": "变化",
}

ENGLISH_NOTES: Mapping[str, str] = {
    "steps_went_back": "The job restarted: step {from} is followed by step {to}. The later rows are shown.",
    "steps_went_back_often": "The steps go back {count} times. The last row of each step is shown.",
    "rows_without_step": "{count} rows have no step and are skipped.",
    "torn_lines": "{count} lines are not valid JSON and are skipped.",
    "ended_early": "Training ended at step {step} of {max_steps}.",
    "unfinished_checkpoints": "Skipped because they have no state yet: checkpoint {steps}.",
    "unreadable_checkpoint": "{checkpoint} was skipped: {error}",
    "misnamed_checkpoint": "{checkpoint} was skipped: its state is from step {step}.",
    "unreadable_root": "The state in the folder itself was skipped: {error}",
    "stale_checkpoints": "Checkpoint {steps} is left over from an earlier run: the latest run is at step {live_step}.",
    "stale_root": "The state in the folder itself (step {step}) is left over from an earlier run: the latest "
    "run is at step {live_step}.",
    "older_run": "{path} belongs to an older run, which was at step {step}, and is not shown.",
    "others_found": "{count} more logs found, older or from other runs: {places}.",
    "joined": "Completed from {file}, which continues to step {step}.",
    "steps_counted": "This log has no steps: its rows are counted instead.",
    "steps_are_samples": "This log counts samples, not steps.",
    "loss_found": "The script logged no loss: this is {name}, found by vario.",
    "loss_left_out": "{count} rows have no loss. Megatron omits it if it is 0 or NaN.",
    "run_crashed": "The run crashed. {error}",
    "run_interrupted": "The run was interrupted. {error}",
    "run_stalled": "The run should be active but writes nothing. {error}",
    "no_display": "No display found: the loss is plotted in the terminal. Use --save-plot PATH to write a picture.",
    "saved": "written: {path}",
    "same_as": "{name} is the beginning of {longer}.",
    "equal_to": "{name} has the same history as {longer}.",
}

CHINESE_NOTES: Mapping[str, str] = {
    "steps_went_back": "训练曾重新启动：步骤 {from} 之后又从步骤 {to} 开始。显示的是后来的行。",
    "steps_went_back_often": "步骤有 {count} 次倒退；每个步骤显示最后一行。",
    "rows_without_step": "{count} 行没有步骤，已略去。",
    "torn_lines": "{count} 行不是 JSON，已略去。",
    "ended_early": "训练在步骤 {step} 结束，总步数为 {max_steps}。",
    "unfinished_checkpoints": "已跳过还没有状态文件的检查点：{steps}。",
    "unreadable_checkpoint": "已跳过 {checkpoint}：{error}",
    "misnamed_checkpoint": "已跳过 {checkpoint}：其状态属于步骤 {step}。",
    "unreadable_root": "已跳过目录本身的状态文件：{error}",
    "stale_checkpoints": "检查点 {steps} 是以前的训练留下的：最近写入的训练在步骤 {live_step}。",
    "stale_root": "目录本身的状态文件（步骤 {step}）是以前的训练留下的：最近写入的训练在步骤 {live_step}。",
    "older_run": "{path} 较旧，属于另一次训练（步骤 {step}），没有显示。",
    "others_found": "那里还有 {count} 个日志，较旧或属于其他训练：{places}。",
    "joined": "由 {file} 补充，它到步骤 {step}。",
    "steps_counted": "此日志没有步骤：按行计数。",
    "steps_are_samples": "这里的步骤是样本数：此日志就是这样计数的。",
    "loss_found": "训练没有记录损失：此处为 vario 的数值（{name}）。",
    "loss_left_out": "{count} 行没有损失。损失为 0 或不是数值时，Megatron 会略去它。",
    "run_crashed": "训练已崩溃。{error}",
    "run_interrupted": "训练已中止。{error}",
    "run_stalled": "训练声称正在运行，但没有写入任何内容。{error}",
    "no_display": "这里没有显示器，损失画在终端里。用 --save-plot 路径 保存图片。",
    "saved": "已保存：{path}",
    "same_as": "{name} 是 {longer} 的开头。",
    "equal_to": "{name} 和 {longer} 历史相同。",
}

WORDS: Mapping[Language, Mapping[str, str]] = {"en": ENGLISH, "zh": CHINESE}
NOTES: Mapping[Language, Mapping[str, str]] = {"en": ENGLISH_NOTES, "zh": CHINESE_NOTES}


def say(language: Language, key: str, **values: Any) -> str:
    """Return a text in a language."""
    return WORDS[language][key].format(**values)


def say_note(language: Language, kind: str, about: Mapping[str, Any]) -> str:
    """Return a note in a language; one without a text is shown by its name."""
    if kind not in NOTES[language]:
        return f"{kind}: {', '.join(f'{name} {value}' for name, value in about.items())}"
    return NOTES[language][kind].format(**about).strip()


def say_duration(language: Language, seconds: float) -> str:
    """Format a duration in a language."""
    if language == "en":
        return duration(seconds) if seconds < 86400 else f"{seconds / 86400:.1f} days"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} 毫秒"
    if seconds < 60:
        return f"{seconds:.3g} 秒"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} 分 {rest:02d} 秒"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} 小时 {minutes:02d} 分" if hours < 24 else f"{seconds / 86400:.1f} 天"


def language_of(locale: Mapping[str, str]) -> Language:
    """Return the language of an environment's locale: Chinese, or English for all others."""
    named = next((locale[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if locale.get(name)), "")
    return "zh" if named.lower().startswith("zh") else "en"
