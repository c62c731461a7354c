"""An encoder-decoder of transformers (a tiny T5) that answers in the language a question names; Adafactor."""

from __future__ import annotations

import copy

import torch
from common import Job, Sampler, topic_text
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

VOCAB, LENGTH, PAD, END = 60, 16, 0, 1


def pairs(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Questions that name a topic among other words, and answers in the topic's language."""
    generator = torch.Generator().manual_seed(seed)
    answer = topic_text(rows, LENGTH, VOCAB, seed, reserved=6)
    question = torch.randint(10, VOCAB, (rows, LENGTH), generator=generator)
    lengths = torch.randint(6, LENGTH, (rows, 1), generator=generator)
    places = torch.arange(LENGTH)
    question[:, 2] = answer[:, 0]
    answer = answer[:, 1:]
    question = torch.where(places < lengths, question, torch.where(places == lengths, END, PAD))
    ends = lengths.flip(0)
    places = places[:-1]
    answer = torch.where(places < ends, answer, torch.where(places == ends, END, PAD))
    return question, answer


def main() -> None:
    job = Job(
        steps=300, faults=["encoder-no-grad", "decoder-sees-labels", "labels-padded", "old-parameters", "source-empty"]
    )
    config = T5Config(
        vocab_size=VOCAB,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.05,
        decoder_start_token_id=PAD,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model = T5ForConditionalGeneration(config)
    optimizer = Adafactor(model.parameters(), lr=3e-3, relative_step=False, scale_parameter=False, warmup_init=False)
    source, target = pairs(8000, job.seed)
    sampler = Sampler(len(source), job.seed)
    model.train()
    for step in range(job.steps):
        chosen = sampler.take(32)
        words, answer = source[chosen], target[chosen]
        mask = (words != PAD).long()
        labels = answer.masked_fill(answer == PAD, -100)
        if job.on("labels-padded", step):
            labels = answer
        if job.on("source-empty", step):
            words = torch.full_like(words, 2)
        decoder_input = torch.cat([torch.full((len(answer), 1), PAD), answer[:, :-1]], dim=1)
        if job.on("decoder-sees-labels", step):
            decoder_input = answer
        if job.once("old-parameters", step):
            model = copy.deepcopy(model)
        with torch.set_grad_enabled(not job.on("encoder-no-grad", step)):
            encoded = model.encoder(input_ids=words, attention_mask=mask)
        output = model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=decoder_input, labels=labels)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        job.log(step, output.loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
