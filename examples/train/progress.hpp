// SPDX-License-Identifier: Apache-2.0
// A progress bar for people; nothing where the output is no terminal.
#pragma once

#include <chrono>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <string>

namespace train {

/// Redraws one line of `out` at most ten times a second, and wipes it at the end.
class Progress {
 public:
  Progress(std::ostream& out, bool visible, int steps, int characters)
      : out_(out), visible_(visible), steps_(steps), characters_(characters) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() {
    if (drawn_) out_ << "\r\033[K" << std::flush;
  }

  /// So many steps are done, each of so many characters.
  void update(int step, double loss) {
    if (!visible_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    out_ << '\r' << line(step, loss, seconds) << "\033[K" << std::flush;
    drawn_ = true;
  }

  /// step 300/1500 [######........................] loss 2.02, 31000 characters/s, 0:39 left
  std::string line(int step, double loss, double seconds) const {
    constexpr int width = 30;
    const int filled = static_cast<int>(static_cast<long long>(step) * width / steps_);
    const int left = static_cast<int>(seconds / step * (steps_ - step) + 0.5);
    std::ostringstream s;
    s << "step " << step << '/' << steps_ << " [" << std::string(static_cast<std::size_t>(filled), '#')
      << std::string(static_cast<std::size_t>(width - filled), '.') << std::fixed << std::setprecision(2) << "] loss "
      << loss << ", " << std::setprecision(0) << static_cast<double>(step) * characters_ / seconds << " characters/s, "
      << left / 60 << ':' << std::setw(2) << std::setfill('0') << left % 60 << " left";
    return s.str();
  }

 private:
  std::ostream& out_;
  bool visible_;
  int steps_, characters_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_ = begin_;
};

}  // namespace train
