// SPDX-License-Identifier: Apache-2.0
#include "sampler.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace generate {
namespace {

void require(bool holds, const char* sentence) {
  if (!holds) throw std::runtime_error(sentence);
}

/// The order of the cuts: probabilities of different logits may be equal, as at a high temperature.
struct Likelier {
  std::span<const float> logits;
  float logit(const Candidate& c) const { return logits[static_cast<std::size_t>(c.id)]; }
  bool operator()(const Candidate& a, const Candidate& b) const { return logit(a) > logit(b); }
};

double sum_of(const std::vector<Candidate>& all) {
  double sum = 0;
  for (const Candidate& c : all) sum += c.probability;
  return sum;
}

void keep_top_k(std::vector<Candidate>& all, int k, const Likelier& likelier) {
  if (k == 0 || all.size() <= static_cast<std::size_t>(k)) return;
  std::vector<Candidate> sorted = all;
  const auto last = sorted.begin() + (k - 1);
  std::nth_element(sorted.begin(), last, sorted.end(), likelier);
  std::erase_if(all, [&](const Candidate& c) { return likelier(*last, c); });
}

void keep_top_p(std::vector<Candidate>& all, double p, const Likelier& likelier) {
  if (p >= 1) return;
  std::stable_sort(all.begin(), all.end(), likelier);
  const double enough = p * sum_of(all);
  double sum = 0;
  std::size_t kept = 0;
  while (kept < all.size() && (kept == 0 || sum < enough)) sum += all[kept++].probability;
  all.resize(kept);
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

}  // namespace

std::vector<Candidate> candidates(std::span<const float> logits, const Sampling& how) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  require(likeliest != logits.end() && std::isfinite(*likeliest) &&
              std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }),
          "the model's logits are not numbers");
  if (how.temperature == 0) return {{static_cast<int>(likeliest - logits.begin()), 1.0}};

  // The softmax, as yet without its denominator: cuts compare, and the sum may be taken of what they leave.
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > -infinity)
      all.push_back({static_cast<int>(i), std::exp((double{logits[i]} - double{*likeliest}) / how.temperature)});
  keep_top_k(all, how.top_k, {logits});
  keep_top_p(all, how.top_p, {logits});
  const double sum = sum_of(all);
  for (Candidate& c : all) c.probability /= sum;
  return all;
}

Sampler::Sampler(const Sampling& how) : how_(how), draw_(how.seed) {
  require(how.temperature >= 0 && std::isfinite(how.temperature), "the temperature must be a number from 0 on");
  require(how.top_k >= 0, "top-k must be a number of tokens, or 0 for all");
  require(how.top_p > 0 && how.top_p <= 1, "top-p must be a probability above 0 and at most 1");
}

int Sampler::operator()(std::span<const float> logits) {
  const std::vector<Candidate> all = candidates(logits, how_);
  // 53 bits as a number in [0, 1); std::uniform_real_distribution may differ from library to library.
  double rest = static_cast<double>(draw_() >> 11) * 0x1p-53;
  int last = all.front().id;
  for (const Candidate& c : all) {
    if (rest < c.probability) return c.id;
    rest -= c.probability;
    if (c.probability > 0) last = c.id;
  }
  return last;  // rounding left a rest
}

}  // namespace generate
