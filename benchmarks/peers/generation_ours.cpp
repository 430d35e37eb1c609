// SPDX-License-Identifier: Apache-2.0
// LLaMA of examples/models with a key/value cache as a shared library, for generation.py.
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#include "../../examples/models/llama.hpp"
#include "../../examples/models/stored.hpp"
#include "../measure.hpp"
#include "../unit_peak.hpp"
#include "peer.hpp"

namespace {

/// A text that goes back to any of its positions.
struct Text {
  virtual ~Text() = default;
  /// Forgets what stands at `position` and beyond, and reads on there: the logits (V) of the next token.
  virtual std::span<const float> read(int position, std::span<const int> ids) = 0;
  virtual std::size_t bytes() const = 0;  ///< of the packed matrices
};

/// Keys and values are stored as F.
template <class B, class F> class CachedText final : public Text {
 public:
  template <class Weights>
  CachedText(const Weights& weights, int positions, models::Matrices matrices)
      : model_(weights, 0, matrices),
        cache_(model_.template make_cache<F>(mha::Contiguous{.length = positions})),
        id_(cache_.add()) {}

  std::span<const float> read(int position, std::span<const int> ids) override {
    cache_.truncate(id_, position);
    auto step = cache_.step(id_, static_cast<int>(ids.size()));
    const models::Rows& logits = model_.next(ids, step, work_);  // (1, V)
    step.commit();
    return {logits.data(), static_cast<std::size_t>(logits.size())};
  }
  std::size_t bytes() const override { return model_.packed_bytes(); }

 private:
  using Model = models::Llama<mha::NoNorm, B>;

  Model model_;
  decltype(std::declval<const Model&>().template make_cache<F>(std::declval<const mha::Contiguous&>())) cache_;
  mha::SequenceId id_;
  models::Work work_;
};

}  // namespace

MHA_PEER const char* peer_text_machine() {
  static const std::string text = bench::machine();
  return text.c_str();
}
/// Multiply-adds of so many threads together, in GFLOP/s.
MHA_PEER double peer_text_peak(int threads) { return bench::peak_gflops_of(threads); }
/// Of bfloat16 on the matrix unit; 0 where there is none.
MHA_PEER double peer_text_unit_peak(int threads) {
  if (mha::best_unit() == mha::MatrixUnit::portable) return 0;
  return bench::unit_peak_gflops_of(mha::detail::systolic::dense_unit<mha::AmxArray>(), threads);
}
/// Matrices in `bits` of 8 or 4, or for 0 in the checkpoint's own scalar; keys and values in float, or with a
/// checkpoint in 16 bits in bfloat16; those in 16 bits may be on the matrix unit. Its threads are as many as
/// MHA_NUM_THREADS says.
MHA_PEER const char* peer_text_begin(Text** text, const char* folder, int positions, int on_unit, int bits) {
  return bench::attempt([&] {
    *text = models::with_stored<mha::Llama>(mha::Checkpoint(folder), [&](const auto& weights) -> Text* {
      using W = std::remove_cv_t<typename std::remove_reference_t<decltype(weights.token_embeddings())>::Scalar>;
      using F = std::conditional_t<std::is_same_v<W, float>, float, mha::bfloat16>;
      const auto matrices = bits == 8   ? models::Matrices::in_8_bits
                            : bits == 4 ? models::Matrices::in_4_bits
                                        : models::Matrices::as_stored;
      if constexpr (!std::is_same_v<F, float>)
        if (on_unit != 0) return new CachedText<mha::Systolic<>, F>(weights, positions, matrices);
      return new CachedText<mha::Cpu, F>(weights, positions, matrices);
    });
  });
}
MHA_PEER const char* peer_text_read(Text* text, int position, const int* ids, int count, const float** logits) {
  return bench::attempt([&] { *logits = text->read(position, {ids, static_cast<std::size_t>(count)}).data(); });
}
MHA_PEER double peer_text_bytes(const Text* text) { return static_cast<double>(text->bytes()); }
/// GB/s at which so many threads read as many bytes again and again.
MHA_PEER double peer_text_reading(const Text* text, int threads) {
  const auto numbers = bench::numbers_to_read(text->bytes() / sizeof(float));
  if (threads == 1) return bench::read_gbps(numbers.data(), numbers.size());
  const auto read = [&] { bench::read_all<mha::ThreadPool>(numbers.data(), numbers.size()); };
  read();
  return 1e-9 * static_cast<double>(text->bytes()) / bench::seconds_per_call(bench::wall_seconds, 1, read);
}
MHA_PEER void peer_text_end(Text* text) { delete text; }
