# SPDX-License-Identifier: Apache-2.0
"""Options of a call as values, checked with the sentences of the C++ core.

Only the composite path needs this: the compiled operators check for themselves.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ._errors import refuse_value
from ._format import ONE32, SCHEMES, SchemeRule

MAX_ATTEMPTS = 1024
_POLICIES = {
    "zero": ("zero", 0),
    "keep_one": ("at_least_one", 1),
    "redraw": ("at_least_one", 64),
    "keep_self": ("keep_self", 0),
    "keep_first": ("keep_first", 0),
    "undropped": ("undropped", 0),
    "at_least_one": ("at_least_one", 64),
}


def _suggestion(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"; choose one of {', '.join(names)}{hint}"


def parse_scheme(text: str) -> tuple[str, SchemeRule, tuple[int, ...]]:
    """Name, rule and parameters of "NAME[:param=value,...]"."""
    name, _, rest = text.partition(":")
    rule = SCHEMES.get(name)
    if rule is None:
        refuse_value(f'scheme "{name}" is unknown{_suggestion(name, sorted(SCHEMES))}')
    values = dict(zip(rule.params, rule.defaults, strict=True))
    for assignment in rest.split(",") if ":" in text else []:
        param, _, number = assignment.partition("=")
        if param not in values:
            known = ", ".join(rule.params) or "none"
            refuse_value(f'scheme "{name}" has no parameter "{param}"; it has: {known}')
        if not number.isdecimal() or not 1 <= int(number) < ONE32:
            refuse_value(f'scheme "{name}" needs {param} in 1 .. 4294967295, got "{assignment}"')
        values[param] = int(number)
    return name, rule, tuple(values.values())


def parse_empty_row(text: str) -> tuple[str, int]:
    """Policy and attempts of "zero", "redraw", "at_least_one:attempts=5", ..."""
    name, _, rest = text.partition(":")
    if name not in _POLICIES:
        refuse_value(f'empty_row "{text}" is unknown{_suggestion(name, sorted(_POLICIES))}')
    policy, attempts = _POLICIES[name]
    if rest:
        key, _, number = rest.partition("=")
        if name != "at_least_one" or key != "attempts" or not number.isdecimal():
            refuse_value(
                f'empty_row "{text}" is unknown; only at_least_one:attempts=A takes a number'
            )
        attempts = int(number)
        if not 1 <= attempts <= MAX_ATTEMPTS:
            refuse_value(
                f"empty_row at_least_one needs attempts in 1 .. {MAX_ATTEMPTS}, got {attempts}"
            )
    return policy, attempts


@dataclass(frozen=True)
class Shape:
    """Sizes of the arrays: batch, heads of query and of key, lengths."""

    batch: int
    num_heads: int
    seqlen_q: int
    seqlen_k: int


@dataclass(frozen=True)
class Config:
    """Everything but tensors that decides a mask."""

    seed: int
    offset: int
    keep_q32: int
    scheme: str
    rule: SchemeRule
    params: tuple[int, ...]
    stage: str
    policy: str
    attempts: int
    is_causal: bool = False
    bottom_right: bool = False
    window: tuple[int, int] = (-1, -1)
    origin: tuple[int, int, int, int] = (0, 0, 0, 0)
    total: tuple[int, int] | None = field(default=None)
    batch_index: tuple[int, ...] | None = None

    @property
    def keep_prob(self) -> float:
        return self.keep_q32 / ONE32

    @property
    def drops_nothing(self) -> bool:
        return self.keep_q32 == ONE32

    @property
    def reads_whole_row(self) -> bool:
        return self.policy in ("at_least_one", "undropped") and 0 < self.keep_q32 < ONE32


def make_config(rng: Tensor, options: dict[str, Any]) -> Config:
    """Parses and checks what does not depend on the arrays."""
    if tuple(rng.shape) != (3,):
        refuse_value(f"rng must hold seed, offset and keep_q32, got shape {tuple(rng.shape)}")
    seed, offset, keep_q32 = (int(value) for value in rng.tolist())
    if not 0 <= keep_q32 <= ONE32:
        refuse_value(f"rng must hold keep_q32 in 0 .. 2^32, got {keep_q32}")
    scheme, rule, params = parse_scheme(options.get("scheme", "element"))
    policy, attempts = parse_empty_row(options.get("empty_row", "zero"))
    stage = options.get("stage", "weights")
    if stage not in ("weights", "logits"):
        refuse_value(f'stage must be weights or logits, got "{stage}"')
    scale = options.get("scale")
    if scale is not None and not math.isfinite(scale):
        refuse_value(
            f"scale must be a finite number (0 and negative ones are allowed), got {scale}; "
            "leave it out for 1/sqrt(head_dim)"
        )
    config = Config(
        seed=seed,
        offset=offset,
        keep_q32=keep_q32,
        scheme=scheme,
        rule=rule,
        params=params,
        stage=stage,
        policy=policy,
        attempts=attempts,
        is_causal=options.get("is_causal", False),
        bottom_right=options.get("bottom_right", False),
        window=(options.get("window_left", -1), options.get("window_right", -1)),
        origin=_origin(options.get("origin") or ()),
        total=_total(options.get("total") or ()),
    )
    _check_policy(config)
    return config


def _origin(values: Any) -> tuple[int, int, int, int]:
    origin = tuple(int(value) for value in values) or (0, 0, 0, 0)
    if len(origin) != 4:
        refuse_value(f"origin must hold batch, head, query and key, got {len(origin)} numbers")
    for name, value in zip(("batch", "head", "query", "key"), origin, strict=True):
        if not 0 <= value < ONE32:
            refuse_value(f"origin {name} must be in 0 .. 2^32 - 1, got {value}")
    return origin


def check_batch_numbers(numbers: tuple[int, ...], batch: int, origin_batch: int) -> None:
    if len(numbers) != batch:
        refuse_value(
            f"batch_index must hold one number for each of the {batch} entries of the batch, got "
            f"{len(numbers)}"
        )
    if origin_batch != 0:
        refuse_value(
            "batch_index gives the place of every entry in the whole batch: origin batch must be 0 "
            f"beside it, got {origin_batch}; add it to the numbers of batch_index"
        )
    for entry, number in enumerate(numbers):
        if not 0 <= number < ONE32:
            refuse_value(
                f"batch_index must hold numbers in 0 .. 2^32 - 1, got {number} at entry {entry}"
            )


def _total(values: Any) -> tuple[int, int] | None:
    total = tuple(int(value) for value in values)
    if len(total) not in (0, 2):
        refuse_value(f"total must hold seqlen_q and seqlen_k, got {len(total)} numbers")
    return (total[0], total[1]) if total else None


def _check_policy(config: Config) -> None:
    for side, value in zip(("left", "right"), config.window, strict=True):
        if not -1 <= value <= ONE32:
            refuse_value(f"window {side} must be 0 .. 2^32 keys, or -1 for no limit, got {value}")
    if config.policy == "at_least_one" and not config.rule.row_redraw:
        refuse_value(
            f'empty_row at_least_one draws one row again, and with scheme "{config.scheme}" '
            "other rows share its draws; use empty_row keep_self, keep_first or undropped, or "
            "scheme element or shared"
        )
    if config.keep_q32 == 0 and config.policy != "zero":
        refuse_value(
            f"empty_row {config.policy} needs dropout_p below 1 - 2^-33, got 1; only empty_row "
            "zero can drop everything"
        )
