# SPDX-License-Identifier: Apache-2.0
"""Times of functions that take turns, so that whatever else the machine does meets all of them."""

import statistics

SAMPLE_SECONDS = 0.004  # shorter calls are repeated within a sample
LONG_SECONDS = 0.5  # a call that takes longer finds nothing in the caches anyway


def sample(function, calls, clock):
    begin = clock()
    for _ in range(calls):
        function()
    return (clock() - begin) / calls


def measure(functions, repeats, clock):
    """{name: seconds of each repeat}, all in turn."""
    calls = {}
    for name, function in functions.items():
        seconds = sample(function, 1, clock)
        if seconds < LONG_SECONDS:
            seconds = sample(function, 1, clock)
        calls[name] = 1 + int(SAMPLE_SECONDS / max(seconds, 1e-7))
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            if times[name][-1:] < [LONG_SECONDS]:
                function()
            times[name].append(sample(function, calls[name], clock))
    return times


def beside(times, ours):
    """{peer: median seconds, median of the ratios and of the differences to `ours` of a turn}."""
    return {
        peer: {
            "seconds": statistics.median(theirs),
            "ratio": statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
            "extra_s": statistics.median(b - a for a, b in zip(theirs, ours, strict=True)),
        }
        for peer, theirs in times.items()
    }
