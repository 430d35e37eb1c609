// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define MHA_FIBERS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MHA_FIBERS_ASAN 1
#endif
#endif
#if defined(MHA_FIBERS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Fortified builds take a longjmp to another stack for an attack, and ASan unpoisons the stack it believes to leave.
#if defined(MHA_FIBERS_ASAN) || (defined(__USE_FORTIFY_LEVEL) && __USE_FORTIFY_LEVEL > 0)
#define MHA_FIBERS_BY_CONTEXT 1
#endif

namespace support::gpu {

/// Functions that take turns, each on a stack of its own; one of them runs at a time.
///
/// What lives on a fiber when a run is given up is not destroyed: only trivial objects may.
class Fibers {
 public:
  explicit Fibers(int count) : fibers_(static_cast<std::size_t>(count)) {
    for (Fiber& f : fibers_) f.stack.reset(new unsigned char[stack_bytes]);
  }
  ~Fibers() {
    for (Fiber& f : fibers_) unpoison(f);
  }
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  int count() const { return static_cast<int>(fibers_.size()); }
  int current() const { return current_; }
  bool ended(int fiber) const { return at(fiber).ended; }

  /// Every fiber is about to run body(its number), from its beginning. The body outlives the run.
  template <class Body> void restart(Body& body) {
    body_ = &body;
    call_ = [](void* to, int fiber) { (*static_cast<Body*>(to))(fiber); };
    thrown_ = nullptr;
    for (int i = 0; i < count(); ++i) prepare(i);
  }

  /// From outside: runs a fiber until it pauses or ends. What it throws is thrown here.
  void resume(int fiber) {
    current_ = fiber;
    enter(at(fiber));
    if (thrown_) std::rethrow_exception(thrown_);
    if (std::memcmp(at(fiber).stack.get(), canary, sizeof canary) != 0)
      throw std::runtime_error("gpu model: a thread has left its stack of 256 KiB");
  }

  /// From the running fiber: back to whoever resumed it.
  void pause() { leave(at(current_), false); }

 private:
  static constexpr std::size_t stack_bytes = 256u << 10;
  static constexpr unsigned char canary[16] = {0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

  struct Fiber {
    ucontext_t context{};
    std::jmp_buf jump{};
    std::unique_ptr<unsigned char[]> stack;
    bool started = false, ended = false;
    void* sanitizer = nullptr;
  };

  Fiber& at(int i) { return fibers_[static_cast<std::size_t>(i)]; }
  const Fiber& at(int i) const { return fibers_[static_cast<std::size_t>(i)]; }

  void prepare(int i) {
    Fiber& f = at(i);
    unpoison(f);
    std::memcpy(f.stack.get(), canary, sizeof canary);
    f.started = f.ended = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = stack_bytes;
    f.context.uc_link = nullptr;
    // makecontext passes on ints alone.
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&f.context, reinterpret_cast<void (*)()>(&Fibers::begin), 3, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32), i);
  }

  static void begin(unsigned low, unsigned high, int i) {
    Fibers& self = *reinterpret_cast<Fibers*>(std::uintptr_t{high} << 32 | low);
    self.landed(nullptr);
    try {
      self.call_(self.body_, i);
    } catch (...) {
      self.thrown_ = std::current_exception();
    }
    self.at(i).ended = true;
    self.leave(self.at(i), true);
  }

#if defined(MHA_FIBERS_BY_CONTEXT)
  void enter(Fiber& f) {
    before(&home_sanitizer_, f.stack.get(), stack_bytes);
    swapcontext(&home_, &f.context);
    after(home_sanitizer_, nullptr, nullptr);
  }
  void leave(Fiber& f, bool last) {
    before(last ? nullptr : &f.sanitizer, home_stack_, home_bytes_);
    swapcontext(&f.context, &home_);
    landed(f.sanitizer);
  }
#else
  // A context starts a fiber, long jumps change between them: no system call.
  void enter(Fiber& f) {
    if (_setjmp(home_jump_) != 0) return;
    if (f.started) _longjmp(f.jump, 1);
    f.started = true;
    setcontext(&f.context);
  }
  void leave(Fiber& f, bool) {
    if (_setjmp(f.jump) == 0) _longjmp(home_jump_, 1);
  }
#endif
  void landed(void* sanitizer) { after(sanitizer, &home_stack_, &home_bytes_); }

#if defined(MHA_FIBERS_ASAN)
  static void before(void** keep, const void* stack, std::size_t bytes) {
    __sanitizer_start_switch_fiber(keep, stack, bytes);
  }
  static void after(void* kept, const void** stack, std::size_t* bytes) {
    __sanitizer_finish_switch_fiber(kept, stack, bytes);
  }
  static void unpoison(Fiber& f) { ASAN_UNPOISON_MEMORY_REGION(f.stack.get(), stack_bytes); }
#else
  static void before(void**, const void*, std::size_t) {}
  static void after(void*, const void**, std::size_t*) {}
  static void unpoison(Fiber&) {}
#endif

  std::vector<Fiber> fibers_;
  int current_ = 0;
  void* body_ = nullptr;
  void (*call_)(void*, int) = nullptr;
  std::exception_ptr thrown_;
  ucontext_t home_{};
  std::jmp_buf home_jump_{};
  void* home_sanitizer_ = nullptr;
  const void* home_stack_ = nullptr;
  std::size_t home_bytes_ = 0;
};

}  // namespace support::gpu
