// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "warpgroup_machine.hpp"

namespace support::gpu {

/// What can be wrong with a kernel, or with the machine it was written for.
enum class Flaw {
  none,
  no_sync,
  no_sync_warp,
  no_wait,
  no_commit,
  shorter_wait,  // wait<N + 1> for wait<N>
  no_zero_fill,  // a copy that is not valid leaves NaN
  swapped_a,     // mma: registers 1 and 2 of a
  swapped_b,     // mma: b0 and b1
  swapped_d,     // mma: registers 1 and 2 of d
  no_transpose,  // ldmatrix_x4 for ldmatrix_x4_trans
  transpose,     // ldmatrix_x4_trans for ldmatrix_x4
  other_place,   // ldmatrix reads 16 bytes beside, where `begin` ≤ address < `end`
  other_lane,    // shuffle_xor with mask 1 as with 4
  no_shuffle,    // shuffle_xor gives back what it got
  swapped_pack,  // pack: low and high
  vote_false,
  vote_true,
  no_fence,
  no_sync_any,  // gives back what it got
  no_fence_proxy,
  no_wgmma_fence,
  no_wgmma_commit,
  no_wgmma_wait,
  shorter_wgmma_wait,  // wgmma_wait<N + 1> for wgmma_wait<N>
  lane_absent,         // lane 5 leaves out an ldmatrix
};

/// A flaw at the nth time that each thread of a block comes to it, or always.
struct Seed {
  static constexpr int always = -1;
  Flaw flaw = Flaw::none;
  int nth = always;
  Shared begin = 0, end = std::numeric_limits<Shared>::max();  // of other_place
};

/// A host machine with one thing wrong, to prove that a kernel's tests would notice: run the body on it.
class FaultyMachine : public WarpgroupHostMachine {
 public:
  using WarpgroupHostMachine::WarpgroupHostMachine;

  /// What is wrong with all machines from now on, and how often it has made a difference since.
  static void plant(const Seed& seed) {
    seed_ = seed;
    made_ = 0;
  }
  static long made() { return made_; }

  void sync() {
    if (!now(Flaw::no_sync)) HostMachine::sync();
  }
  bool sync_any(bool x) { return now(Flaw::no_sync_any) ? x : HostMachine::sync_any(x); }
  void sync_warp() {
    if (!now(Flaw::no_sync_warp)) HostMachine::sync_warp();
  }
  template <class T> void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
    std::uint32_t left[4] = {a[0], a[1], a[2], a[3]};
    if (now(Flaw::swapped_a)) std::swap(left[1], left[2]);
    if (now(Flaw::swapped_b)) std::swap(b0, b1);
    HostMachine::mma_m16n8k16<T>(d, left, b0, b1);
    if (now(Flaw::swapped_d)) std::swap(d[1], d[2]);
  }
  void ldmatrix_x4(std::uint32_t (&r)[4], Shared row) {
    if (thread() % warp_size == 5 && now(Flaw::lane_absent)) return;
    now(Flaw::transpose) ? HostMachine::ldmatrix_x4_trans(r, beside(row)) : HostMachine::ldmatrix_x4(r, beside(row));
  }
  void ldmatrix_x4_trans(std::uint32_t (&r)[4], Shared row) {
    now(Flaw::no_transpose) ? HostMachine::ldmatrix_x4(r, beside(row)) : HostMachine::ldmatrix_x4_trans(r, beside(row));
  }
  void cp_async16(Shared to, const void* from, bool valid) {
    alignas(16) static constexpr unsigned nan[4] = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu};
    !valid&& now(Flaw::no_zero_fill) ? HostMachine::cp_async16(to, nan, true)
                                     : HostMachine::cp_async16(to, from, valid);
  }
  void commit() {
    if (!now(Flaw::no_commit)) HostMachine::commit();
  }
  template <int N> void wait() {
    if (now(Flaw::no_wait)) return;
    now(Flaw::shorter_wait) ? HostMachine::wait<N + 1>() : HostMachine::wait<N>();
  }
  void fence() {
    if (!now(Flaw::no_fence)) HostMachine::fence();
  }
  template <class T> T shuffle_xor(T x, int mask) {
    const T got = HostMachine::shuffle_xor(x, mask == 1 && now(Flaw::other_lane) ? 4 : mask);
    return now(Flaw::no_shuffle) ? x : got;
  }
  bool any(bool x) { return voted(HostMachine::any(x)); }
  bool all(bool x) { return voted(HostMachine::all(x)); }
  template <class T> std::uint32_t pack(float low, float high) {
    return now(Flaw::swapped_pack) ? HostMachine::pack<T>(high, low) : HostMachine::pack<T>(low, high);
  }

  void fence_proxy() {
    if (!now(Flaw::no_fence_proxy)) WarpgroupHostMachine::fence_proxy();
  }
  void wgmma_fence() {
    if (!now(Flaw::no_wgmma_fence)) WarpgroupHostMachine::wgmma_fence();
  }
  void wgmma_commit() {
    if (!now(Flaw::no_wgmma_commit)) WarpgroupHostMachine::wgmma_commit();
  }
  template <int N> void wgmma_wait() {
    if (now(Flaw::no_wgmma_wait)) return;
    now(Flaw::shorter_wgmma_wait) ? WarpgroupHostMachine::wgmma_wait<N + 1>() : WarpgroupHostMachine::wgmma_wait<N>();
  }

 private:
  bool now(Flaw flaw) {
    if (flaw != seed_.flaw || (seed_.nth != Seed::always && seen_++ != seed_.nth)) return false;
    ++made_;
    return true;
  }
  Shared beside(Shared row) { return row >= seed_.begin && row < seed_.end && now(Flaw::other_place) ? row ^ 16 : row; }
  bool voted(bool x) {
    if (now(Flaw::vote_false)) return false;
    return now(Flaw::vote_true) || x;
  }

  int seen_ = 0;
  inline static Seed seed_;
  inline static long made_ = 0;
};

static_assert(mha::cuda::WarpgroupMachine<FaultyMachine>);

/// How a flaw is called in a report.
inline std::string to_string(const Seed& seed) {
  static constexpr const char* names[] = {"none",
                                          "no sync",
                                          "no sync_warp",
                                          "no wait",
                                          "no commit",
                                          "a shorter wait",
                                          "no zero fill",
                                          "swapped registers of a",
                                          "swapped b",
                                          "swapped d",
                                          "no transpose",
                                          "transpose",
                                          "other place",
                                          "other lane",
                                          "no shuffle",
                                          "swapped pack",
                                          "every vote false",
                                          "every vote true",
                                          "no fence",
                                          "no sync_any",
                                          "no fence_proxy",
                                          "no wgmma_fence",
                                          "no wgmma_commit",
                                          "no wgmma_wait",
                                          "a shorter wgmma_wait",
                                          "lane 5 absent"};
  static_assert(std::size(names) == static_cast<std::size_t>(Flaw::lane_absent) + 1);
  return names[static_cast<int>(seed.flaw)] + (seed.nth == Seed::always ? "" : ", number " + std::to_string(seed.nth));
}

/// Whether a flaw leaves out one operation, or waits for less.
inline bool drops(Flaw flaw) {
  switch (flaw) {
    case Flaw::no_sync:
    case Flaw::no_sync_warp:
    case Flaw::no_wait:
    case Flaw::no_commit:
    case Flaw::shorter_wait:
    case Flaw::no_fence:
    case Flaw::no_sync_any:
    case Flaw::no_fence_proxy:
    case Flaw::no_wgmma_fence:
    case Flaw::no_wgmma_commit:
    case Flaw::no_wgmma_wait:
    case Flaw::shorter_wgmma_wait:
      return true;
    default:
      return false;
  }
}

/// Plants every flaw of the list, those that drop something at each place in turn, and returns the ones that went
/// unnoticed, or that the kernel never came to.
///
/// right()   runs the kernel on FaultyMachine and says whether its results are right; a Fault is noticed
template <class Right> std::vector<std::string> unnoticed(Right&& right, std::initializer_list<Seed> seeds) {
  std::vector<std::string> missed;
  const auto try_one = [&](const Seed& seed) {
    FaultyMachine::plant(seed);
    bool noticed = true;
    try {
      noticed = !right();
    } catch (const Fault&) {
    }
    const bool made = FaultyMachine::made() > 0;
    FaultyMachine::plant({});
    if (made && !noticed) missed.push_back(to_string(seed));
    return made;
  };
  if (!(FaultyMachine::plant({}), right())) missed.push_back("the kernel is wrong without a flaw");
  for (Seed seed : seeds) {
    const bool each = drops(seed.flaw);
    if (each && seed.nth == Seed::always) {
      for (seed.nth = 0; try_one(seed);) ++seed.nth;
      if (seed.nth == 0) missed.push_back(to_string(seed) + ": never made");
    } else if (!try_one(seed)) {
      missed.push_back(to_string(seed) + ": never made");
    }
  }
  return missed;
}

}  // namespace support::gpu
