# SPDX-License-Identifier: Apache-2.0
"""The command line tool inside the package, under the name that pip puts on the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program `attndrop`, with the same arguments."""
    program = Path(__file__).with_name("bin") / "attndrop"
    if not program.exists():
        sys.exit(f"attndrop: {program} does not exist; reinstall the package")
    os.execv(program, [str(program), *sys.argv[1:]])
