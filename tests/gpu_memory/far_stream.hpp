// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace support {

/// The one stream of far_runtime.cpp. It takes its time with copies from pinned memory, as a GPU does: they are made
/// when somebody waits for them.
struct FarStream {
  /// Makes the copies that were enqueued: before a kernel.
  static void catch_up();
};

}  // namespace support
