#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Breaks the headers one line at a time and fails if the tests do not notice.
#   mutate.sh [-j jobs] [-i include] [-f words]     every mutation of mutations.txt, or those whose name has the words
# Needs g++ or clang++ (CXX), GoogleTest and Eigen where the compiler finds them (CPPFLAGS adds to that).
set -eu

here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
tests=$(dirname "$here")
list=$here/mutations.txt
include=$(dirname "$tests")/include
jobs=2
filter=
one=
work=
while getopts j:i:f:1:w: option; do
  case $option in
    j) jobs=$OPTARG ;;
    i) include=$OPTARG ;;
    f) filter=$OPTARG ;;
    1) one=$OPTARG ;;  # used by the script itself: one mutation, by number
    w) work=$OPTARG ;;
    *) sed -n '3,5s/^# *//p' "$0" >&2; exit 2 ;;
  esac
done

# field NUMBER KEY: one line of the NUMBERth mutation.
field() {
  awk -v number="$1" -v key="$2" '
    $1 == "mutation" { n++ }
    n == number && $1 == key { sub(/^[^ ]+ ?/, ""); print; exit }' "$list"
}

compile() {  # HEADERS OBJECT SOURCE
  # shellcheck disable=SC2086
  ${CXX:-c++} -std=c++20 -O1 -w -DLAWS_ALONE "-DMHA_GOLDEN_DIR=\"$tests/golden\"" ${CPPFLAGS:-} \
    -I "$1" -I "$tests/support" -isystem /usr/include/eigen3 -c "$3" -o "$2"
}

# suite HEADERS FOLDER NAME: builds and runs; 0 passed, 1 failed, 2 did not build.
suite() {
  folder=$2/$(echo "$3" | tr / _)
  mkdir -p "$folder"
  if [ "$3" = conformance ]; then
    sources="$tests/conformance/oracle.cpp $tests/conformance/float32.cpp $here/conformance_of_float.cpp"
  else
    sources=$tests/$3_test.cpp
  fi
  for source in $sources; do
    compile "$1" "$folder/$(basename "$source" .cpp).o" "$source" 2>"$folder/errors" || return 2
  done
  ${CXX:-c++} "$folder"/*.o -o "$folder/run" -lgtest_main -lgtest -lpthread || return 2
  # A mutation may loop or crash: both count as noticed.
  timeout 300 "$folder/run" >"$folder/output" 2>&1 || return 1
}

if [ -n "$one" ]; then
  name=$(field "$one" mutation)
  headers=$work/$one/include
  mkdir -p "$headers"
  cp -R "$include/mha" "$headers/"
  header=$headers/mha/$(field "$one" file)
  OLD=$(field "$one" old) NEW=$(field "$one" new) awk '
    BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"] }
    {
      at = index($0, old)
      if (at > 0) {
        found++
        $0 = substr($0, 1, at - 1) new substr($0, at + length(old))
      }
      print
    }
    END { exit found == 1 ? 0 : 1 }' "$header" >"$work/$one/mutated" || {
    echo "ERROR    $name: the old text does not stand exactly once in $(field "$one" file)"
    exit 0
  }
  cp "$work/$one/mutated" "$header"
  verdict="SURVIVED $name"
  for by in $(field "$one" by); do
    status=0
    suite "$headers" "$work/$one" "$by" || status=$?
    if [ $status -eq 2 ]; then
      verdict="ERROR    $name: $by does not compile"
      break
    elif [ $status -eq 1 ]; then
      verdict="noticed  $name ($by)"
      break
    fi
  done
  rm -rf "${work:?}/$one"
  echo "$verdict"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# A mutation without a suite would survive unseen; of a field given twice the first is read.
incomplete=$(awk '
  function tell() { if (name != "" && !(given["file"] == 1 && given["old"] == 1 && given["by"] == 1)) print name }
  $1 == "mutation" { tell(); name = $0; delete given }
  name != "" && NF > 1 { given[$1]++ }
  END { tell() }' "$list")
if [ -n "$incomplete" ]; then
  echo "$incomplete" | sed 's/^mutation/ERROR    not one file, old and by each:/'
  exit 1
fi

# Numbers of the mutations to run, and the suites that they need.
FILTER=$filter awk '$1 == "mutation" { n++; if (index($0, ENVIRON["FILTER"])) print n }' "$list" >"$work/numbers"
while read -r number; do field "$number" by; done <"$work/numbers" | tr ' ' '\n' | sort -u >"$work/suites"

# A suite that fails on the headers as they are would notice everything.
mkdir "$work/clean"
while read -r by; do
  if ! suite "$include" "$work/clean" "$by"; then
    echo "ERROR    $by fails without any mutation"
    exit 1
  fi
done <"$work/suites"

xargs -P "$jobs" -n 1 "$0" -i "$include" -w "$work" -1 <"$work/numbers" | tee "$work/verdicts"
noticed=$(grep -c '^noticed' "$work/verdicts" || true)
all=$(wc -l <"$work/numbers")
echo "$noticed of $((all)) mutations noticed"
[ "$noticed" -eq "$all" ]
