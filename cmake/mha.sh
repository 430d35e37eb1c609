#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# cmake/mha.sh demo|generate|train|test|bench: installs what is missing (Debian, Ubuntu), builds and runs; demo fetches the
# MiniLM model first. What follows generate or train are its options: cmake/mha.sh generate --help
set -eu
cd "$(dirname "$0")/.."

job=${1:-}
case $job in
demo | generate | train | test | bench) ;;
*)
  echo "usage: cmake/mha.sh demo|generate|train|test|bench" >&2
  exit 2
  ;;
esac

packages="g++ cmake git ninja-build libeigen3-dev libgtest-dev libbenchmark-dev nlohmann-json3-dev libutf8proc-dev
  libcli11-dev python3-pip ca-certificates"
if command -v dpkg-query >/dev/null 2>&1; then
  missing=
  for package in $packages; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
  done
  if [ -n "$missing" ]; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    echo "mha: installing$missing"
    $as_root apt-get update -qq
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
  fi
else
  # Elsewhere the names differ; CMake downloads the libraries it does not find, but for CLI11 and utf8proc.
  for program in c++ cmake git ninja; do
    command -v $program >/dev/null 2>&1 || {
      echo "mha: $program is missing; install it first (on Debian: $(echo $packages))" >&2
      exit 1
    }
  done
fi

case $job in
generate | train)
  shift
  cmake --workflow --preset "$job"
  exec "build/release/examples/$job/$job" "$@"
  ;;
demo) sh cmake/fetch_minilm.sh ;;
esac
exec cmake --workflow --preset "$job"
