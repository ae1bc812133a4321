# SPDX-License-Identifier: Apache-2.0
"""Trains a small random GPT-2 of Hugging Face transformers through attndrop; downloads nothing.

    python examples/hugging_face_gpt2.py [--steps N]

attndrop_seed and attndrop_offset are optional: without them every attention draws its seed from
PyTorch's default generator.
"""

from __future__ import annotations

import argparse

import attndrop
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT-2 through attndrop.")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()

    name = attndrop.register_hf(empty_row="redraw")
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=32,
        n_positions=32,
        n_embd=48,
        n_layer=2,
        n_head=4,
        attn_pdrop=0.1,  # the rate that attndrop takes
        bos_token_id=0,
        eos_token_id=1,
    )
    model = GPT2LMHeadModel._from_config(config, attn_implementation=name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    # Sequences that count upwards by a step of their own, modulo the vocabulary.
    losses = []
    for step in range(options.steps):
        start, stride = torch.randint(32, (16, 1)), torch.randint(1, 4, (16, 1))
        tokens = (start + stride * torch.arange(24)) % 32
        loss = model(
            tokens, labels=tokens, attndrop_seed=7, attndrop_offset=attndrop.call_offset(step, 0)
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step:4}  loss {losses[-1]:.3f}")
    print(f"loss fell from {losses[0]:.3f} to {losses[-1]:.3f}")

    model.eval()
    prompt = torch.tensor([[3, 5, 7, 9, 11, 13]])
    mask = torch.ones_like(prompt)
    after = model.generate(
        prompt, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=1
    )
    print(f"{prompt[0].tolist()} goes on with {after[0, 6:].tolist()}")


if __name__ == "__main__":
    main()
