# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT whose attention is attndrop's, on a few lines of text, in some seconds.

    python examples/gpt_training_step.py [--steps N] [--empty-row POLICY] [--scheme SCHEME]

Every mask is a function of (seed, step, layer): the run can stop and go on, use activation
checkpointing, or be compiled, and the masks stay what they are.
"""

from __future__ import annotations

import argparse

import attndrop
import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT = """\
Sixteen words went out to sea, each to look for two or three.
One looked back and saw but one, and when the dice were thrown, had none.
The last saw sixteen in a row, and hardly missed the four to go.
The first said, it is hard on me: I see one word, and that one's free.
Then draw again, the last replied, till one of yours is on your side;
and what the others give in weight is what makes our sums come out straight.
"""
CONTEXT = 32


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float, scheme: str, empty_row: str) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        # In place of torch.nn.MultiheadAttention(width, heads, dropout, batch_first=True).
        self.attention = attndrop.MultiheadAttention(
            width, heads, dropout, batch_first=True, scheme=scheme, empty_row=empty_row, seed=7
        )
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, need_weights=False, is_causal=True)[0]
        return x + self.feed(self.norms[1](x))


class GPT(nn.Module):
    """tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int, scheme: str, empty_row: str) -> None:
        super().__init__()
        width, heads, layers, dropout = 64, 4, 2, 0.1
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(
            *(Block(width, heads, dropout, scheme, empty_row) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        position = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.positions(position)
        return self.logits(self.norm(self.blocks(x)))


def batch_of(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """16 pieces of the text, and the same pieces one character further."""
    starts = torch.randint(len(data) - CONTEXT, (16,), generator=generator)
    pieces = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small GPT with attndrop.")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--scheme", default="element", help="which weights share a draw")
    parser.add_argument("--empty-row", default="redraw", help="what a row does that loses all keys")
    options = parser.parse_args()

    torch.manual_seed(1)
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(letter) for letter in TEXT])
    model = GPT(len(letters), options.scheme, options.empty_row)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(2)

    losses = []
    for step in range(options.steps):
        attndrop.set_step(model, step)  # another mask for each step and layer
        tokens, targets = batch_of(data, generator)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 25 == 0:
            print(f"step {step:4}  loss {losses[-1]:.3f}")
    print(f"loss fell from {losses[0]:.3f} to {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
