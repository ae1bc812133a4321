# SPDX-License-Identifier: Apache-2.0
"""A training step of a small GPT whose attention is any function with SDPA's signature."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 65


class Block(nn.Module):
    def __init__(self, attention, width, heads, dropout):
        super().__init__()
        self.attention = attention
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        packed = self.project_in(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        heads = self.attention(query, key, value, is_causal=True)
        mixed = heads.transpose(1, 2).reshape(batch, length, width)
        x = x + self.dropout(self.project_out(mixed))
        return x + self.dropout(self.feed(self.norms[1](x)))


class GPT(nn.Module):
    """tokens (batch, context) to logits (batch, context, vocabulary)."""

    def __init__(self, attention, context, width=384, heads=6, layers=6, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(attention, width, heads, dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.dropout(self.tokens(tokens) + self.positions)
        return self.logits(self.norm(self.blocks(x)))


def training_step(attention, context, batch=8):
    """A function that makes one step: forward, backward, AdamW."""
    torch.manual_seed(1)
    model = GPT(attention, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(VOCABULARY, (batch, context + 1))

    def step():
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
