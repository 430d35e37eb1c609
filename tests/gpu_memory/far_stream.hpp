// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace support {

/// The one stream of far_runtime.cpp. It takes its time with copies from pinned memory, as a GPU does: they are made
/// when somebody waits for them, or a kernel follows. While it is recorded nothing is done: the graph does it, as often
/// as it is launched.
struct FarStream {
  /// A kernel. What it needs it owns.
  static void enqueue(std::function<void()> kernel);
  /// Makes the copies that were enqueued: before a kernel.
  static void catch_up();
  /// How often device memory was allocated since the program began.
  static int allocations();
  /// How much the recording that is under way has enqueued.
  static std::size_t recorded();
  /// How often a device was made the current one since.
  static int switches();
  /// How many copies from pinned memory were enqueued since.
  static int pinned_copies();
  /// How often the host waited for the stream since.
  static int waits();
};

}  // namespace support
