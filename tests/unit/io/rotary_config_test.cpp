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

using Of = mha::detail::RotaryOf;

/// Of heads of 8 coordinates and 512 positions.
RotaryConfig read(const Json& config, Of of = Of::all) {
  return mha::detail::read_rotary(ConfigFile("c", config.dump()), 8, 512, of);
}
RotaryConfig read_parameters(const Json& parameters, Of of = Of::all) {
  return read({{"rope_parameters", parameters}}, of);
}
std::string says(const Json& config, Of of = Of::all) {
  return mha_test::message_of<mha::SafetensorsError>([&] { read(config, of); });
}
std::string says_of(const Json& parameters, Of of = Of::all) { return says({{"rope_parameters", parameters}}, of); }

TEST(RotaryConfig, TheBaseStandsInOneOfTwoPlaces) {
  EXPECT_EQ(read(Json::object()).base, 10000);
  EXPECT_EQ(read(Json::object()).type, "default");
  EXPECT_EQ(read({{"rope_theta", 5e5}}).base, 5e5);
  EXPECT_EQ(read({{"rope_theta", 5e5}, {"rope_scaling", nullptr}}).base, 5e5);
  EXPECT_EQ(read({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_theta", 1e6}}}}).base, 1e6);
  EXPECT_EQ(read({{"rope_theta", 5e5}, {"rope_parameters", {{"rope_type", "default"}}}}).base, 5e5);
  EXPECT_EQ(says_of({{"rope_theta", 0}}), "c: 'rope_theta' is 0, expected more than 0");
  EXPECT_EQ(says_of({{"rope_theta", "1"}}), "c: 'rope_theta' is \"1\", expected a number");
  EXPECT_EQ(says_of(3), "c: 'rope_parameters' is 3, expected an object");
  EXPECT_EQ(says({{"rope_scaling", "yarn"}}), "c: 'rope_scaling' is \"yarn\", expected an object");
}

TEST(RotaryConfig, APartOfTheHeadTurnsWhereTheFamilyHasThat) {
  EXPECT_EQ(read_parameters({{"partial_rotary_factor", 1.0}}).dims, 0);
  EXPECT_EQ(read_parameters({{"partial_rotary_factor", 0.75}}, Of::phi3).dims, 6);
  EXPECT_EQ(read({{"partial_rotary_factor", 0.25}}, Of::phi3).dims, 2);
  EXPECT_EQ(
      read({{"partial_rotary_factor", 0.25}, {"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, Of::phi3).dims, 4);
  EXPECT_EQ(read_parameters({{"partial_rotary_factor", 0.5}}, Of::phi3).rotary(1).dims, 4);
  EXPECT_EQ(says_of({{"partial_rotary_factor", 0.5}}), "c: 'partial_rotary_factor' is 0.5, expected 1.0");
  for (const Json& share : {Json(0.4), Json(0), Json(-0.5), Json(1.5)})
    EXPECT_EQ(says_of({{"partial_rotary_factor", share}}, Of::phi3),
              "c: 'partial_rotary_factor' is " + share.dump() +
                  ", expected a share of the 8 coordinates of a head that is an even number");
  EXPECT_EQ(says_of({{"partial_rotary_factor", "all"}}, Of::phi3),
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
  EXPECT_EQ(says_of({{"rope_type", "dynamic"}, {"factor", -1}}), "c: 'factor' is -1, expected more than 0");
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
  config = {{"original_max_position_embeddings", 100}, {"rope_parameters", longrope}};
  const double broken = std::sqrt(1 + std::log(5.12) / std::log(100.0));
  expect(read(config), 100, LongRopeScaling{near.factors, broken}, LongRopeScaling{far.factors, broken});
  config["original_max_position_embeddings"] = 1;  // its logarithm is 0
  expect(read(config), 1, LongRopeScaling{near.factors}, LongRopeScaling{far.factors});
}

// The first files call it "su", others "yarn"; both mean "longrope". 4096 tokens unless the file says otherwise beside
// the parameters.
TEST(RotaryConfig, Phi3HasLongRopeByThreeNames) {
  for (const char* type : {"su", "yarn", "longrope"}) {
    Json old{{"rope_scaling", {{"type", type}, {"short_factor", {1, 1}}, {"long_factor", {1, 2}}}},
             {"partial_rotary_factor", 0.5}};
    const auto expect = [&](Index original, const LongRopeScaling& near, const LongRopeScaling& far) {
      const RotaryConfig c = read(old, Of::phi3);
      EXPECT_EQ(c.type, "longrope");
      EXPECT_EQ(c.rotary(original).scaling, AnyScaling(near));
      EXPECT_EQ(c.rotary(original + 1).scaling, AnyScaling(far));
    };
    expect(4096, {.factors = {1, 1}}, {.factors = {1, 2}});
    old["rope_scaling"]["original_max_position_embeddings"] = 64;
    expect(4096, {.factors = {1, 1}}, {.factors = {1, 2}});
    old["original_max_position_embeddings"] = 64;
    const double grown = std::sqrt(1 + std::log(8.0) / std::log(64.0));
    expect(64, {{1, 1}, grown}, {{1, 2}, grown});
  }
  EXPECT_EQ(read_parameters({{"rope_type", "default"}}, Of::phi3).type, "default");
  for (const std::string type : {"linear", "dynamic", "llama3"})
    EXPECT_EQ(says_of({{"rope_type", type}, {"factor", 2}}, Of::phi3),
              "c: 'rope_type' is \"" + type +
                  "\", expected \"default\" or \"longrope\", or \"su\" or \"yarn\", which mean \"longrope\"");
  EXPECT_EQ(
      says_of({{"type", "su"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 1, 1, 1}}}),
      "c: 'rope_type' is \"su\", expected \"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\"");
}

// Beside the parameters it counts first, unless they are of a kind of layers; where there is none it is all positions.
TEST(RotaryConfig, TheOriginalLengthStandsInOneOfTwoPlaces) {
  const Json llama3{{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
      yarn{{"rope_type", "yarn"}, {"factor", 2}},
      longrope{{"rope_type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {2, 2, 2, 2}}};
  for (const Json& parameters : {llama3, yarn, longrope}) {
    const auto length = [](const Json& config, Of of) -> double {
      const RotaryConfig c = read(config, of);
      if (c.type == "longrope") return c.trained;
      if (c.type == "yarn") return std::get<mha::YarnScaling>(c.scaling.one).original_length.value;
      return std::get<mha::Llama3Scaling>(c.scaling.one).original_length;
    };
    Json config{{"rope_parameters", parameters}};
    EXPECT_EQ(length(config, Of::all), 512);
    config["rope_parameters"]["original_max_position_embeddings"] = 32;
    EXPECT_EQ(length(config, Of::all), 32);
    config["original_max_position_embeddings"] = 64;
    EXPECT_EQ(length(config, Of::all), 64);
    EXPECT_EQ(length(config, Of::kind), 32);
    config["rope_parameters"].erase("original_max_position_embeddings");
    EXPECT_EQ(length(config, Of::kind), 512);
  }
  // Without a factor it is that of both lengths.
  const Json lengths{{"original_max_position_embeddings", 64}, {"rope_scaling", {{"type", "yarn"}}}};
  EXPECT_EQ(read(lengths).scaling, AnyScaling(mha::YarnScaling{.factor = 8.0, .original_length = 64.0}));
  EXPECT_EQ(says_of({{"type", "yarn"}}), "c: 'rope_parameters' has no 'factor'");
  const Json broken{{"original_max_position_embeddings", 100}, {"rope_scaling", {{"type", "yarn"}}}};
  EXPECT_EQ(read(broken).scaling, AnyScaling(mha::YarnScaling{.factor = 5.12, .original_length = 100.0}));
}

// As transformers reads them: one number alone says nothing of the others.
TEST(RotaryConfig, NumbersOfYarnThatStandAlone) {
  const auto with = [](const char* key, const Json& value) {
    return read_parameters({{"rope_type", "yarn"}, {"factor", 4}, {key, value}}).scaling;
  };
  const mha::YarnScaling plain{.factor = 4.0, .original_length = 512.0};
  EXPECT_EQ(with("mscale", 0.5), AnyScaling(plain));
  EXPECT_EQ(with("mscale_all_dim", 0.5), AnyScaling(plain));
  mha::YarnScaling of_fast = plain, of_slow = plain, exact = plain;
  of_fast.fast = 16;
  of_slow.slow = 2;
  exact.rounded = false;
  EXPECT_EQ(with("beta_fast", 16), AnyScaling(of_fast));
  EXPECT_EQ(with("beta_slow", 2), AnyScaling(of_slow));
  EXPECT_EQ(with("truncate", false), AnyScaling(exact));
  mha::YarnScaling both = plain;
  both.attention_factor = (0.1 * 0.5 * std::log(4.0) + 1) / (0.1 * 2 * std::log(4.0) + 1);
  EXPECT_EQ(read_parameters({{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 0.5}, {"mscale_all_dim", 2}}).scaling,
            AnyScaling(both));
}

TEST(RotaryConfig, TheTypesNewerNameCounts) {
  EXPECT_EQ(read_parameters({{"rope_type", "linear"}, {"type", "default"}, {"factor", 2}}).scaling,
            AnyScaling(mha::LinearScaling{.factor = 2.0}));
}

TEST(RotaryConfig, ParametersOfTwoGenerationsOrOfKindsOfLayersAreRefused) {
  const Json linear{{"rope_type", "linear"}, {"factor", 2}};
  EXPECT_EQ(says({{"rope_parameters", {{"rope_theta", 1e6}}}, {"rope_scaling", linear}}),
            "c: there are both 'rope_parameters' and 'rope_scaling', expected one of them");
  EXPECT_EQ(says({{"rope_parameters", linear}, {"rope_scaling", Json::object()}}), "");
  EXPECT_EQ(says({{"rope_parameters", linear}, {"rope_scaling", nullptr}}), "");
  EXPECT_EQ(says({{"rope_parameters", nullptr}, {"rope_scaling", linear}}), "");
  for (const std::string kind : {"full_attention", "sliding_attention"})
    for (const std::string key : {"rope_parameters", "rope_scaling"})
      EXPECT_EQ(says({{key, {{kind, linear}}}}),
                "c: '" + key + "' has '" + kind + "', expected one set and none for a kind of layers");
}

// A layer would refuse them too, but could not name the file.
TEST(RotaryConfig, NumbersThatDoNotFitAreOneSentence) {
  const auto llama3 = [](const Json& low, const Json& high) {
    return says_of({{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", low}, {"high_freq_factor", high}});
  };
  EXPECT_EQ(llama3(0, 4), "");
  EXPECT_EQ(llama3(-1, 4), "c: 'low_freq_factor' is -1, expected at least 0");
  EXPECT_EQ(llama3(4, 4), "c: 'low_freq_factor' is 4, expected less than 'high_freq_factor', which is 4");
  const auto yarn = [](const char* key, const Json& value) {
    return says_of({{"rope_type", "yarn"}, {"factor", 2}, {key, value}});
  };
  EXPECT_EQ(yarn("beta_slow", 33), "c: 'beta_slow' is 33, expected less than 'beta_fast', which is 32");
  EXPECT_EQ(yarn("beta_slow", -1), "c: 'beta_slow' is -1, expected more than 0");
  EXPECT_EQ(yarn("beta_fast", -1), "c: 'beta_fast' is -1, expected more than 0");
  EXPECT_EQ(yarn("attention_factor", 0), "c: 'attention_factor' is 0, expected more than 0");
  EXPECT_EQ(yarn("rope_theta", 1), "c: 'rope_theta' is 1, expected more than 1 with \"yarn\"");
  EXPECT_EQ(yarn("rope_theta", 1.5), "");
  EXPECT_EQ(says({{"rope_theta", 0.5}, {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 2}}}}),
            "c: 'rope_theta' is 0.5, expected more than 1 with \"yarn\"");
  EXPECT_EQ(says({{"rope_theta", 0.5}}), "") << "without a scaling";
  EXPECT_EQ(
      mha_test::message_of<mha::SafetensorsError>([] { mha::detail::read_rotary(ConfigFile("c", "{}"), 7, 512); }),
      "c: a head has 7 coordinates, expected an even number: they turn in pairs");
  EXPECT_EQ(read_parameters({{"rope_type", "yarn"}, {"factor", 2}, {"beta_fast", 0}, {"beta_slow", 0}}).scaling,
            AnyScaling(mha::YarnScaling{.factor = 2.0, .original_length = 512.0}))
      << "as where nothing is said";
}

TEST(RotaryConfig, FactorsThatDoNotFitAreOneSentence) {
  const auto with = [](const Json& factors) {
    return says_of({{"rope_type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", factors}});
  };
  EXPECT_EQ(with({1, 2, 3, 4}), "");
  EXPECT_EQ(with(nullptr), "c: 'rope_parameters' has no 'long_factor'");
  EXPECT_EQ(with({1, 2, 3}), "c: 'long_factor' has 3 numbers, expected 4, one for each pair that turns");
  EXPECT_EQ(with(4), "c: 'long_factor' is 4, expected a list of 4 numbers");
  EXPECT_EQ(with({1, 2, 0, 4}), "c: 'long_factor' is 0, expected more than 0");
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
