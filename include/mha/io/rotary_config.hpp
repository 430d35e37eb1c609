// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "../core/check.hpp"
#include "../policy/any_scaling.hpp"
#include "../policy/position.hpp"
#include "config_file.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The rotary positions of a config.json.
struct RotaryConfig {
  double base = 10000;
  Index dims = 0;  ///< coordinates of a head that turn, from the first on: partial_rotary_factor; 0 for all
  std::string type = "default";  ///< or "linear", "dynamic", "llama3", "yarn", "longrope"
  AnyScaling scaling;            ///< of that type, for texts of `trained` tokens at most where it depends on the length
  Index trained = 0;             ///< "dynamic", "longrope": the longest text without more stretching
  double factor = 1;             ///< "dynamic": how much the frequencies stretch for each further length as trained
  AnyScaling beyond;             ///< "longrope": for longer texts

  /// The policy for texts of at most `length` tokens. Two types depend on it, and only on what is given here, so that a
  /// key that a cache keeps is turned as one that is computed anew: "longrope" takes its long factors where `length` is
  /// above the original one, and "dynamic" is NtkScaling by 1 + factor · (length / trained − 1) where it is above the
  /// trained one. Hugging Face's model chooses by the text that it has so far: the results are the same for a text of
  /// exactly `length` tokens at once, and of "longrope" for all texts on the same side of the original length.
  ///
  /// Errors    ShapeError if length is less than 1
  Rotary<Halves, AnyScaling> rotary(Index length) const {
    detail::require(length > 0, "rotary: length is ", length, ", it must be at least 1");
    Rotary<Halves, AnyScaling> turns{.base = base, .dims = dims, .scaling = scaling};
    if (trained == 0 || length <= trained) return turns;
    if (type == "dynamic")
      turns.scaling = NtkScaling{.factor = 1 + factor * (double(length) / trained - 1)};
    else
      turns.scaling = beyond;
    return turns;
  }
};

namespace detail {

/// Reads the rotary positions of one kind of layers: `parameters`, which messages call `key`, is an object or null.
class RotaryReader {
 public:
  RotaryReader(const ConfigFile& file, const ConfigFile::Json* parameters, std::string key, Index head_dim,
               Index positions)
      : file_(file), parameters_(parameters), key_(std::move(key)), head_dim_(head_dim), positions_(positions) {
    if (parameters_ != nullptr && !parameters_->is_object()) file_.refuse(key_.c_str(), *parameters_, "an object");
  }

  /// The base stands there as rope_theta, or elsewhere in the file.
  RotaryConfig read(double base, bool partial = false) const {
    RotaryConfig c;
    c.base = positive_of("rope_theta", member("rope_theta") != nullptr ? number("rope_theta") : base);
    read_share(c, partial);
    const auto* const type = member("rope_type") ? member("rope_type") : member("type");
    if (type == nullptr) return c;
    c.type = file_.text_of(*type, "rope_type");
    if (c.type == "su") c.type = "longrope";  // as Phi-3's first files call it
    if (c.type == "default") return c;
    if (c.type == "linear") {
      c.scaling = LinearScaling{.factor = positive("factor")};
    } else if (c.type == "dynamic") {
      c.factor = positive("factor");
      c.trained = positions_;
    } else if (c.type == "llama3") {
      c.scaling = Llama3Scaling{.factor = positive("factor"),
                                .low_frequency = number("low_freq_factor"),
                                .high_frequency = number("high_freq_factor"),
                                .original_length = positive("original_max_position_embeddings")};
    } else if (c.type == "yarn") {
      read_yarn(c);
    } else if (c.type == "longrope") {
      read_longrope(c);
    } else {
      file_.refuse("rope_type", *type, "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\"");
    }
    return c;
  }

 private:
  const ConfigFile::Json* member(const char* name) const {
    return parameters_ != nullptr ? ConfigFile::found_in(*parameters_, name) : nullptr;
  }
  double number(const char* name) const {
    if (member(name) == nullptr) file_.fail("'" + key_ + "' has no '" + name + "'");
    return file_.number_of(*member(name), name);
  }
  double number_or(const char* name, double otherwise) const {
    return member(name) == nullptr ? otherwise : number(name);
  }
  double positive_of(const char* name, double value) const {
    if (!(value > 0)) file_.fail("'" + std::string(name) + "' is " + std::to_string(value) + ", expected more than 0");
    return value;
  }
  double positive(const char* name) const { return positive_of(name, number(name)); }

  void read_share(RotaryConfig& c, bool partial) const {
    const auto* const own = member("partial_rotary_factor");
    const auto* const share = own != nullptr ? own : file_.find("partial_rotary_factor");
    if (share == nullptr || *share == 1.0) return;
    if (!partial) file_.refuse("partial_rotary_factor", *share, "1.0");
    const double turning = file_.number_of(*share, "partial_rotary_factor") * head_dim_;
    c.dims = turning > 0 && turning <= head_dim_ ? static_cast<Index>(turning) : 0;
    if (c.dims == 0 || c.dims % 2 != 0)
      file_.refuse("partial_rotary_factor", *share,
                   "a share of the " + std::to_string(head_dim_) + " coordinates of a head that is an even number");
  }

  void read_yarn(RotaryConfig& c) const {
    // Files without a factor have both lengths.
    const bool lengths = member("factor") == nullptr && member("original_max_position_embeddings") != nullptr;
    const double factor = lengths ? positions_ / positive("original_max_position_embeddings") : positive("factor");
    const auto grown = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
    YarnScaling yarn{.factor = factor, .original_length = number_or("original_max_position_embeddings", positions_)};
    yarn.fast = number_or("beta_fast", yarn.fast);
    yarn.slow = number_or("beta_slow", yarn.slow);
    const double scale = number_or("mscale", 0), scale_of_all = number_or("mscale_all_dim", 0);
    if (scale != 0 && scale_of_all != 0) yarn.attention_factor = grown(scale) / grown(scale_of_all);
    if (member("attention_factor") != nullptr) yarn.attention_factor = number("attention_factor");
    if (const auto* const rounded = member("truncate")) {
      if (!rounded->is_boolean()) file_.refuse("truncate", *rounded, "true or false");
      yarn.rounded = rounded->get<bool>();
    }
    c.scaling = yarn;
  }

  void read_longrope(RotaryConfig& c) const {
    // Phi-3's files have it beside max_position_embeddings, others among the parameters.
    const auto* const own = file_.find("original_max_position_embeddings");
    const auto* const original = own != nullptr ? own : member("original_max_position_embeddings");
    c.trained = original != nullptr ? file_.positive_of(*original, "original_max_position_embeddings") : positions_;
    const double factor = member("factor") != nullptr ? positive("factor") : double(positions_) / c.trained;
    LongRopeScaling longrope;
    if (member("attention_factor") != nullptr)
      longrope.attention_factor = positive("attention_factor");
    else if (factor > 1 && c.trained > 1)
      longrope.attention_factor = std::sqrt(1 + std::log(factor) / std::log(double(c.trained)));
    const Index pairs = (c.dims == 0 ? head_dim_ : c.dims) / 2;
    longrope.factors = factors("short_factor", pairs);
    c.scaling = longrope;
    longrope.factors = factors("long_factor", pairs);
    c.beyond = longrope;
  }
  std::vector<double> factors(const char* name, Index pairs) const {
    if (member(name) == nullptr) file_.fail("'" + key_ + "' has no '" + name + "'");
    const auto& list = *member(name);
    if (!list.is_array()) file_.refuse(name, list, "a list of " + std::to_string(pairs) + " numbers");
    if (list.size() != static_cast<std::size_t>(pairs))
      file_.fail("'" + std::string(name) + "' has " + std::to_string(list.size()) + " numbers, expected " +
                 std::to_string(pairs) + ", one for each pair that turns");
    std::vector<double> all;
    for (const auto& one : list) all.push_back(positive_of(name, file_.number_of(one, name)));
    return all;
  }

  const ConfigFile& file_;
  const ConfigFile::Json* parameters_;
  std::string key_;
  Index head_dim_, positions_;
};

/// Those that all layers share. transformers 5 keeps all of it under rope_parameters; before, rope_theta and
/// rope_scaling stood apart.
inline RotaryConfig read_rotary(const ConfigFile& file, Index head_dim, Index positions, bool partial = false) {
  const auto* const own = file.find("rope_parameters");
  const char* const key = own != nullptr ? "rope_parameters" : "rope_scaling";
  const double base = file.find("rope_theta") != nullptr ? file.number("rope_theta") : RotaryConfig{}.base;
  return RotaryReader(file, own != nullptr ? own : file.find(key), key, head_dim, positions).read(base, partial);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
