// SPDX-License-Identifier: Apache-2.0
// The least that is a backend or an executor, declared only, and what is nearly one.
#include <string>

#include <mha/attention.hpp>
#include <mha/backend/cpu/cpu.hpp>
#include <mha/backend/reference/reference.hpp>

namespace backend_archetype {

/// A workspace need not be the host's.
struct Scratch {};

struct Least {
  static constexpr const char* name = "Least";
  using Workspace = Scratch;
  mha::Support supported() const;
  template <class T> void gemm(const mha::GemmCall<T>&, Workspace&) const;
  template <class T, class Source, class M, class S>
  void attend(const mha::AttendCall<T, Source, M, S>&, Workspace&) const;
  template <class T> std::string explain(const mha::AttendPlan&) const;
};

struct NoName : Least {
  static constexpr int name = 0;
};
struct NoWorkspace {
  static constexpr const char* name = "";
  mha::Support supported() const;
};
struct PrivateWorkspace : Least {
 private:
  using Workspace = Scratch;
};
struct SupportIsABool : Least {
  bool supported() const;
};
struct GemmNotConst : Least {
  template <class T> void gemm(const mha::GemmCall<T>&, Scratch&);
};
struct AttendOfOtherScalars : Least {
  template <class Source, class M, class S> void attend(const mha::AttendCall<double, Source, M, S>&, Scratch&) const;
};
struct NoExplanation : Least {
  template <class T> void explain(const mha::AttendPlan&) const;
};
struct NeedsADevice : Least {
  explicit NeedsADevice(int device);
};

static_assert(mha::Backend<Least> && mha::Backend<mha::Reference> && mha::Backend<mha::Cpu>);
static_assert(!mha::Backend<NoName> && !mha::Backend<NoWorkspace> && !mha::Backend<PrivateWorkspace>);
static_assert(!mha::Backend<SupportIsABool> && !mha::Backend<GemmNotConst> && !mha::Backend<AttendOfOtherScalars>);
static_assert(!mha::Backend<NoExplanation> && mha::Backend<NeedsADevice>);  // a value of it has to be given
static_assert(!mha::Backend<mha::Serial> && !mha::Backend<int>);

struct LeastExecutor {
  static constexpr const char* name = "Least";
  mha::Index workers() const;
  template <class F> void run(mha::Index tasks, F&& f) const;
};
struct WithoutName : LeastExecutor {
  static constexpr int name = 0;
};
struct CountsInLong : LeastExecutor {
  long workers() const;
};
struct RunNotConst : LeastExecutor {
  template <class F> void run(mha::Index tasks, F&& f);
};
struct RunsTasksWithoutWorkers : LeastExecutor {
  void run(mha::Index tasks, void (*f)(mha::Index)) const;
};
struct WithoutDefault : LeastExecutor {
  explicit WithoutDefault(int threads);
};

static_assert(mha::Executor<LeastExecutor> && mha::Executor<mha::Serial> && mha::Executor<mha::ThreadPool>);
static_assert(mha::Backend<mha::CpuWith<LeastExecutor>>);
static_assert(!mha::Executor<WithoutName> && !mha::Executor<CountsInLong> && !mha::Executor<RunNotConst>);
static_assert(!mha::Executor<RunsTasksWithoutWorkers> && mha::Executor<WithoutDefault> && !mha::Executor<mha::Cpu>);

}  // namespace backend_archetype
