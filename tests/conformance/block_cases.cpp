// SPDX-License-Identifier: Apache-2.0
// The covering arrays of Linears, feed-forwards and norms.
#include "block_cases.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <mha/backend/simd/isa.hpp>

#include "covering.hpp"
#include "random.hpp"

namespace blocks {

namespace {

const std::vector<std::string> machine_names{"Reference", "Cpu", "Systolic", "EigenCpu", "Far"};
const std::vector<std::string> storage_names{"float", "double", "half", "bfloat16"};
const std::vector<std::string> lie_names{"dense", "padded", "sequences interleaved", "columns apart", "by columns"};

std::vector<std::string> isa_names() {
  std::vector<std::string> levels;
  for (int i = 0; i <= static_cast<int>(mha::best_isa()); ++i)
    levels.emplace_back(mha::to_string(static_cast<mha::IsaLevel>(i)));
  return levels;
}

const std::vector<std::string> result_names{"returned",      "dense",      "padded", "sequences interleaved",
                                            "columns apart", "by columns", "x"};

const std::vector<FactorLevels>& linear_factors() {
  static const std::vector<FactorLevels> all{
      {"backend", machine_names},
      {"scalar", storage_names},
      {"form", {"no activation", "activation", "gated"}},
      {"block", {"Linear", "FeedForward"}},
      {"activation", {"Relu", "Gelu", "GeluTanh", "Silu", "functor"}},
      {"bias", {"no", "yes"}},
      {"weights", {"updated", "borrowed", "transposed", "strided", "half", "bfloat16", "packed only"}},
      {"residual", {"none", "apart", "the result"}},
      {"result", result_names},
      {"rows", lie_names},
      {"pass", {"forward", "backward"}},
      {"isa", isa_names()},
      {"B", {"1", "3"}},
      {"L", {"1", "2", "5", "17", "37"}},
      {"in", {"1", "3", "16", "33", "70"}},
      {"out", {"1", "2", "16", "31", "65"}}};
  return all;
}

const std::vector<FactorLevels>& norm_factors() {
  static const std::vector<FactorLevels> all{{"backend", machine_names},
                                             {"scalar", storage_names},
                                             {"norm", {"LayerNorm", "RmsNorm"}},
                                             {"bias", {"no", "yes"}},
                                             {"zero-centred", {"no", "yes"}},
                                             {"eps", {"default", "0", "0.25"}},
                                             {"weights", {"initial", "updated", "strided", "half", "bfloat16"}},
                                             {"added", {"nothing", "residual", "residual, with its sum"}},
                                             {"residual is", {"none", "apart", "the result"}},
                                             {"sum is", {"apart", "x", "the residual"}},
                                             {"result", result_names},
                                             {"rows", lie_names},
                                             {"pass", {"forward", "into", "add_to"}},
                                             {"isa", isa_names()},
                                             {"level", {"0", "40"}},
                                             {"B", {"1", "3"}},
                                             {"L", {"1", "2", "5", "70"}},
                                             {"E", {"1", "2", "3", "16", "33", "257"}}};
  return all;
}

/// A row's levels, where they are known.
struct Row {
  const support::CoveringRow& row;

  template <class Level> bool is(int f, Level level) const {
    return row[static_cast<std::size_t>(f)] == static_cast<int>(level);
  }
  template <class Level> bool may(int f, Level level) const {
    return row[static_cast<std::size_t>(f)] < 0 || is(f, level);
  }
  bool known(int f) const { return row[static_cast<std::size_t>(f)] >= 0; }
};

bool trains(Machine m) { return m != Machine::far; }
bool packs(Machine m) { return m != Machine::reference && m != Machine::eigen; }
bool narrows(Storage t) { return t == Storage::float32 || t == Storage::float64; }
bool computes(Machine m, Storage t) { return m != Machine::systolic || t != Storage::float64; }

/// All that a library with every type compiled could be asked for.
template <class F> void for_each_program(const std::vector<Machine>& machines, const F& f) {
  for (const Machine m : machines)
    for (const Storage t : {Storage::float32, Storage::float64, Storage::half, Storage::bfloat16})
      for (const Form form : {Form::plain, Form::function, Form::gated})
        for (const Block b : {Block::linear, Block::feed_forward})
          for (const bool r : {false, true})
            for (const bool returned : {false, true})
              for (const bool backward : {false, true})
                if (computes(m, t) && (!backward || trains(m))) f(Program{m, t, form, b, r, returned, backward});
}
template <class F> void for_each_norm(const std::vector<Machine>& machines, const F& f) {
  for (const Machine m : machines)
    for (const Storage t : {Storage::float32, Storage::float64, Storage::half, Storage::bfloat16})
      for (const NormKind n : {NormKind::layer, NormKind::rms})
        for (const Added a : {Added::none, Added::residual, Added::sum})
          for (const bool returned : {false, true})
            for (const NormPass p : {NormPass::forward, NormPass::into, NormPass::add_to})
              if (computes(m, t) && (p == NormPass::forward || trains(m))) f(NormProgram{m, t, n, a, returned, p});
}

template <class Fits, class Possible>
Cases cases_of(const char* stream, const std::vector<FactorLevels>& factors, const Fits& compiled,
               const Possible& possible) {
  std::vector<int> levels;
  for (const auto& f : factors) levels.push_back(static_cast<int>(f.levels.size()));
  support::Random random(stream);
  Cases cases;
  constexpr int arrays = 4;  // each has every pair
  for (int i = 0; i < arrays; ++i)
    for (auto& row : support::covering_array(levels, random, compiled)) cases.all.push_back({&factors, std::move(row)});
  for (std::size_t f = 0; f < levels.size(); ++f)
    for (std::size_t g = 0; g < f; ++g)
      for (int a = 0; a < levels[f]; ++a)
        for (int b = 0; b < levels[g]; ++b) {
          support::CoveringRow row(levels.size(), -1);
          row[f] = a;
          row[g] = b;
          const auto has = [&](const Case& c) { return c.row[f] == a && c.row[g] == b; };
          if (possible(row) && std::none_of(cases.all.begin(), cases.all.end(), has))
            cases.missing += factors[f].name + " " + factors[f].levels[std::size_t(a)] + ", " + factors[g].name + " " +
                             factors[g].levels[std::size_t(b)] + "\n";
        }
  return cases;
}

bool listed(const std::vector<Machine>& machines, Machine m) {
  return std::find(machines.begin(), machines.end(), m) != machines.end();
}

}  // namespace

bool fits(const Program& p, const support::CoveringRow& levels) {
  const Row row{levels};
  if (!row.may(machine, p.machine) || !row.may(storage, p.storage) || !row.may(form, p.form) ||
      !row.may(block, p.block) || !row.may(pass, p.backward))
    return false;
  if (row.known(residual) && row.is(residual, ResidualKind::none) == p.residual) return false;
  if (row.known(result) && row.is(result, ResultKind::returned) != p.returned) return false;
  // What a call returns is no residual, and what the backward pass reads is not overwritten.
  if (p.returned && row.is(residual, ResidualKind::result)) return false;
  if (p.backward && row.is(result, ResultKind::x)) return false;
  const bool narrow = row.is(weights, WeightsKind::half) || row.is(weights, WeightsKind::bfloat16);
  const bool dropped = row.is(weights, WeightsKind::dropped);
  return (!narrow || narrows(p.storage)) && (!dropped || packs(p.machine)) && (!p.backward || (!narrow && !dropped));
}

bool fits(const NormProgram& p, const support::CoveringRow& levels) {
  const Row row{levels};
  if (!row.may(machine, p.machine) || !row.may(storage, p.storage) || !row.may(kind, p.kind) ||
      !row.may(added, p.added) || !row.may(norm_pass, p.pass))
    return false;
  const bool of_sum = p.added == Added::sum;
  if (row.known(norm_residual) && row.is(norm_residual, ResidualKind::none) != (p.added == Added::none)) return false;
  if (row.known(norm_result) && row.is(norm_result, ResultKind::returned) != p.returned) return false;
  if (p.returned && row.is(norm_residual, ResidualKind::result)) return false;
  // The result and the sum are apart.
  if (of_sum && row.is(sum, SumKind::x) && row.is(norm_result, ResultKind::x)) return false;
  if (of_sum && row.is(sum, SumKind::residual) && row.is(norm_residual, ResidualKind::result)) return false;
  const bool narrow = row.is(norm_weights, NormWeights::half) || row.is(norm_weights, NormWeights::bfloat16);
  return !narrow || narrows(p.storage);
}

Cases linear_cases(const std::vector<Machine>& machines) {
  return cases_of(
      "linears", linear_factors(),
      [&](const auto& row) {
        return std::any_of(std::begin(programs), std::end(programs),
                           [&](const Program& p) { return listed(machines, p.machine) && fits(p, row); });
      },
      [&](const auto& row) {
        bool any = false;
        for_each_program(machines, [&](const Program& p) { any = any || fits(p, row); });
        return any;
      });
}
Cases norm_cases(const std::vector<Machine>& machines) {
  return cases_of(
      "norms", norm_factors(),
      [&](const auto& row) {
        return std::any_of(std::begin(norm_programs), std::end(norm_programs),
                           [&](const NormProgram& p) { return listed(machines, p.machine) && fits(p, row); });
      },
      [&](const auto& row) {
        bool any = false;
        for_each_norm(machines, [&](const NormProgram& p) { any = any || fits(p, row); });
        return any;
      });
}

Index Case::number(int f) const {
  const auto i = static_cast<std::size_t>(f);
  return static_cast<Index>(std::stoi((*factors)[i].levels[static_cast<std::size_t>(row[i])]));
}

std::string Case::text() const {
  std::string t;
  for (std::size_t f = 0; f < row.size(); ++f)
    t += (f == 0 ? "" : ", ") + (*factors)[f].name + " " + (*factors)[f].levels[static_cast<std::size_t>(row[f])];
  return t;
}

}  // namespace blocks
