#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel and proves that it is complete. Usage: wheel_check.sh PYTHON BUILD_DIR
# PYTHON has the packages of packages/python-torch.txt; the fresh environment borrows its PyTorch.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$1
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "wheel_check: $*" >&2; exit 1; }

"$python" -m pip wheel --quiet --no-build-isolation --no-deps -w "$work" "$root" \
  --config-settings=build-dir="$build"
wheel=$(ls "$work"/attndrop-*-py3-none-*.whl) || fail "the wheel has another tag than py3-none-PLATFORM"

# Every shared library that it needs lies inside, or belongs to the system or to PyTorch.
"$python" -m zipfile -e "$wheel" "$work/files"
package=$work/files/attndrop
[ -f "$package/py.typed" ] || fail "py.typed is missing"
for file in "$package/_C.so" "$package/bin/attndrop" "$package"/lib*.so*; do
  for needed in $(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $needed in
      libtorch_cpu.so|libstdc++.so.6|libm.so.6|libgcc_s.so.1|libc.so.6|ld-linux*) ;;
      *) [ -f "$package/$needed" ] || fail "$(basename "$file") needs $needed, which is not inside" ;;
    esac
  done
done

# It installs into a fresh environment, and what it loads comes from there.
"$python" -m venv "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/torch.pth"
"$work/venv/bin/python" -m pip install --quiet --no-deps --no-index --ignore-installed "$wheel"
cd "$work"
"$work/venv/bin/attndrop" --version
"$work/venv/bin/python" - "$site" <<'PROGRAM'
import sys
import torch
import attndrop
from attndrop import _extension

site = sys.argv[1]
assert attndrop.__file__.startswith(site), attndrop.__file__
assert not _extension.MISSING, _extension.MISSING
tensors = [torch.randn(1, 2, 8, 4, requires_grad=True) for _ in range(3)]
attndrop.scaled_dot_product_attention(*tensors, dropout_p=0.1, seed=1).sum().backward()
loaded = [line.split()[-1] for line in open("/proc/self/maps") if "libhwy" in line]
assert loaded and all(path.startswith(site) for path in loaded), loaded
PROGRAM
echo "wheel_check: $(basename "$wheel") is complete"
