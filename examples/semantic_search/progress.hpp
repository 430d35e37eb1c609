// SPDX-License-Identifier: Apache-2.0
// A progress bar for people; nothing where the output is no terminal.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <ostream>
#include <string>

namespace semantic_search {

/// Redraws one line of `out` at most ten times a second, and wipes it at the end. Any thread may call update().
class Progress {
 public:
  Progress(std::ostream& out, bool visible, std::size_t total) : out_(out), visible_(visible), total_(total) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (drawn_) out_ << "\r\033[K" << std::flush;
  }

  void update(std::size_t done) {
    if (!visible_ || total_ == 0) return;
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    // Short input never shows a bar, and a late report of another thread never moves it back.
    if (now - last_ < std::chrono::milliseconds(100) || done < done_) return;
    last_ = now;
    done_ = done;
    constexpr std::size_t width = 40;
    const std::size_t filled = done * width / total_;
    out_ << "\rembedding [" << std::string(filled, '#') << std::string(width - filled, '.') << "] " << done << '/'
         << total_ << std::flush;
    drawn_ = true;
  }

 private:
  std::ostream& out_;
  bool visible_;
  std::size_t total_;
  std::size_t done_ = 0;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
};

}  // namespace semantic_search
