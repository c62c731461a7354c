"""Memory of recurrent layers, and of models whose shapes depend on values: predicted, and measured on a GPU.

    python bench/memory_recurrent.py                  predict every case; compare with the kept measurements of an H200
    python bench/memory_recurrent.py --measure FILE   on a machine with a GPU: three steps of each case, append to FILE
    python bench/memory_recurrent.py --sizes          there too: what cuDNN asks for, call by call

Every case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

MEASURED = Path(__file__).parent / "memory_recurrent_h200.jsonl"
MIB = 1 << 20
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}

RECURRENT: dict[str, dict[str, Any]] = {
    "lstm-lm": {"mode": "LSTM", "vocab": 10000, "i": 650, "h": 650, "layers": 2, "dropout": 0.5, "t": 128, "b": 64},
    "lstm-1024-speech": {"mode": "LSTM", "i": 80, "h": 1024, "t": 512, "b": 32},
    "bilstm3-mixed": {"mode": "LSTM", "i": 240, "h": 512, "layers": 3, "bi": True, "dropout": 0.1, "t": 400, "b": 32,
                      "precision": "bf16-mixed"},
    "gru2-batch-first": {"mode": "GRU", "vocab": 8000, "i": 512, "h": 768, "layers": 2, "bf": True, "t": 200, "b": 48},
    "bigru-2048-bf16": {"mode": "GRU", "i": 512, "h": 2048, "bi": True, "t": 100, "b": 32, "precision": "bf16"},
    "rnn-tanh2": {"mode": "RNN", "i": 256, "h": 512, "layers": 2, "t": 256, "b": 64},
    "lstm-proj": {"mode": "LSTM", "i": 512, "h": 1024, "layers": 2, "proj": 256, "t": 200, "b": 32},
    "bilstm-packed": {"mode": "LSTM", "vocab": 20000, "i": 300, "h": 512, "bi": True, "bf": True, "t": 256, "b": 64,
                      "packed": "some"},
    "bilstm-packed-full": {"mode": "LSTM", "vocab": 20000, "i": 300, "h": 512, "bi": True, "bf": True, "t": 256,
                           "b": 64, "packed": "full"},
    "gru-packed-mixed": {"mode": "GRU", "vocab": 20000, "i": 256, "h": 384, "layers": 2, "dropout": 0.2, "bf": True,
                         "t": 128, "b": 96, "packed": "some", "precision": "bf16-mixed"},
    "lstm-fp16-persist": {"mode": "LSTM", "i": 512, "h": 512, "t": 256, "b": 64, "precision": "fp16-mixed"},
    "lstm-odd": {"mode": "LSTM", "i": 33, "h": 257, "layers": 3, "t": 77, "b": 13},
    "lstm-nobias": {"mode": "LSTM", "i": 300, "h": 1000, "layers": 2, "bias": False, "t": 150, "b": 40},
    "lstm-big": {"mode": "LSTM", "vocab": 32000, "i": 1024, "h": 2048, "layers": 2, "t": 256, "b": 64},
    "rnn-relu-bi": {"mode": "RNN", "i": 128, "h": 300, "bi": True, "nonlinearity": "relu", "t": 300, "b": 24},
    "seq2seq-gru": {"kind": "seq2seq", "vocab": 16000, "i": 512, "h": 1024, "layers": 2, "t": 64, "b": 64},
    "lstm-cell": {"kind": "cell", "mode": "LSTM", "i": 256, "h": 512, "t": 64, "b": 64},
    "gru-cell": {"kind": "cell", "mode": "GRU", "i": 256, "h": 512, "t": 64, "b": 64},
    "rnn-cell": {"kind": "cell", "mode": "RNN", "i": 256, "h": 512, "t": 64, "b": 64},
    "lstm-cell-mixed": {"kind": "cell", "mode": "LSTM", "i": 256, "h": 512, "t": 64, "b": 64,
                        "precision": "bf16-mixed"},
    "lstm-frozen": {"mode": "LSTM", "i": 256, "h": 512, "layers": 2, "t": 256, "b": 64, "frozen": True},
    "lstm-bf16-4layer": {"mode": "LSTM", "i": 512, "h": 1024, "layers": 4, "dropout": 0.3, "t": 128, "b": 128,
                         "precision": "bf16"},
    "gru-fp32-long": {"mode": "GRU", "i": 64, "h": 256, "t": 2000, "b": 16},
    "lstm-proj-bi-mixed": {"mode": "LSTM", "i": 320, "h": 640, "layers": 2, "bi": True, "proj": 160, "t": 180, "b": 24,
                           "precision": "bf16-mixed"},
    "lstm-accumulated": {"mode": "LSTM", "i": 256, "h": 768, "layers": 2, "t": 100, "b": 32, "accumulation": 2},
}  # fmt: skip
"""Sizes of input and hidden state, steps and samples, and how the layers are run."""

BY_VALUES: dict[str, dict[str, Any]] = {
    "wav2vec2-ctc": {"kind": "wav2vec2", "b": 4, "samples": 160000},
    "wav2vec2-ctc-mixed": {"kind": "wav2vec2", "b": 8, "samples": 120000, "precision": "bf16-mixed"},
    "wav2vec2-tiny": {"kind": "wav2vec2", "b": 4, "samples": 80000, "config": {"hidden_size": 256,
                      "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}},
    "hubert-ctc": {"kind": "hubert", "b": 4, "samples": 100000},
    "masked-lm-select-15": {"kind": "select", "b": 32, "t": 512, "width": 512, "vocab": 30000, "share": 0.15},
    "masked-lm-select-all": {"kind": "select", "b": 32, "t": 512, "width": 512, "vocab": 30000, "share": 1.0},
    "unique-embedding": {"kind": "unique", "b": 4096, "width": 256, "vocab": 50000},
    "mixtral-eager": {"kind": "mixtral", "b": 2, "t": 512, "precision": "bf16-mixed"},
}  # fmt: skip
CASES = {**RECURRENT, **BY_VALUES}


class Net(nn.Module):
    """Words or numbers, recurrent layers, a head."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.case = case
        self.embedding = nn.Embedding(case["vocab"], case["i"]) if "vocab" in case else None
        self.rnn = make_layers(case)
        width = (case.get("proj") or case["h"]) * (2 if case.get("bi") else 1)
        self.head = nn.Linear(width, case.get("vocab", 32))
        self.rnn.requires_grad_(not case.get("frozen"))

    def forward(self, x: Any, lengths: Any = None) -> Any:
        first = self.case.get("bf", False)
        x = x if self.embedding is None else self.embedding(x)
        if lengths is None:
            return self.head(self.rnn(x)[0])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=False)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=first)[0])


def make_layers(case: dict[str, Any]) -> Any:
    more = {name: case[name] for name in ("nonlinearity",) if name in case}
    more |= {"proj_size": case["proj"]} if case.get("proj") else {}
    return getattr(nn, case["mode"])(
        case["i"], case["h"], case.get("layers", 1), bias=case.get("bias", True), batch_first=case.get("bf", False),
        dropout=case.get("dropout", 0.0), bidirectional=case.get("bi", False), **more,
    )  # fmt: skip


class Translator(nn.Module):
    """The state of one GRU is where another one begins."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(case["vocab"], case["i"]) for _ in range(2))
        self.encoder, self.decoder = (nn.GRU(case["i"], case["h"], case["layers"], dropout=0.1) for _ in range(2))
        self.head = nn.Linear(case["h"], case["vocab"])

    def forward(self, x: Any) -> Any:
        return self.head(self.decoder(self.target(x), self.encoder(self.source(x))[1])[0])


class Cells(nn.Module):
    """A loop over single cells."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.cell = getattr(nn, case["mode"] + "Cell")(case["i"], case["h"])
        self.head = nn.Linear(case["h"], 32)

    def forward(self, x: Any) -> Any:
        state, seen = None, []
        for step in x:
            state = self.cell(step, state)
            seen.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(seen))


class Select(nn.Module):
    """A loss over the words that a mask chooses."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        width = case["width"]
        self.embedding = nn.Embedding(case["vocab"], width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, case["vocab"])

    def forward(self, tokens: Any, mask: Any) -> Any:
        hidden = self.body(self.embedding(tokens))
        return nn.functional.cross_entropy(self.head(hidden[mask]), tokens[mask])


class Unique(nn.Module):
    """Looks up each word once."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(case["vocab"], case["width"]), nn.Linear(case["width"], case["width"])

    def forward(self, tokens: Any) -> Any:
        words, place = torch.unique(tokens, return_inverse=True)
        return self.head(self.embedding(words)).relu()[place].square().mean()


def make_model(case: dict[str, Any]) -> Any:
    kind = case.get("kind", "rnn")
    plain = {"rnn": Net, "seq2seq": Translator, "cell": Cells, "select": Select, "unique": Unique}
    if kind in plain:
        return plain[kind](case)
    import transformers as hf

    if kind == "wav2vec2":
        return hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(ctc_loss_reduction="mean", **case.get("config", {})))
    if kind == "hubert":
        return hf.HubertForCTC(hf.HubertConfig(ctc_loss_reduction="mean"))
    sizes = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16}
    config = hf.MixtralConfig(num_key_value_heads=8, num_local_experts=8, vocab_size=32000, use_cache=False, **sizes)
    config._experts_implementation = "eager"
    return hf.MixtralForCausalLM(config)


def make_batch(case: dict[str, Any], device: str) -> Any:
    torch.manual_seed(1)
    kind = case.get("kind", "rnn")
    if kind in ("wav2vec2", "hubert"):
        labels = torch.randint(1, 32, (case["b"], 60), device=device)
        labels[:, 50:] = -100
        return {"input_values": torch.randn(case["b"], case["samples"], device=device), "labels": labels}
    if kind == "mixtral":
        tokens = torch.randint(0, 32000, (case["b"], case["t"]), device=device)
        return {"input_ids": tokens, "labels": tokens.clone()}
    if kind == "unique":
        return (torch.randint(0, case["vocab"], (case["b"],), device=device),)
    shape = (case["b"], case["t"]) if case.get("bf") or kind == "select" else (case["t"], case["b"])
    if kind == "select":
        return torch.randint(0, case["vocab"], shape, device=device), torch.rand(*shape, device=device) < case["share"]
    dtype = HALF.get(case.get("precision", ""), torch.float32)
    words = "vocab" in case
    x = (
        torch.randint(0, case["vocab"], shape, device=device)
        if words
        else torch.randn(*shape, case["i"], device=device)
    )
    x = x if words else x.to(dtype)
    if "packed" not in case:
        return (x,)
    lengths = torch.randint(case["t"] // 4 if case["packed"] == "some" else case["t"], case["t"] + 1, (case["b"],))
    lengths[0] = case["t"]
    return x, lengths


def loss_of(outputs: Any, batch: Any) -> Any:
    if hasattr(outputs, "loss"):
        return outputs.loss
    return outputs if outputs.dim() == 0 else outputs.float().square().mean()


def predict(name: str) -> dict[str, Any]:
    from vario.analysis.memory import predict_memory

    case = CASES[name]
    with torch.device("meta"):
        model = make_model(case)
    found = predict_memory(
        model.to(HALF.get(case.get("precision", ""), torch.float32)),
        make_batch(case, "cpu" if "packed" in case else "meta"),
        precision=case.get("precision", "fp32"),
        optimizer=lambda parameters: torch.optim.Adam(parameters, foreach=True),
        clip=False,
        accumulation=case.get("accumulation", 1),
        loss=loss_of,
        gpu="h200",
    )
    sizes = {"allocated_mib": found.peak_bytes / MIB, "reserved_mib": found.reserved_bytes / MIB}
    return {"case": name, **sizes, "is_upper_bound": found.is_upper_bound}


def measure(name: str) -> dict[str, Any]:
    case = CASES[name]
    model = make_model(case).to(HALF.get(case.get("precision", ""), torch.float32)).to("cuda").train()
    batch = make_batch(case, "cuda")
    optimizer = torch.optim.Adam([one for one in model.parameters() if one.requires_grad], foreach=True)
    half = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(case.get("precision", ""))
    for _ in range(3):
        for _ in range(case.get("accumulation", 1)):
            with torch.autocast("cuda", dtype=half or torch.bfloat16, enabled=half is not None):
                outputs = model(**batch) if isinstance(batch, dict) else model(*batch)
                loss = loss_of(outputs, batch)
            del outputs
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    sizes = {"allocated_mib": round(peaks[0] / MIB, 1), "reserved_mib": round(peaks[1] / MIB, 1)}
    return {"case": name, **sizes, "gpu": torch.cuda.get_device_name(), **versions}


def print_sizes() -> None:
    """Of calls of one layer after the other: every allocation of the forward pass, in bytes."""
    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    base = {"t": 50, "b": 32, "i": 256, "h": 512}
    grid = [{}, {"t": 100}, {"b": 64}, {"i": 1024}, {"h": 100}, {"h": 1024}, {"layers": 2}, {"layers": 3, "bi": True}]
    for mode, change in itertools.product(("LSTM", "GRU", "RNN"), grid):
        case = {**base, **change, "mode": mode}
        layers = make_layers(case).cuda()
        x = torch.randn(case["t"], case["b"], case["i"], device="cuda")
        before = len(torch.cuda.memory._snapshot()["device_traces"][0])
        layers(x)
        entries = torch.cuda.memory._snapshot()["device_traces"][0][before:]
        print(mode, change, [entry["size"] for entry in entries if entry["action"] == "alloc"])


def in_processes(verb: str, names: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in names:
        command = [sys.executable, __file__, "--one", verb, name]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        else:
            found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return found


def print_table(names: list[str]) -> None:
    measured = {row["case"]: row for row in map(json.loads, MEASURED.read_text().splitlines())}
    print("| case | measured MiB, allocated / reserved | predicted | error |")
    print("| --- | --- | --- | --- |")
    for row in in_processes("predict", names):
        truth, sizes = measured[row["case"]], ("allocated_mib", "reserved_mib")
        off = " / ".join(f"{row[size] / truth[size] - 1:+.2%}" for size in sizes)
        seen, said = (" / ".join(f"{one[size]:,.0f}" for size in sizes) for one in (truth, row))
        print(f"| {row['case']} | {seen} | {'at most ' if row['is_upper_bound'] else ''}{said} | {off} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help="only these")
    parser.add_argument("--measure", type=Path, metavar="FILE")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.names or list(CASES)
    if arguments.one:
        verb, name = arguments.one
        print(json.dumps({"predict": predict, "measure": measure}[verb](name)))
    elif arguments.sizes:
        print_sizes()
    elif arguments.measure:
        with arguments.measure.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in in_processes("measure", names))
    else:
        print_table(names)


if __name__ == "__main__":
    main()
