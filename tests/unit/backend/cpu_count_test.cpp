// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>

#include <mha/backend/cpu_count.hpp>

#include "forked.hpp"
#include "scratch.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace {

using mha::detail::cpus_of_affinity;
using mha::detail::cpus_of_groups;
using mha::detail::cpus_of_quota;
using mha::detail::usable_cpus;

TEST(CpusOfQuota, RoundUp) {
  EXPECT_EQ(cpus_of_quota("200000 100000"), 2);
  EXPECT_EQ(cpus_of_quota("200000 100000\n"), 2);
  EXPECT_EQ(cpus_of_quota("200000\n 100000\n"), 2);
  EXPECT_EQ(cpus_of_quota("200001 100000"), 3);
  EXPECT_EQ(cpus_of_quota("1000 100000"), 1);
  EXPECT_EQ(cpus_of_quota("9223372036854775807 1"), 2147483647);
}

TEST(CpusOfQuota, NoLimitAndNoQuotaAreNone) {
  for (const char* const text : {"max 100000", "max", "-1\n 100000", "", " ", "200000", "200000 ", "200000 0",
                                 "0 100000", "200000 -1", "99999999999999999999 1", "two 1"})
    EXPECT_EQ(cpus_of_quota(text), 0) << text;
}

TEST(CpusOfGroups, TheSmallestOnTheWayToTheRootCounts) {
  const mha_test::Scratch scratch;
  scratch.write("a/cpu.max", "400000 100000\n");
  scratch.write("a/b/cpu.max", "max 100000\n");
  scratch.write("a/b/c/cpu.max", "550000 100000\n");
  const std::string root = scratch.root().string();
  EXPECT_EQ(cpus_of_groups(root, "0::/a/b/c\n"), 4);
  EXPECT_EQ(cpus_of_groups(root, "0::/a"), 4);
  EXPECT_EQ(cpus_of_groups(root, "0::/"), 0);
  EXPECT_EQ(cpus_of_groups(root, "0::/elsewhere/c\n"), 0);
  scratch.write("a/b/c/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpus_of_groups(root, "0::/a/b/c\n"), 3);
  scratch.write("cpu.max", "100000 100000\n");
  EXPECT_EQ(cpus_of_groups(root, "0::/a/b/c\n"), 1);
  EXPECT_EQ(cpus_of_groups(root, "0::/\n"), 1);
  EXPECT_EQ(cpus_of_groups(root, "0::/../of/the/host\n"), 1) << "a container's own group is its root";
}

TEST(CpusOfGroups, TheControllerOfVersion1) {
  const mha_test::Scratch scratch;
  scratch.write("cpu/docker/1/cpu.cfs_quota_us", "300000\n");
  scratch.write("cpu/docker/1/cpu.cfs_period_us", "100000\n");
  scratch.write("cpu/cpu.cfs_quota_us", "-1\n");
  scratch.write("cpu/cpu.cfs_period_us", "100000\n");
  const std::string root = scratch.root().string();
  EXPECT_EQ(cpus_of_groups(root, "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n0::/docker/1\n"), 3);
  EXPECT_EQ(cpus_of_groups(root, "4:cpuacct,cpu:/docker/1\n"), 3);
  EXPECT_EQ(cpus_of_groups(root, "4:cpuacct:/docker/1\n3:cpuset:/docker/1\n"), 0);
  EXPECT_EQ(cpus_of_groups(root, "4:cpu:/docker\n"), 0);
  scratch.write("docker/1/cpu.max", "200000 100000\n");
  EXPECT_EQ(cpus_of_groups(root, "4:cpu:/docker/1\n0::/docker/1\n"), 2) << "the smaller of both";
}

TEST(CpusOfGroups, OtherTextIsNoGroup) {
  for (const char* const text : {"", "\n\n", "no colon", "0:one colon", ":::", "::relative", "0::"})
    EXPECT_EQ(cpus_of_groups("/no/such/folder", text), 0) << text;
}

TEST(UsableCpus, AreWithinTheMachine) {
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), cpus_of_affinity());
}

#if defined(__linux__)
TEST(CpusOfAffinity, IsTheMaskOfTheThread) {
  EXPECT_EQ(mha_test::forked([] {
              cpu_set_t all, one;
              CPU_ZERO(&all);
              if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) != cpus_of_affinity()) return false;
              std::size_t last = 0;
              for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
                if (CPU_ISSET(cpu, &all)) last = cpu;
              CPU_ZERO(&one);
              CPU_SET(last, &one);
              if (sched_setaffinity(0, sizeof one, &one) != 0) return false;
              return cpus_of_affinity() == 1 && usable_cpus() == 1;
            }),
            "exit 0");
}
#endif

}  // namespace
