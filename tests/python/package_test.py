# SPDX-License-Identifier: Apache-2.0
"""The package: versions, schemas, symbols, and life without the extension."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import attndrop
import pytest
import torch
from attndrop import _extension, _schemas

needs_kernels = pytest.mark.skipif(bool(_extension.MISSING), reason=_extension.MISSING)
ROOT = Path(__file__).parents[2]
PACKAGE = Path(attndrop.__file__).parent


def test_version_and_mask_format_are_the_librarys() -> None:
    header = (ROOT / "include/attndrop/version.h").read_text()
    assert f'kVersion = "{attndrop.__version__}"' in header
    assert f"kMaskFormat = {attndrop.MASK_FORMAT};" in header


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()


def test_everything_public_exists_and_is_documented() -> None:
    for name in attndrop.__all__:
        value = getattr(attndrop, name)
        assert name in ("MASK_FORMAT", "__version__") or value.__doc__, name


@needs_kernels
def test_schemas_are_the_compiled_ones() -> None:
    for schema in _schemas.SCHEMAS:
        compiled = getattr(torch.ops.attndrop, schema.split("(")[0]).default._schema
        assert torch._C.parse_schema(f"attndrop::{schema}") == compiled


def undefined_symbols(library: Path) -> set[str]:
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True
    )
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def symbols_of_2_10() -> set[str]:
    """Functions that PyTorch's headers declare for TORCH_TARGET_VERSION 2.10."""
    include = Path(torch.__file__).parent / "include"
    source = "#include <torch/csrc/stable/c/shim.h>\n"
    command = ["c++", "-E", "-P", "-x", "c++", "-std=c++20", f"-I{include}"]
    preprocessed = subprocess.run(
        [*command, "-DTORCH_TARGET_VERSION=0x020A000000000000", "-"],
        input=source,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(re.findall(r"\b((?:aoti_torch|torch)_\w+)\s*\(", preprocessed.stdout))


@needs_kernels
def test_the_extension_needs_nothing_newer_than_pytorch_2_10() -> None:
    for tool in ("nm", "c++"):
        if subprocess.run(["which", tool], capture_output=True).returncode != 0:
            pytest.skip(f"{tool} is not installed")
    of_torch = {s for s in undefined_symbols(PACKAGE / "_C.so") if re.match(r"(aoti_)?torch_", s)}
    assert len(of_torch) > 20
    known = symbols_of_2_10()
    assert "torch_parallel_for" in known
    assert "torch_from_blob" not in known, "PyTorch 2.11 added it"
    assert of_torch <= known
    others = {s for s in undefined_symbols(PACKAGE / "_C.so") if "c10" in s or "at6Tensor" in s}
    assert not others


@needs_kernels
def test_the_extension_holds_no_python() -> None:
    assert not {s for s in undefined_symbols(PACKAGE / "_C.so") if s.startswith(("Py", "_Py"))}


def test_without_the_extension(tmp_path: Path) -> None:
    copy = tmp_path / "attndrop"
    copy.mkdir()
    for file in PACKAGE.glob("*.py"):
        (copy / file.name).write_text(file.read_text())
    program = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import attndrop
    import attndrop
assert len([w for w in caught if "without its compiled kernels" in str(w.message)]) == 1
import torch
tensors = [torch.randn(1, 2, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
def call(*t):
    return attndrop.scaled_dot_product_attention(*t, dropout_p=0.5, seed=1, is_causal=True)
assert torch.autograd.gradcheck(call, tensors)
print(attndrop.keep_mask(1, 2, 6, dropout_p=0.5, seed=1).int().flatten().tolist())
assert {s.name for s in attndrop.schemes()} >= {"element", "key"}
try:
    attndrop.analyze(3, dropout_p=0.5)
except NotImplementedError as error:
    assert "does not exist" in str(error)
else:
    raise AssertionError
try:
    call(*tensors[:2], tensors[2].float())
except TypeError as error:
    assert "same dtype" in str(error)
else:
    raise AssertionError
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    keep = attndrop.keep_mask(1, 2, 6, dropout_p=0.5, seed=1)
    assert done.stdout.strip() == str(keep.int().flatten().tolist())
