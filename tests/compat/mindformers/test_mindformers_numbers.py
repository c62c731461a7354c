"""Every documented scalar of a torch training, in TensorBoard, in the log and in the run, against numpy in float64."""

import json

import numpy as np
import pytest
import torch
from monitored import Board, content, norm, said, train
from torch import nn

import vario
from vario.compat.mindformers import load_yaml
from vario.compat.mindformers.flops import flops_per_sample

MODEL = {
    "hidden_size": 64,
    "num_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
    "seq_length": 16,
    "hidden_act": "silu",
}
EXPERTS = {
    "num_key_value_heads": 2,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
}
TWINS = ("learning-rate", "batch-size", "loss", "grad-norm", "iteration-time", "throughput")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    with pytest.MonkeyPatch.context() as patch, said() as lines:
        patch.chdir(folder)
        config = load_yaml(
            content(
                folder,
                {"target": ["layers.1", "head"]},
                loss_monitor={"dataset_size": 2, "origin_epochs": 3},
                seed=7,
                model={"model_config": MODEL},
            ),
            name="run",
        )
        _, seen = train(config, micro_steps=2)
    return folder, seen, list(lines)


@pytest.fixture(scope="module")
def board(trained):
    return Board(trained[0])


@pytest.fixture(scope="module")
def run(trained):
    return vario.open_run(trained[0] / "vario_runs" / "run")


def close(found, expected):
    assert list(found) == list(range(1, len(expected) + 1))
    np.testing.assert_allclose(list(found.values()), expected, rtol=2e-6)


def test_loss_rate_and_batch_size(trained, board):
    seen = trained[1]
    close(board.curve("loss"), [np.mean(step["losses"]) for step in seen])
    close(board.curve("learning-rate"), [0.01] * len(seen))
    close(board.curve("batch-size"), [10.0] * len(seen))


def test_the_gradient_norm_is_that_before_clipping(trained, board):
    close(board.curve("grad-norm"), [norm(step["gradients"].values()) for step in trained[1]])
    close(board.curve("device_local_norm"), [norm(step["gradients"].values()) for step in trained[1]])


@pytest.mark.parametrize("name", ["layers.1.weight", "layers.1.bias", "head.weight"])
def test_norms_of_chosen_parameters(trained, board, name):
    seen = trained[1]
    close(board.curve(f"local_norm/{name}"), [norm([step["gradients"][name]]) for step in seen])
    close(board.curve(f"adam_m_norm/{name}"), [norm([step["moments"][name, "exp_avg"]]) for step in seen])
    close(board.curve(f"adam_v_norm/{name}"), [norm([step["moments"][name, "exp_avg_sq"]]) for step in seen])


def test_target_chooses_parameters_and_does_not_split_numbers(board):
    named = {tag.partition("/")[2] for tag in board.tags if tag.startswith(("local_norm/", "adam_"))}
    assert named == {"layers.1.weight", "layers.1.bias", "head.weight", "head.bias"}


def test_the_weight_norm_is_over_all_parameters_whatever_the_target(trained, board):
    close(board.curve("weight_norm"), [norm(step["weights"].values()) for step in trained[1]])


def test_local_losses_are_the_mean_and_the_sum_over_micro_steps(trained, board):
    close(board.curve("local_loss"), [np.mean(step["losses"]) for step in trained[1]])
    close(board.curve("device_accum_local_loss"), [np.sum(step["losses"]) for step in trained[1]])


def test_the_log_has_the_loss_of_each_micro_step_in_order(trained):
    lines = [line for line in trained[2] if " micro_local_loss: " in line]
    found = [float(line.rpartition(" ")[2]) for line in lines]
    np.testing.assert_allclose(found, [loss for step in trained[1] for loss in step["losses"]], rtol=2e-6)


def test_times_and_throughputs_agree(board, run):
    seconds = run.series("step_seconds", "scalar").values
    close(board.curve("iteration-time"), seconds * 1e3)
    close(board.curve("throughput"), 10 / seconds)
    close(board.curve("B-samples-per-day"), 10 / seconds * 86400 / 1e9)
    close(board.curve("throughput_linearity"), 10 / seconds / 100)
    close(board.curve("model-flops-throughput-per-npu"), flops_per_sample(MODEL) * 10 / seconds / 1e12)


@pytest.mark.parametrize("tag", TWINS)
def test_twins_are_drawn_against_the_samples_so_far(board, tag):
    twin = board.curve(f"{tag}-vs-samples")
    assert list(twin) == [10, 20, 30, 40]
    assert list(twin.values()) == list(board.curve(tag).values())


def test_the_last_two_have_no_twin(board):
    twins = {tag.removesuffix("-vs-samples") for tag in board.tags if tag.endswith("-vs-samples")}
    assert twins == set(TWINS)


def test_there_is_one_event_file(trained, board):
    files = [path for path in board.folder.rglob("*") if path.is_file()]
    assert len(files) == 1
    assert files[0].name.startswith("events.")


@pytest.mark.parametrize(
    "tag", ["throughput", "batch-size", "device_local_norm", "weight_norm", "throughput_linearity", "grad-norm"]
)
def test_the_run_has_the_same_numbers(board, run, tag):
    close(board.curve(tag), run.series(tag, "scalar").values)


def test_the_run_has_the_rows_too(board, run):
    close(board.curve("local_norm/head.weight"), run.series("head.weight", "gradient_accumulated", "norm").values)
    close(board.curve("adam_m_norm/head.weight"), run.series("head.weight:exp_avg", "moment", "norm").values)


def test_the_log_has_every_number_progress_and_the_time_left(trained, board):
    lines = trained[2]
    first = [line for line in lines if "loss:[" in line]
    assert len(first) == 4
    assert first[0].startswith("{ Epoch:[  1/  3], step:[    1/    2], loss:[")
    assert first[3].startswith("{ Epoch:[  2/  3], step:[    2/    2], loss:[")
    for part in ("per_step_time: ", "ms, lr: 1.000000e-02, overflow cond: False", "global_norm: [", "_per_npu: "):
        assert part in first[2]
    progress = [line for line in lines if "samples/s/p" in line]
    assert [line.split("%")[0].strip() for line in progress] == ["16.7", "33.3", "50.0", "66.7"]
    assert all(line.count("█") == int(50 * step / 6) for step, line in enumerate(progress, 1))
    assert progress[0].endswith(" }")
    assert any(line.startswith("Epoch:[  2/  3], step:[    1/    2] local_norm/head.weight: ") for line in lines)
    for tag in board.tags:
        if not tag.startswith(("max", "expert")) and "-" not in tag and tag not in ("loss", "throughput"):
            assert sum(f" {tag}: " in line for line in lines) == 4, tag


def test_the_mean_of_the_epoch_stands_beside_the_loss(trained):
    losses = [np.mean(step["losses"]) for step in trained[1]]
    second = next(line for line in trained[2] if "step:[    2/    2], loss:[" in line)
    assert f"loss:[{losses[1]:.6f}/{np.mean(losses[:2]):.6f}]" in second


def test_dumped_lines_have_every_step(trained):
    lines = (trained[0] / "dump" / "rank_0" / "values.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    for found, seen in zip(steps, trained[1], strict=True):
        assert found["local_norm"]["head.bias"] == pytest.approx(norm([seen["gradients"]["head.bias"]]), rel=1e-5)
        assert found["device_accum_local_loss"] == pytest.approx(sum(seen["losses"]), rel=1e-6)


def test_the_text_page_has_every_entry_of_the_configuration(board):
    texts = board.texts
    assert set(texts) == {"monitor_config", "tensorboard", "callbacks", "seed", "model"}
    assert texts["seed"] == "7"
    assert json.loads(texts["tensorboard"])["tensorboard_queue_size"] == 10
    assert json.loads(texts["monitor_config"])["step_interval"] == 1
    assert json.loads(texts["callbacks"])[0]["type"] == "MFLossMonitor"


def test_entries_that_mean_nothing_are_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    extra = {
        "resume_training": False,
        "ignore_data_skip": True,
        "load_checkpoint": "",
        "load_ckpt_format": "x",
        "profile": False,
        "profile_level": 1,
        "do_eval": True,
        "eval_step_interval": 5,
        "rank_id": 3,
        "lr_scale": True,
        "lr_scale_factor": 4,
    }
    train(load_yaml(content(tmp_path, **extra)), steps=1)
    texts = Board(tmp_path).texts
    assert {"do_eval", "eval_step_interval", "lr_scale_factor", "profile", "load_checkpoint"} <= set(texts)
    assert not {"ignore_data_skip", "load_ckpt_format", "profile_level", "rank_id"} & set(texts)


def test_the_loss_scale_is_shown_and_norms_are_free_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    _, seen = train(load_yaml(content(tmp_path)), scaler=scaler)
    found = Board(tmp_path)
    close(found.curve("loss-scale"), [1024.0, 1024.0, 2048.0, 2048.0])
    close(found.curve("grad-norm"), [norm(step["gradients"].values()) for step in seen])
    close(found.curve("device_local_norm"), [norm(step["gradients"].values()) for step in seen])


def test_what_is_not_asked_for_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = content(tmp_path, board={"log_loss_scale_to_tensorboard": False, "log_timers_to_tensorboard": False})
    plain["monitor_config"] = {"monitor_on": False, "local_norm_format": "tensorboard"}
    train(load_yaml(plain))
    tags = {tag for tag in Board(tmp_path).tags if not tag.endswith("-vs-samples")}
    assert tags == {"learning-rate", "batch-size", "loss", "grad-norm"}
    assert not (tmp_path / "dump").exists()


def test_invert_chooses_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(load_yaml(content(tmp_path, {"target": ["layers"], "invert": True})), steps=1)
    named = {tag.partition("/")[2] for tag in Board(tmp_path).tags if tag.startswith("local_norm/")}
    assert named == {"head.weight", "head.bias"}


def test_an_interval_saves_the_work_and_not_only_the_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_yaml(content(tmp_path, {"step_interval": 3}), sinks=["store", "in_memory"], name="run")
    monitor, _ = train(config, steps=7)
    board = Board(tmp_path)
    assert board.steps("local_norm/head.weight") == board.steps("weight_norm") == board.steps("local_loss") == [3, 6]
    assert board.steps("loss") == list(range(1, 8))
    reduced = {frame.quantity: set() for record in monitor.sinks["in_memory"].records for frame in record.frames}
    for record in monitor.sinks["in_memory"].records:
        for frame in record.frames:
            reduced[frame.quantity].add(record.step + 1)
    assert reduced["gradient_accumulated"] == reduced["moment"] == reduced["weight"] == {3, 6}


def test_per_print_times_first_reports_at_that_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(load_yaml(content(tmp_path, loss_monitor={"per_print_times": 3})), steps=7)
    assert Board(tmp_path).steps("loss") == [3, 6]


def test_attention_logits_and_stable_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.out = nn.Linear(8, 4)

        def forward(self, rows):
            return self.out(self.attention(rows, rows, rows, need_weights=False)[0])

    torch.manual_seed(0)
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = {"max_attention_logit_format": "tensorboard"}
    monitor["stable_rank_config"] = {"format": "tensorboard", "step_interval": 2, "target": ["out"]}
    batch = torch.randn(2, 5, 8)
    projection = model.attention.in_proj_weight.detach().double().numpy().copy()
    bias = model.attention.in_proj_bias.detach().double().numpy().copy()
    with vario.watch(model, optimizer, config=load_yaml(content(tmp_path, monitor))):
        for _ in range(2):
            weight = model.out.weight.detach().double().numpy().copy()
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = batch.double().numpy()
    query, key = ((rows @ projection[at : at + 8].T + bias[at : at + 8]).reshape(2, 5, 2, 4) for at in (0, 8))
    logits = np.einsum("bqhd,bkhd->bhqk", query, key) / 2
    board = Board(tmp_path)
    [tag] = [tag for tag in board.tags if tag.startswith("max_attention_logit/att")]
    assert board.curve(tag)[1] == pytest.approx(logits.max(), rel=1e-5)
    assert board.curve("max_attention_logit/max") == board.curve("max_attention_logit/mean") == board.curve(tag)
    values = np.linalg.svd(weight, compute_uv=False)
    assert board.steps("weight_stable_rank/out.weight") == [2]
    stable_rank = (values**2).sum() / values[0] ** 2
    assert board.curve("weight_stable_rank/out.weight")[2] == pytest.approx(stable_rank, rel=1e-4)
    assert board.curve("weight_eigenvalue/out.weight")[2] == pytest.approx(values[0] ** 2, rel=1e-4)


def test_losses_are_bit_identical_with_and_without_the_monitors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, watched = train(load_yaml(content(tmp_path)), steps=5)
    _, bare = train(None, steps=5, enabled=False)
    assert [step["losses"] for step in watched] == [step["losses"] for step in bare]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MODEL, 6 * 16 * (2 * (4 * 64 * 64 + 16 * 64 + 3 * 64 * 128) + 64 * 100)),
        ({**MODEL, "hidden_act": "gelu"}, 6 * 16 * (2 * (4 * 64 * 64 + 16 * 64 + 2 * 64 * 128) + 64 * 100)),
        ({**MODEL, "num_key_value_heads": 2}, 6 * 16 * (2 * (3 * 64 * 64 + 16 * 64 + 3 * 64 * 128) + 64 * 100)),
        ({**MODEL, **EXPERTS}, 53673984 / 8),  # as mindformers 2.1.0 counts for a batch of 8
        ({**MODEL, "kv_lora_rank": 8}, None),
        ({"hidden_size": 64}, None),
        (None, None),
    ],
)
def test_operations_of_a_transformer(config, expected):
    assert flops_per_sample(config) == expected
