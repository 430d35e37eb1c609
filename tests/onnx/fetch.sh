#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/onnx/fetch.sh [VERSION]: puts the Attention cases of the Python package onnx (Apache-2.0) as text into
# build/onnx, those of another version into build/onnx-VERSION, once.
set -eu
cd "$(dirname "$0")/../.."

pinned=1.22.0
version=${1:-$pinned}
cases=build/onnx
[ "$version" = "$pinned" ] || cases=build/onnx-$version

[ ! -d "$cases" ] || exit 0
mkdir -p build
scratch=$(mktemp -d build/fetch-onnx.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

echo "mha: downloading onnx $version for its Attention cases (36 MB)"
# A folder of its own, no virtual environment: Debian's python3 lacks the means to make one.
if ! python3 -m pip install --quiet --disable-pip-version-check --only-binary :all: --target "$scratch/site" \
  "onnx==$version" 2>"$scratch/log"; then
  echo "mha: onnx $version could not be downloaded, so its cases are skipped ($(tail -n 1 "$scratch/log"))" >&2
  exit 0
fi
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$scratch/site" python3 tests/onnx/convert.py "$scratch/cases" >"$scratch/log"
tail -n 1 "$scratch/log"
# The rename comes last: an interrupted run leaves no half-filled folder.
mv "$scratch/cases" "$cases"
