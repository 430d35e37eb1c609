// SPDX-License-Identifier: Apache-2.0
// Masks and scores written down a second time, without the library's policies, and run through the double reference.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <mha/attention.hpp>
#include <mha/backend/reference/reference.hpp>

#include "cases.hpp"

namespace conformance {

const std::vector<FactorLevels>& factors() {
  static const std::vector<FactorLevels> all = [] {
    const auto numbers = [](std::vector<Index> values) {
      std::vector<std::string> names;
      for (const Index v : values) names.push_back(std::to_string(v));
      return names;
    };
    const std::vector<Index> sizes = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 47, 48, 49, 63, 65, 127, 128, 129, 200, 257};
    std::vector<Index> with_none = sizes;
    with_none.push_back(0);
    std::vector<std::string> levels;
    for (int level = 0; level <= static_cast<int>(mha::best_isa()); ++level)
      levels.emplace_back(mha::to_string(static_cast<mha::IsaLevel>(level)));
    return std::vector<FactorLevels>{
        {"backend", {"Cpu", "CpuWith<Serial>", "EigenCpu", "PlainBackend"}},
        {"scalar", {"float", "double", "half", "bfloat16"}},
        {"heads", {"MHA", "GQA", "MQA"}},
        {"mask",
         {"Full", "Causal", "CausalTopLeft", "SlidingWindow", "Padding", "LeftPadding", "Prefix", "FirstKeys",
          "Document", "BlockSparse", "Dense", "functor", "a && b", "a || b", "!a", "(a && b) || !functor",
          "two masks"}},
        {"score",
         {"none", "SoftCap", "Alibi", "AdditiveBias", "RelativeBias", "Chain", "two scores", "functor", "lambda"}},
        {"scale", {"default", "explicit", "negative", "above 1", "0"}},
        {"layout", {"blhd", "bhld", "V in K", "strided", "column-major", "reversed"}},
        {"source", {"tensors", "pages", "ring"}},
        {"isa", levels},
        {"origin", {"default", "0", "shifted", "per sequence"}},
        {"sink", {"none", "some"}},
        {"dropout", {"none", "some"}},
        {"Lq", numbers(sizes)},
        {"Lk", numbers(with_none)},
        {"D", numbers(sizes)},
        {"Dv", numbers(sizes)}};
  }();
  return all;
}

namespace {

/// The number that a size's level names.
Index size_of(const Case& c, Factor f) {
  return static_cast<Index>(std::stoi(factors()[f].levels[static_cast<std::size_t>(c.row[f])]));
}

/// What the masks of run_case.hpp say, by the words of the documentation: query i of the call stands at q.
bool visible(const Problem& p, Index b, Index h, Index q, Index k) {
  if (!p.holds(k)) return false;
  const Index i = q - p.origin(b);
  const bool past = k <= q;
  const bool in_window = q - p.left <= k && k <= q + p.right;
  const bool not_padding = k < p.lengths[static_cast<std::size_t>(b)];
  const bool functor = (q + 2 * k + h + 1000) % 3 != 0;
  switch (p.which.at<MaskKind>(mask)) {
    case MaskKind::full:
      return true;
    case MaskKind::causal:
      return past;
    case MaskKind::top_left:
      return k <= i;
    case MaskKind::window:
      return in_window;
    case MaskKind::padding:
      return not_padding;
    case MaskKind::left_padding:
      return k >= p.keys - p.lengths[static_cast<std::size_t>(b)];
    case MaskKind::prefix:
      return not_padding || past;
    case MaskKind::first_keys:
      return k < p.left;
    case MaskKind::document: {
      const std::size_t row = p.ids.size() == static_cast<std::size_t>(p.keys) ? 0 : static_cast<std::size_t>(b);
      const auto id = [&](Index at) {
        return p.ids[row * static_cast<std::size_t>(p.keys) + static_cast<std::size_t>(at)];
      };
      return q >= 0 && id(q) == id(k);
    }
    case MaskKind::block_sparse: {
      if (q < 0) return false;
      const Index one = p.query_blocks() * p.key_blocks();
      const Index of_head = p.map.size() == static_cast<std::size_t>(one) ? 0 : h * one;
      return p.map[static_cast<std::size_t>(of_head + q / p.block * p.key_blocks() + k / p.block)] != 0;
    }
    case MaskKind::dense:
      return p.table(p.table.extent(0) == 1 ? 0 : h, i, k);
    case MaskKind::functor:
      return functor;
    case MaskKind::both:
      return past && not_padding;
    case MaskKind::either:
      return in_window || k <= i;
    case MaskKind::negated:
      return !in_window;
    case MaskKind::composed:
      return (past && not_padding) || !functor;
    case MaskKind::two:
      return in_window && functor;
  }
  return false;
}

double alibi_slope(Index h, Index heads) {
  Index power = 1;
  while (2 * power <= heads) power *= 2;
  return h < power ? std::pow(2.0, -8.0 / power * (h + 1)) : std::pow(2.0, -4.0 / power * (2 * (h - power) + 1));
}

/// T5's bucket of 8, both directions, at most 20 apart: 0, 1 exactly, then two logarithmic ones up to 20.
Index t5_bucket(Index q, Index k) {
  const Index n = std::abs(q - k), base = k > q ? 4 : 0;
  if (n < 2) return base + n;
  return base + (std::log(n / 2.0) / std::log(20 / 2.0) * 2 < 1 ? 2 : 3);
}

double changed(const Problem& p, double s, Index b, Index h, Index q, Index k) {
  const double cap = static_cast<double>(p.cap), slope = static_cast<double>(p.slope);
  const double distance = std::abs(static_cast<double>(q) - k);
  const auto bias = [&] { return p.bias(p.bias.extent(0) == 1 ? 0 : h, q - p.origin(b), k); };
  const auto capped = [&](double x) { return cap * std::tanh(x / cap); };
  switch (p.which.at<ScoreKind>(score)) {
    case ScoreKind::none:
      return s;
    case ScoreKind::soft_cap:
      return capped(s);
    case ScoreKind::alibi:
      return s - alibi_slope(h, p.heads) * distance;
    case ScoreKind::bias:
      return s + bias();
    case ScoreKind::relative:
      return s + static_cast<double>(p.relative[static_cast<std::size_t>(t5_bucket(q, k) * p.heads + h)]);
    case ScoreKind::chain:
      return capped(s) + bias();
    case ScoreKind::two:
      return capped(s - alibi_slope(h, p.heads) * distance);
    case ScoreKind::functor:
      return s - slope * distance;
    case ScoreKind::lambda:
      return (k + h) % 5 == 0 ? -std::numeric_limits<double>::infinity() : s * 0.5;
  }
  return s;
}

/// Philox4x32-7 by the words of its paper, §3.3: a word of the block of key k.
std::uint32_t random_word(std::uint64_t seed, std::uint32_t row, Index q, Index k) {
  std::uint64_t left[2] = {static_cast<std::uint32_t>(k / 4), row};
  std::uint64_t right[2] = {static_cast<std::uint32_t>(q), 0};
  for (std::uint32_t round = 0; round < 7; ++round) {
    const std::uint64_t first = left[0] * 0xD2511F53, second = left[1] * 0xCD9E8D57;
    left[0] =
        (second >> 32) ^ right[0] ^ static_cast<std::uint32_t>(static_cast<std::uint32_t>(seed) + round * 0x9E3779B9u);
    left[1] = (first >> 32) ^ right[1] ^
              static_cast<std::uint32_t>(static_cast<std::uint32_t>(seed >> 32) + round * 0xBB67AE85u);
    right[0] = second & 0xffffffff;
    right[1] = first & 0xffffffff;
  }
  return static_cast<std::uint32_t>((k % 2 == 0 ? left : right)[k % 4 / 2]);
}

struct OracleMask {
  const Problem* problem;
  bool operator()(Index b, Index h, Index q, Index k) const { return visible(*problem, b, h, q, k); }
};
struct OracleScore {
  const Problem* problem;
  double operator()(double s, Index b, Index h, Index q, Index k) const { return changed(*problem, s, b, h, q, k); }
};

}  // namespace

double Problem::factor(Index b, Index h, Index query, Index key) const {
  const double p = double{drops};
  return random_word(seed, static_cast<std::uint32_t>(b * heads + h), query, key) < p * 4294967296. ? 0 : 1 / (1 - p);
}

std::string Case::text() const {
  std::string line;
  for (std::size_t f = 0; f < row.size(); ++f)
    line += (f == 0 ? "" : ", ") + factors()[f].name + " " + factors()[f].levels[static_cast<std::size_t>(row[f])];
  return line;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    support::Random random("cases");
    std::vector<int> levels;
    for (const FactorLevels& f : factors()) levels.push_back(static_cast<int>(f.levels.size()));
    std::vector<Case> made;
    for (auto& row : support::covering_array(levels, random, [](const auto&) { return true; }))
      made.push_back({std::move(row)});
    return made;
  }();
  return all;
}

const std::vector<Case>& cases_of_own_types() {
  static const std::vector<Case> all = [] {
    support::Random random("cases of own types");
    std::vector<Case> made;
    const auto add = [&](MaskKind m, ScoreKind s) {
      for (const Storage in : {Storage::float32, Storage::float64})
        for (std::size_t level = 0; level < factors()[isa].levels.size(); ++level) {
          Case c;
          for (const FactorLevels& f : factors()) c.row.push_back(random.below(static_cast<Index>(f.levels.size())));
          c.row[machine] = static_cast<int>(Machine::pool);
          c.row[storage] = static_cast<int>(in);
          c.row[mask] = static_cast<int>(m);
          c.row[score] = static_cast<int>(s);
          c.row[isa] = static_cast<int>(level);
          c.row[source] = static_cast<int>(made.size() % factors()[source].levels.size());
          made.push_back(c);
        }
    };
    for (std::size_t m = 0; m < factors()[mask].levels.size(); ++m) add(static_cast<MaskKind>(m), ScoreKind::none);
    for (std::size_t s = 1; s < factors()[score].levels.size(); ++s) add(MaskKind::full, static_cast<ScoreKind>(s));
    return made;
  }();
  return all;
}

Problem::Problem(Case c, support::Random& random) : which(std::move(c)) {
  queries = size_of(which, conformance::queries);
  keys = size_of(which, conformance::keys);
  head_dim = size_of(which, conformance::head_dim);
  value_dim = size_of(which, conformance::value_dim);
  batch = 1 + random.below(2);
  switch (which.at<Groups>(groups)) {
    case Groups::multi_head:
      heads = kv_heads = 1 + random.below(3);
      break;
    case Groups::grouped:
      kv_heads = 2;
      heads = random.chance(0.5) ? 4 : 6;
      break;
    case Groups::multi_query:
      kv_heads = 1;
      heads = 2 + random.below(2);
      break;
  }
  const auto shifted = [&] { return keys - queries + random.below(9) - 4; };
  origins.resize(static_cast<std::size_t>(batch));
  switch (which.at<OriginKind>(conformance::origin)) {
    case OriginKind::standard:
      std::ranges::fill(origins, keys - queries);
      break;
    case OriginKind::zero:
      std::ranges::fill(origins, 0);
      break;
    case OriginKind::shifted:
      std::ranges::fill(origins, shifted());
      break;
    case OriginKind::each:
      std::ranges::generate(origins, shifted);
      break;
  }
  // Documents are for self-attention: every query stands at one of the keys or before them.
  if (which.at<MaskKind>(mask) == MaskKind::document)
    for (Index& first : origins) first = std::min(first, keys - queries);
  const double standard = 1 / std::sqrt(static_cast<double>(head_dim));
  switch (which.at<ScaleKind>(conformance::scale)) {
    case ScaleKind::standard:
      scale = standard;
      break;
    case ScaleKind::explicit_one:
      scale = 0.7 * standard;
      break;
    case ScaleKind::negative:
      scale = -standard;
      break;
    case ScaleKind::large:
      scale = 1.5;
      break;
    case ScaleKind::zero:
      scale = 0;
      break;
  }
  left = random.below(40);
  right = random.chance(0.5) ? 0 : random.below(20);
  cap = static_cast<float>(random.uniform(1, 20));
  slope = static_cast<float>(1 + random.below(512)) / 1024;  // times a distance it is exact in float
  for (Index b = 0; b < batch; ++b) lengths.push_back(random.below(keys + 1));
  for (Index rows = random.chance(0.5) ? 1 : batch, row = 0; row < rows; ++row)
    for (Index at = 0, id = random.below(3); at < keys; ++at)
      ids.push_back(id += random.chance(0.1) ? 1 + random.below(2) : 0);
  page = 16 << random.below(3);
  pinned = random.below(20);
  ring = pinned + 1 + random.below(keys + 3);
  block = 1 + random.below(40);
  map.resize(static_cast<std::size_t>(query_blocks() * key_blocks() * (random.chance(0.5) ? 1 : heads)));
  for (std::uint8_t& x : map) x = random.chance(0.5) ? 1 : 0;
  for (Index i = 0; i < 8 * heads; ++i) relative.push_back(static_cast<float>(2 * random.normal()));
  for (Index h = 0; h < heads; ++h)
    sink.push_back(which.at<SinkKind>(conformance::sink) == SinkKind::some ? static_cast<float>(3 * random.normal())
                                                                           : -std::numeric_limits<float>::infinity());
  if (which.at<DropoutKind>(conformance::dropout) == DropoutKind::some)
    drops = static_cast<float>(random.below(1024)) / 1024;
  seed = random.engine()();
  table = mha::Tensor<bool, 3>(random.chance(0.5) ? 1 : heads, queries, keys);
  const double density = random.chance(0.5) ? 0.5 : 0.05;
  for (bool& x : table) x = random.chance(density);
  bias = mha::Tensor<double, 3>(random.chance(0.5) ? 1 : heads, queries, keys);
  for (double& x : bias) x = random.chance(0.2) ? -std::numeric_limits<double>::infinity() : 3 * random.normal();
}

Expected expected(const Problem& p) {
  Expected e;
  e.out = mha::Tensor<double, 4>(p.batch, p.queries, p.heads, p.value_dim);
  e.log_sum_exp = mha::Tensor<double, 3>(p.batch, p.heads, p.queries);
  e.magnitude = mha::Tensor<double, 3>(p.batch, p.heads, p.queries);
  const mha::Scale scaled{p.scale};
  const mha::Origin at = p.origin_argument();
  const OracleMask sees{&p};
  const OracleScore changes{&p};
  const mha::Sink sinks(p.sink);
  mha::attention_into<mha::Reference>(e.out, p.q, p.k, p.v, sees, changes, scaled, at, sinks,
                                      mha::LogSumExp(e.log_sum_exp));
  e.weights = mha::attention_weights<mha::Reference>(p.q, p.k, sees, changes, scaled, at, sinks);

  for (Index b = 0; b < p.batch; ++b)
    for (Index h = 0; h < p.heads; ++h)
      for (Index i = 0; i < p.queries; ++i)
        for (Index j = 0; j < p.keys; ++j) {
          if (!visible(p, b, h, p.origin(b) + i, j)) continue;
          // The sink is measured from the row's maximum as the logits are.
          const double sink = static_cast<double>(p.sink[static_cast<std::size_t>(h)]);
          if (std::isfinite(sink)) e.magnitude(b, h, i) = std::max(e.magnitude(b, h, i), std::abs(sink));
          double sum = 0, dot = 0;
          for (Index d = 0; d < p.head_dim; ++d) {
            const double term = p.q(b, i, h, d) * p.k(b, j, h * p.kv_heads / p.heads, d);
            dot += term;
            sum += std::abs(term);
          }
          const double logit = changed(p, p.scale * dot, b, h, p.origin(b) + i, j);
          if (!std::isfinite(logit)) continue;
          double& most = e.magnitude(b, h, i);
          most = std::max(most, 2 * std::abs(p.scale) * sum + std::abs(logit));
        }
  if (p.which.at<DropoutKind>(dropout) == DropoutKind::some)
    for (Index b = 0; b < p.batch; ++b)
      for (Index h = 0; h < p.heads; ++h)
        for (Index i = 0; i < p.queries; ++i) {
          for (Index j = 0; j < p.keys; ++j) e.weights(b, h, i, j) *= p.factor(b, h, p.origin(b) + i, j);
          for (Index d = 0; d < p.value_dim; ++d) {
            double sum = 0;
            for (Index j = 0; j < p.keys; ++j)
              if (e.weights(b, h, i, j) != 0) sum += e.weights(b, h, i, j) * p.v(b, j, h * p.kv_heads / p.heads, d);
            e.out(b, i, h, d) = sum;
          }
        }
  for (const double x : p.v) e.largest_value = std::max(e.largest_value, std::abs(x));
  e.largest_value /= 1 - double{p.drops};
  return e;
}

}  // namespace conformance
