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

/// Refuses a file with both rope_scaling and rope_parameters: which of them transformers reads depends on its version.
inline void refuse_two_scalings(const ConfigFile& file) {
  const auto* const scaling = file.find("rope_scaling");
  if (file.find("rope_parameters") == nullptr || scaling == nullptr) return;
  if (!(scaling->is_object() && scaling->empty()))
    file.fail("there are both 'rope_parameters' and 'rope_scaling', expected one of them");
}

/// Whose parameters they are: those of all layers; of all of a Phi-3, which reads some otherwise; of a kind of layers.
enum class RotaryOf { all, phi3, kind };

/// Reads the rotary positions of one kind of layers: `parameters`, which messages call `key`, is an object or null.
class RotaryReader {
 public:
  RotaryReader(const ConfigFile& file, const ConfigFile::Json* parameters, std::string key, Index head_dim,
               Index positions, RotaryOf of)
      : file_(file),
        parameters_(parameters),
        key_(std::move(key)),
        head_dim_(head_dim),
        positions_(positions),
        of_(of) {
    if (parameters_ != nullptr && !parameters_->is_object()) file_.refuse(key_.c_str(), *parameters_, "an object");
    for (const char* kind : {"full_attention", "sliding_attention"})
      if (member(kind) != nullptr)
        file_.fail("'" + key_ + "' has '" + kind + "', expected one set and none for a kind of layers");
  }

  /// The base stands there as rope_theta, or elsewhere in the file.
  RotaryConfig read(double base) const {
    RotaryConfig c;
    c.base = positive_of("rope_theta", member("rope_theta") != nullptr ? number("rope_theta") : base);
    read_share(c);
    const auto* const type = member("rope_type") ? member("rope_type") : member("type");
    if (type == nullptr) return c;
    c.type = file_.text_of(*type, "rope_type");
    if (of_ == RotaryOf::phi3) {
      if (c.type == "su" || c.type == "yarn") c.type = "longrope";  // as its first files call it
      if (c.type != "default" && c.type != "longrope")
        file_.refuse("rope_type", *type, "\"default\" or \"longrope\", or \"su\" or \"yarn\", which mean \"longrope\"");
    }
    if (c.type == "default") return c;
    if (c.type == "linear") {
      c.scaling = LinearScaling{.factor = positive("factor")};
    } else if (c.type == "dynamic") {
      c.factor = positive("factor");
      c.trained = positions_;
    } else if (c.type == "llama3") {
      read_llama3(c);
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
    if (!(value > 0)) file_.fail("'" + std::string(name) + "' is " + number_text(value) + ", expected more than 0");
    return value;
  }
  double positive(const char* name) const { return positive_of(name, number(name)); }

  /// Of one set for all layers what stands beside it counts first; of a kind of layers only its own. A Phi-3 has one
  /// beside it always.
  const ConfigFile::Json* original() const {
    const auto* const beside = of_ == RotaryOf::kind ? nullptr : file_.find(original_name);
    return beside != nullptr || of_ == RotaryOf::phi3 ? beside : member(original_name);
  }
  Index original_length() const {
    if (const auto* const length = original()) return file_.positive_of(*length, original_name);
    return of_ == RotaryOf::phi3 ? phi3_original : positions_;
  }

  void read_share(RotaryConfig& c) const {
    const auto* const own = member("partial_rotary_factor");
    const auto* const share = own != nullptr ? own : file_.find("partial_rotary_factor");
    if (share == nullptr || *share == 1.0) {
      if (head_dim_ % 2 != 0)
        file_.fail("a head has " + std::to_string(head_dim_) +
                   " coordinates, expected an even number: they turn in pairs");
      return;
    }
    if (of_ != RotaryOf::phi3) file_.refuse("partial_rotary_factor", *share, "1.0");
    const double turning = file_.number_of(*share, "partial_rotary_factor") * head_dim_;
    c.dims = turning > 0 && turning <= head_dim_ ? static_cast<Index>(turning) : 0;
    if (c.dims == 0 || c.dims % 2 != 0)
      file_.refuse("partial_rotary_factor", *share,
                   "a share of the " + std::to_string(head_dim_) + " coordinates of a head that is an even number");
  }

  /// The error is the file's, and not that of a layer which is made of it.
  void require_below(const char* low, double a, const char* high, double b) const {
    if (!(a < b))
      file_.fail("'" + std::string(low) + "' is " + number_text(a) + ", expected less than '" + high + "', which is " +
                 number_text(b));
  }

  void read_llama3(RotaryConfig& c) const {
    const double factor = positive("factor"), low = number("low_freq_factor"), high = number("high_freq_factor");
    if (!(low >= 0)) file_.fail("'low_freq_factor' is " + number_text(low) + ", expected at least 0");
    require_below("low_freq_factor", low, "high_freq_factor", high);
    c.scaling = Llama3Scaling{
        .factor = factor, .low_frequency = low, .high_frequency = high, .original_length = double(original_length())};
  }

  void read_yarn(RotaryConfig& c) const {
    // Files without a factor have both lengths.
    const bool lengths = member("factor") == nullptr && original() != nullptr;
    const double trained = original_length(), factor = lengths ? positions_ / trained : positive("factor");
    const auto grown = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
    if (!(c.base > 1)) file_.fail("'rope_theta' is " + number_text(c.base) + ", expected more than 1 with \"yarn\"");
    YarnScaling yarn{.factor = factor, .original_length = trained};
    const auto turns = [&](const char* name, double otherwise) {  // 0 is as nothing
      const double given = number_or(name, 0);
      return given == 0 ? otherwise : positive_of(name, given);
    };
    yarn.fast = turns("beta_fast", yarn.fast);
    yarn.slow = turns("beta_slow", yarn.slow);
    require_below("beta_slow", yarn.slow, "beta_fast", yarn.fast);
    const double scale = number_or("mscale", 0), scale_of_all = number_or("mscale_all_dim", 0);
    if (scale != 0 && scale_of_all != 0) yarn.attention_factor = grown(scale) / grown(scale_of_all);
    if (member("attention_factor") != nullptr) yarn.attention_factor = number("attention_factor");
    positive_of("attention_factor", yarn.magnitude());
    if (const auto* const rounded = member("truncate")) {
      if (!rounded->is_boolean()) file_.refuse("truncate", *rounded, "true or false");
      yarn.rounded = rounded->get<bool>();
      // transformers 5 looks for it beside the kinds alone.
      if (of_ == RotaryOf::kind && !yarn.rounded) file_.refuse("truncate", *rounded, "true for a kind of layers");
    }
    c.scaling = yarn;
  }

  void read_longrope(RotaryConfig& c) const {
    c.trained = original_length();
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

  static constexpr const char* original_name = "original_max_position_embeddings";
  static constexpr Index phi3_original = 4096;

  const ConfigFile& file_;
  const ConfigFile::Json* parameters_;
  std::string key_;
  Index head_dim_, positions_;
  RotaryOf of_;
};

/// Those that all layers share. transformers 5 keeps all of it under rope_parameters; before, rope_theta and
/// rope_scaling were separate.
inline RotaryConfig read_rotary(const ConfigFile& file, Index head_dim, Index positions, RotaryOf of = RotaryOf::all) {
  refuse_two_scalings(file);
  const auto* const own = file.find("rope_parameters");
  const char* const key = own != nullptr ? "rope_parameters" : "rope_scaling";
  const double base = file.find("rope_theta") != nullptr ? file.number("rope_theta") : RotaryConfig{}.base;
  return RotaryReader(file, own != nullptr ? own : file.find(key), key, head_dim, positions, of).read(base);
}

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
