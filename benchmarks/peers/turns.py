# SPDX-License-Identifier: Apache-2.0
"""Participants that compute one case in turn: who is ready, their samples round by round, and the ratios."""

import statistics


class Missing(Exception):
    """A participant that is not there or does not offer a case."""


def ready(present, prepare, tolerance):
    """(runners, errors, missing) by name; prepare(participant) returns a runner and the error of its result."""
    runners, errors, missing = {}, {}, {}
    for name, participant in present.items():
        try:
            runner, errors[name] = prepare(participant)
            if not errors[name] < tolerance:
                raise Missing("its result is wrong by %.1e" % errors[name])
            runners[name] = runner
        except Missing as why:
            missing[name] = str(why)
        except Exception as failure:  # a peer that fails is a result, too; the others go on
            missing[name] = "failed: " + (str(failure).splitlines() or [type(failure).__name__])[0]
    return runners, errors, missing


def sample(runners, rounds, limit):
    """A sample of every runner in each round; returns the median of what limit() says in between."""
    limits, turn = [], list(runners.values())
    for r in range(rounds):
        limits.append(limit())
        for runner in turn[r % len(turn) :] + turn[: r % len(turn)]:  # nobody always follows the same one
            runner.sample()
    return statistics.median(limits)


def medians(runners, ours):
    """(seconds, ratio) by name, a ratio being the median over the rounds of their time by ours."""
    return {
        name: (
            statistics.median(runner.samples),
            statistics.median(t / o for t, o in zip(runner.samples, runners[ours].samples)),
        )
        for name, runner in runners.items()
    }


def in_words(row, ours, check):
    """A row as one line: rates by name, or with check the errors; "–" where ours did not take part and says why."""
    if check:
        return ", ".join("%s: error %.1e" % item for item in row["errors"].items()) or "–"
    if "results" not in row:
        return "–" + (" (%s: %s)" % (ours, row["missing"][ours]) if ours in row["missing"] else "")
    return ", ".join("%s: %.1f %s" % (n, r["rate"], row["unit"]) for n, r in row["results"].items())


def print_table(rows, texts, numbers, everybody, cells):
    """The rows that have results: columns of texts and of numbers, as cells(row) has them, and for
    each of everybody who took part the ratio of its time to that of ours."""
    rows = [row for row in rows if "results" in row]
    if not rows:
        return
    names = [n for n in everybody if any(n in row["results"] for row in rows)]
    print("\n| " + " | ".join([*texts, *numbers, *("ours : %s" % n for n in names)]) + " |")
    print("|" + "---|" * len(texts) + "---:|" * (len(numbers) + len(names)))
    for row in rows:
        results = row["results"]
        ratios = ["%.2f×" % results[n]["ratio"] if n in results else "" for n in names]
        print("| " + " | ".join([*cells(row), *ratios]) + " |")


def print_missing(rows, where, absent=None, between=", "):
    """Who did not take part and why: nowhere, or where it might have in the words of where(row, why), None to say
    nothing of it."""
    said = {(name, why): [] for name, why in (absent or {}).items()}
    for row in rows:
        for name, why in row["missing"].items():
            place = where(row, why)
            if place is not None:
                said.setdefault((name, why), []).append(place)
    for (name, why), places in said.items():
        print("- missing: %s: %s%s" % (name, why, " (%s)" % between.join(dict.fromkeys(places)) if places else ""))
