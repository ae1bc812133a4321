# SPDX-License-Identifier: Apache-2.0
"""What the documents show for PyTorch runs as it stands, and the diffs change one line."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIGURES = ROOT / "docs/figures"

#: Programs in which the lines of a diff stand at LINE; `out` is compared in evaluation.
CONTEXTS = {
    "scaled_dot_product_attention": """
import attndrop
import torch

class CausalSelfAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = torch.nn.Linear(32, 96)
        self.dropout = 0.5

    def forward(self, x):
        q, k, v = self.c_attn(x).view(2, 6, 3, 4, 8).permute(2, 0, 3, 1, 4)
        LINE
        return y.transpose(1, 2).reshape(2, 6, 32)

model = CausalSelfAttention()
def call():
    return model(torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1)))
""",
    "MultiheadAttention": """
import attndrop
import torch

class Block(torch.nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        LINE

    def forward(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]

model = Block()
def call():
    return model(torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(1)))
""",
    "from_pretrained": """
import attndrop
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

config = GPT2Config(vocab_size=32, n_positions=16, n_embd=24, n_layer=1, n_head=2, attn_pdrop=0.5)
config.embd_pdrop = config.resid_pdrop = 0.0
config.bos_token_id = config.eos_token_id = 0
GPT2LMHeadModel(config).save_pretrained(path)
LINE
def call():
    return model(torch.arange(8)[None]).logits
""",
}


def blocks(language: str) -> Iterator[Any]:
    for page in PAGES if (ROOT / "README.md").is_file() else []:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, flags=re.S | re.M):
            line = text[: match.start()].count("\n") + 2
            name = f"{page.relative_to(ROOT)}:{line}"
            yield pytest.param("\n" * (line - 1) + match[1], str(page), id=name)


def execute(body: str, file: str, **names: Any) -> dict[str, Any]:
    namespace = {"__name__": "__main__", **names}
    exec(compile(body, file, "exec"), namespace)
    return namespace


def need(body: str, word: str, module: str) -> None:
    if word in body and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


@pytest.mark.parametrize(("body", "page"), list(blocks("python")))
def test_python_blocks_run(body: str, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(body, "attndrop.plot", "matplotlib")
    need(body, "register_hf", "transformers")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    execute(body, page)


def test_there_are_blocks_to_run() -> None:
    if (ROOT / "README.md").is_file():
        assert sum("README.md" in block.id for block in blocks("python")) >= 1
        assert sum("pytorch.md" in block.id for block in blocks("python")) >= 5
        assert len(list(blocks("diff"))) >= 3


def outcome(context: str, line: str, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The output in evaluation, and the mean of many outputs in training."""
    torch.manual_seed(3)
    names = execute(context.replace("LINE", line), line, path=str(path))
    model, call = names["model"], names["call"]
    model.eval()
    out = call().detach()
    model.train()
    call().sum().backward()
    return out, torch.stack([call().detach() for _ in range(50)])


@pytest.mark.parametrize(("body", "page"), list(blocks("diff")))
def test_diffs_change_one_line_and_no_result(body: str, page: str, tmp_path: Path) -> None:
    removed, added = (re.findall(rf"^\{sign}(.*)$", body, flags=re.M) for sign in "-+")
    assert (len(removed), len(added)) == (1, 1), body
    (context,) = [text for word, text in CONTEXTS.items() if f".{word}(" in removed[0]]
    need(context, "transformers", "transformers")
    before, _ = outcome(context, removed[0], tmp_path)
    after, drawn = outcome(context, added[0], tmp_path)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=1e-5)
    assert "attndrop." in added[0]
    assert (drawn != drawn[0]).any(), "nothing is dropped in training"


def size_of(png: Path) -> tuple[int, int]:
    header = png.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", header[16:24])


def test_figures_can_be_made_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    if not FIGURES.is_dir():
        pytest.skip("there is no folder docs/figures")
    subprocess.run([sys.executable, FIGURES / "make.py", tmp_path], check=True, timeout=300)
    made = {file.name: size_of(file) for file in tmp_path.iterdir()}
    assert made == {file.name: size_of(file) for file in FIGURES.glob("*.png")}
    assert made
    shown = [page.read_text(encoding="utf-8") for page in PAGES]
    for name in made:
        assert any(f"figures/{name})" in text for text in shown), f"no page shows {name}"
        assert (FIGURES / name).stat().st_size < 60_000
