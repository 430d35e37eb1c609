// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/call_backend.hpp>
#include <mha/core/workspace.hpp>
#include <mha/policy/mask/positional.hpp>

namespace {

using mha::Reference;

/// A backend that writes down when it is entered and left.
struct Noting {
  using Workspace = mha::Workspace;
  std::string* notes;

  struct Held {
    std::string* notes;
    Held(std::string* to) : notes(to) { *notes += "entered "; }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    ~Held() { *notes += "left "; }
  };
  Held enter(Workspace&) const { return {notes}; }
};

TEST(CallBackend, IsTheOneThatIsNamedThenTheOneThatIsGivenThenTheDefault) {
  using mha::detail::CallBackend;
  struct Other : Reference {};
  static_assert(std::is_same_v<CallBackend<Other, Noting, mha::Causal, Reference&>, Other>);
  static_assert(std::is_same_v<CallBackend<void, Other, mha::Causal, const Reference&>, Reference>);
  static_assert(std::is_same_v<CallBackend<void, Other, mha::Causal>, Other>);
  static_assert(std::is_same_v<CallBackend<int, Other>, mha::detail::NoBackend<false>>);
}

struct Steep {
  double slope = 1;
};

TEST(ConstructorValue, IsTheGivenOneOrANewOne) {
  EXPECT_EQ(mha::detail::given_or_default<Steep>(Reference{}, Steep{3}).slope, 3);
  EXPECT_EQ(mha::detail::given_or_default<Steep>(Reference{}).slope, 1);
}

TEST(CallBackend, IsTheValueThatTheCallIsGiven) {
  const Reference own, given;
  const mha::Causal causal;
  EXPECT_EQ(&mha::detail::call_backend<Reference>(causal, given), &given);
  EXPECT_EQ(&mha::detail::backend_or(own, causal, given), &given);
  EXPECT_EQ(&mha::detail::backend_or(own, causal), &own);
  static_assert(std::is_same_v<decltype(mha::detail::call_backend<Reference>(causal)), Reference>);
}

TEST(CallScope, HasTheCallersWorkspaceOrOneOfItsOwn) {
  const Reference backend;
  mha::Workspace given;
  const mha::Causal causal;
  {
    mha::detail::CallScope<Reference> scope(backend, causal, given);
    EXPECT_EQ(&scope.backend, &backend);
    EXPECT_EQ(&scope.workspace, &given);
    EXPECT_EQ(&scope.items.workspace, &given);
    EXPECT_EQ(&scope.items.backend, &backend);
    scope.frame.take<float>(100);
  }
  EXPECT_EQ(given.allocations(), 1);
  mha::detail::CallScope<Reference> scope(backend, causal);
  EXPECT_NE(&scope.workspace, &given);
  EXPECT_EQ(&scope.items.workspace, &scope.workspace);
  scope.frame.take<float>(100);
  EXPECT_EQ(scope.workspace.allocations(), 1);
  EXPECT_EQ(given.allocations(), 1);
}

TEST(CallScope, GivesItsMemoryBackWhenItEnds) {
  const Reference backend;
  mha::Workspace given;
  const auto first = [&] {
    mha::detail::CallScope<Reference> scope(backend, given);
    return scope.frame.take<float>(100);
  };
  const float* const before = first();
  EXPECT_EQ(first(), before);
  EXPECT_EQ(given.allocations(), 1);
}

TEST(CallScope, HoldsTheBackendWhileItLives) {
  std::string notes;
  const Noting backend{&notes};
  {
    mha::detail::CallScope<Noting> scope(backend);
    EXPECT_EQ(notes, "entered ");
  }
  EXPECT_EQ(notes, "entered left ");
}

}  // namespace
