// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define MHA_STACKS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MHA_STACKS_ASAN 1
#endif
#endif
#if defined(MHA_STACKS_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// A function that callers know only the calling convention of.
#if defined(__clang__)
#define MHA_STACKS_OPAQUE __attribute__((noinline))
#else
#define MHA_STACKS_OPAQUE __attribute__((noipa))
#endif

namespace support::gpu {

#if defined(MHA_STACKS_ASAN)
/// Frames that were never left stay marked.
inline void unpoison(unsigned char* stack, std::size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(stack, bytes); }
#else
inline void unpoison(unsigned char*, std::size_t) {}
#endif

/// A place in a program on a stack of its own, to leave and to come back to.
///
/// On x86-64 a switch is a dozen instructions: ucontext asks the kernel each time, long jumps to other stacks abort in
/// fortified builds. Elsewhere it is ucontext.
class StackPlace {
 public:
  using Entry = void (*)(void*);

  /// The place is the beginning of entry(argument), which never returns, on this stack.
  void begin_at(Entry entry, void* argument, unsigned char* stack, std::size_t bytes) {
    entry_ = entry;
    argument_ = argument;
    stack_ = stack;
    bytes_ = bytes;
#if defined(__x86_64__)
    // As a call would leave it: the return address, none here, below a multiple of 16.
    const auto top = reinterpret_cast<std::uintptr_t>(stack + bytes) / 16 * 16 - 8;
    *reinterpret_cast<void**>(top) = nullptr;
    resume_ = {reinterpret_cast<void*>(top), reinterpret_cast<void*>(&StackPlace::land), nullptr, this};
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);  // makecontext passes on ints alone
    makecontext(&context_, reinterpret_cast<void (*)()>(&StackPlace::land_from_halves), 2, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32));
#endif
  }

  /// Goes on at `to`; returns when somebody switches here.
  void switch_to(StackPlace& to) { leave(to, false); }
  /// The same for a stack that is done with.
  [[noreturn]] void leave_for_good(StackPlace& to) {
    leave(to, true);
    __builtin_unreachable();
  }

 private:
  static void land(StackPlace* place) {
    arrive(nullptr);
    place->entry_(place->argument_);
  }

  void leave(StackPlace& to, bool for_good) {
#if defined(MHA_STACKS_ASAN)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, to.stack_, to.bytes_);
    left_ = this;
#else
    static_cast<void>(for_good);
#endif
    jump(to);
    arrive(fake_stack_);
  }

#if defined(MHA_STACKS_ASAN)
  /// Where a switch arrives; the stack it came from is told, for the way back to the program's own.
  static void arrive(void* fake_stack) {
    const void* stack = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
    left_->stack_ = stack;
    left_->bytes_ = bytes;
  }
  inline static StackPlace* left_ = nullptr;
#else
  static void arrive(void*) {}
#endif

#if defined(__x86_64__)
  struct Registers {
    void *stack, *instruction, *frame, *argument;
  };
  MHA_STACKS_OPAQUE void jump(StackPlace& to) {
    Registers* save = &resume_;
    Registers* load = &to.resume_;
    // The compiler saves what is said to be lost; its callers hold nothing in vector registers across an opaque call.
    asm volatile(
        "leaq 1f(%%rip), %%rax\n\t"
        "movq %%rsp, (%0)\n\t"
        "movq %%rax, 8(%0)\n\t"
        "movq %%rbp, 16(%0)\n\t"
        "movq (%1), %%rsp\n\t"
        "movq 16(%1), %%rbp\n\t"
        "movq 24(%1), %%rdi\n\t"
        "jmpq *8(%1)\n"
        "1:"
        : "+D"(save), "+S"(load)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "cc", "memory");
  }
  Registers resume_{};
#else
  static void land_from_halves(unsigned low, unsigned high) {
    land(reinterpret_cast<StackPlace*>(std::uintptr_t{high} << 32 | low));
  }
  void jump(StackPlace& to) { swapcontext(&context_, &to.context_); }
  ucontext_t context_{};
#endif

  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  const void* stack_ = nullptr;
  std::size_t bytes_ = 0;
  void* fake_stack_ = nullptr;
};

}  // namespace support::gpu
