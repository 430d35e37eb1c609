// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/systolic/unit.hpp>

/// Ends a test whose unit this machine lacks, with the reason.
#define UNIT_OR_SKIP(unit) \
  if (!mha::missing(unit).empty()) GTEST_SKIP() << "not run on " << to_string(unit) << ": " << mha::missing(unit)

namespace unit {

/// One unit for the time of a scope, then the one before.
class ForceUnit {
 public:
  explicit ForceUnit(mha::MatrixUnit unit) : before_(mha::current_unit()) { mha::force_unit(unit); }
  ForceUnit(const ForceUnit&) = delete;
  ForceUnit& operator=(const ForceUnit&) = delete;
  ~ForceUnit() { mha::force_unit(before_); }

 private:
  mha::MatrixUnit before_;
};

/// f() on each unit of this machine.
template <class F> void on_every_unit(F&& f) {
  for (const mha::MatrixUnit unit : mha::detail::systolic::all_units) {
    if (!mha::missing(unit).empty()) continue;
    SCOPED_TRACE(to_string(unit));
    const ForceUnit forced(unit);
    f();
  }
}

/// Tests of every unit; those that this machine lacks are skipped.
class OnUnit : public testing::TestWithParam<mha::MatrixUnit> {
 protected:
  void SetUp() override {
    UNIT_OR_SKIP(GetParam());
    forced_.emplace(GetParam());
  }
  void TearDown() override { forced_.reset(); }

 private:
  std::optional<ForceUnit> forced_;
};

/// The name of a unit as part of a test's name.
inline std::string unit_name(const testing::TestParamInfo<mha::MatrixUnit>& info) { return to_string(info.param); }

}  // namespace unit
