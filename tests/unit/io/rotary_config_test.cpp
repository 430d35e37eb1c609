// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <mha/io/rotary_config.hpp>

#include "scratch.hpp"

namespace {

using mha::AnyScaling;
using mha::ConfigFile;
using mha::Index;
using mha::LongRopeScaling;
using mha::NtkScaling;
using mha::RotaryConfig;
using Json = nlohmann::json;

/// Of heads of 8 coordinates and 512 positions.
RotaryConfig read(const Json& config, bool partial = false) {
  return mha::detail::read_rotary(ConfigFile("c", config.dump()), 8, 512, partial);
}
RotaryConfig read_parameters(const Json& parameters, bool partial = false) {
  return read({{"rope_parameters", parameters}}, partial);
}
std::string says(const Json& config, bool partial = false) {
  return mha_test::message_of<mha::SafetensorsError>([&] { read(config, partial); });
}
std::string says_of(const Json& parameters, bool partial = false) {
  return says({{"rope_parameters", parameters}}, partial);
}

TEST(RotaryConfig, TheBaseStandsInOneOfTwoPlaces) {
  EXPECT_EQ(read(Json::object()).base, 10000);
  EXPECT_EQ(read(Json::object()).type, "default");
  EXPECT_EQ(read({{"rope_theta", 5e5}}).base, 5e5);
  EXPECT_EQ(read({{"rope_theta", 5e5}, {"rope_scaling", nullptr}}).base, 5e5);
  EXPECT_EQ(read({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", 1e6}}}}).base, 1e6);
  EXPECT_EQ(read({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_type", "default"}}}}).base, 5e5);
  EXPECT_EQ(says_of({{"rope_theta", 0}}), "c: 'rope_theta' is 0.000000, expected more than 0");
  EXPECT_EQ(says_of({{"rope_theta", "1"}}), "c: 'rope_theta' is \"1\", expected a number");
  EXPECT_EQ(says_of(3), "c: 'rope_parameters' is 3, expected an object");
  EXPECT_EQ(says({{"rope_scaling", "yarn"}}), "c: 'rope_scaling' is \"yarn\", expected an object");
}

TEST(RotaryConfig, APartOfTheHeadTurnsWhereTheFamilyHasThat) {
  EXPECT_EQ(read_parameters({{"partial_rotary_factor", 1.0}}).dims, 0);
  EXPECT_EQ(read_parameters({{"partial_rotary_factor", 0.75}}, true).dims, 6);
  EXPECT_EQ(read({{"partial_rotary_factor", 0.25}}, true).dims, 2);
  EXPECT_EQ(read({{"partial_rotary_factor", 0.25}, {"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, true).dims,
            4);
  EXPECT_EQ(read_parameters({{"partial_rotary_factor", 0.5}}, true).rotary(1).dims, 4);
  EXPECT_EQ(says_of({{"partial_rotary_factor", 0.5}}), "c: 'partial_rotary_factor' is 0.5, expected 1.0");
  for (const Json& share : {Json(0.4), Json(0), Json(-0.5), Json(1.5)})
    EXPECT_EQ(says_of({{"partial_rotary_factor", share}}, true),
              "c: 'partial_rotary_factor' is " + share.dump() +
                  ", expected a share of the 8 coordinates of a head that is an even number");
  EXPECT_EQ(says_of({{"partial_rotary_factor", "all"}}, true),
            "c: 'partial_rotary_factor' is \"all\", expected a number");
}

TEST(RotaryConfig, ScalingsThatDoNotDependOnTheLength) {
  const auto scaling = [](const Json& parameters) {
    const RotaryConfig c = read_parameters(parameters);
    EXPECT_EQ(c.rotary(1).scaling, c.rotary(100'000).scaling);
    return c.rotary(1).scaling;
  };
  EXPECT_EQ(scaling({{"rope_type", "linear"}, {"factor", 4}}), AnyScaling(mha::LinearScaling{.factor = 4.0}));
  EXPECT_EQ(scaling({{"rope_type", "llama3"},
                     {"factor", 32},
                     {"low_freq_factor", 1.5},
                     {"high_freq_factor", 4.5},
                     {"original_max_position_embeddings", 64}}),
            (mha::Llama3Scaling{.factor = 32, .low_frequency = 1.5, .high_frequency = 4.5, .original_length = 64}));
  EXPECT_EQ(scaling({{"type", "yarn"}, {"factor", 4}}), (mha::YarnScaling{.factor = 4.0, .original_length = 512.0}));
}

// By 1 + 4 · (L / 512 − 1) for texts longer than 512.
TEST(RotaryConfig, DynamicStretchesForTheLongestText) {
  const RotaryConfig c = read_parameters({{"rope_type", "dynamic"}, {"factor", 4}, {"rope_theta", 1e6}});
  EXPECT_EQ(c.type, "dynamic");
  for (const Index length : {1, 512}) EXPECT_EQ(c.rotary(length).scaling, AnyScaling());
  EXPECT_EQ(c.rotary(768).scaling, AnyScaling(NtkScaling{.factor = 3.0}));
  EXPECT_EQ(c.rotary(1024).scaling, AnyScaling(NtkScaling{.factor = 5.0}));
  EXPECT_EQ(c.rotary(1024).base, 1e6);
  EXPECT_EQ(mha_test::message_of<mha::ShapeError>([&] { c.rotary(0); }), "rotary: length is 0, it must be at least 1");
  EXPECT_EQ(says_of({{"rope_type", "dynamic"}}), "c: 'rope_parameters' has no 'factor'");
  EXPECT_EQ(says_of({{"rope_type", "dynamic"}, {"factor", -1}}), "c: 'factor' is -1.000000, expected more than 0");
}

TEST(RotaryConfig, LongRopeHasFactorsForShortAndForLongTexts) {
  const Json longrope{{"rope_type", "longrope"}, {"short_factor", {1, 1.5, 2, 2}}, {"long_factor", {2, 3, 4, 8}}};
  Json config{{"original_max_position_embeddings", 64}, {"rope_parameters", longrope}};
  const double grown = std::sqrt(1 + std::log(8.0) / std::log(64.0));
  const LongRopeScaling near{.factors = {1, 1.5, 2, 2}, .attention_factor = grown},
      far{.factors = {2, 3, 4, 8}, .attention_factor = grown};
  const auto expect = [&](const RotaryConfig& c, Index original, const AnyScaling& a, const AnyScaling& b) {
    EXPECT_EQ(c.type, "longrope");
    EXPECT_EQ(c.rotary(1).scaling, a);
    EXPECT_EQ(c.rotary(original).scaling, a);
    EXPECT_EQ(c.rotary(original + 1).scaling, b);
  };
  expect(read(config), 64, near, far);
  config["rope_parameters"]["original_max_position_embeddings"] = 32;  // the other one counts
  expect(read(config), 64, near, far);
  config.erase("original_max_position_embeddings");
  const double more = std::sqrt(1 + std::log(16.0) / std::log(32.0));
  expect(read(config), 32, LongRopeScaling{near.factors, more}, LongRopeScaling{far.factors, more});
  config["rope_parameters"]["factor"] = 2;
  const double less = std::sqrt(1 + std::log(2.0) / std::log(32.0));
  expect(read(config), 32, LongRopeScaling{near.factors, less}, LongRopeScaling{far.factors, less});
  config["rope_parameters"]["attention_factor"] = 1.25;
  expect(read(config), 32, LongRopeScaling{near.factors, 1.25}, LongRopeScaling{far.factors, 1.25});
  expect(read_parameters(longrope), 512, LongRopeScaling{near.factors}, LongRopeScaling{far.factors});

  // As the first files of Phi-3, of a part of the head.
  const Json old{{"rope_scaling", {{"type", "su"}, {"short_factor", {1, 1}}, {"long_factor", {1, 2}}}},
                 {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(read(old, true).rotary(513).scaling, AnyScaling(LongRopeScaling{.factors = {1, 2}}));
}

TEST(RotaryConfig, FactorsThatDoNotFitAreOneSentence) {
  const auto with = [](const Json& factors) {
    return says_of({{"rope_type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", factors}});
  };
  EXPECT_EQ(with({1, 2, 3, 4}), "");
  EXPECT_EQ(with(nullptr), "c: 'rope_parameters' has no 'long_factor'");
  EXPECT_EQ(with({1, 2, 3}), "c: 'long_factor' has 3 numbers, expected 4, one for each pair that turns");
  EXPECT_EQ(with(4), "c: 'long_factor' is 4, expected a list of 4 numbers");
  EXPECT_EQ(with({1, 2, 0, 4}), "c: 'long_factor' is 0.000000, expected more than 0");
  EXPECT_EQ(with({1, 2, "3", 4}), "c: 'long_factor' is \"3\", expected a number");
  EXPECT_EQ(says_of({{"rope_type", "longrope"},
                     {"short_factor", {1, 1, 1, 1}},
                     {"original_max_position_embeddings", 0},
                     {"long_factor", {1, 1, 1, 1}}}),
            "c: 'original_max_position_embeddings' is 0, expected an integer from 1 to 2147483647");
  EXPECT_EQ(
      says_of({{"rope_type", "proportional"}}),
      "c: 'rope_type' is \"proportional\", expected \"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or "
      "\"longrope\"");
}

}  // namespace
