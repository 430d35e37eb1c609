// SPDX-License-Identifier: Apache-2.0
// 38: memories of a batch
//
// You learn   an encoder-decoder server, as for Whisper or T5: clips of different lengths are projected once, into
//             pages of one pool, join the batch, leave it, and are shared by beams; memory of your own
// The maths   K = m W_K, V = m W_V once, of a clip's frames m; then for each token's row h
//             y = h + softmax(h W_Q Kᵀ / √D) V W_O
// Symbols     E = 32 width of tokens, M = 20 of frames, 4 heads; m (frames, M); x, h, y (rows, E), one of each clip
// Output      lines that end in "yes"
// Next        39_variants_of_your_own.cpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <Eigen/Core>
#include <vector>

#include <mha/mha.hpp>

constexpr int E = 32, M = 20;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-62s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}
Rows waves(int rows, int width, float seed) {
  Rows x(rows, width);
  for (int i = 0; i < rows; ++i)
    for (int e = 0; e < width; ++e) x(i, e) = std::sin(seed + 0.4f * float(i * width + e));
  return x;
}

/// A clip in the batch: its frames, the tokens so far, and what the two caches call them.
struct Clip {
  Rows frames, tokens;
  mha::SequenceId memory, text;
};

int main() {
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> self({.d_model = E, .num_heads = 4});
  mha::MultiHeadAttention<float, mha::Cpu> cross({.d_model = E, .num_heads = 4, .kv_model = M});
  self.initialize(mha::XavierUniform{.seed = 1});
  cross.initialize(mha::XavierUniform{.seed = 2});

  // Two caches: texts grow with every token; a memory is written when its clip joins, and only read from then on.
  auto texts = mha::make_cache(self, mha::Paged{.pages = 32, .length = 64, .page = 16}, {.sequences = 4});
  auto memories = mha::make_cache(cross, mha::Paged{.pages = 16, .length = 200, .page = 16}, {.sequences = 4});
  mha::Workspace workspace;

  // A clip joins: its keys and values go straight to pages.
  const auto join = [&](const Rows& frames) {
    const Clip clip{frames, Rows(0, E), memories.add(), texts.add()};
    auto step = memories.step(clip.memory, int(frames.rows()));
    cross.project_memory(frames, step[0], workspace);
    step.commit();
    return clip;
  };

  // A token of each clip, x (clips, E). A step of 0 rows reads; it may name a memory several times.
  const auto decode = [&](const std::vector<Clip*>& batch, const Rows& x) {
    std::vector<mha::SequenceId> text, memory;
    for (const Clip* clip : batch) text.push_back(clip->text), memory.push_back(clip->memory);
    Rows h(x.rows(), E), y(x.rows(), E);
    auto step = texts.step(text, 1);
    const auto reading = memories.step(memory, 0);
    self(x, step[0], mha::residual(x), mha::into(h), workspace);
    cross(h, reading.source(0), mha::Ragged{step.offsets()}, mha::residual(h), mha::into(y), workspace);
    step.commit();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Rows& tokens = batch[i]->tokens;
      tokens.conservativeResize(tokens.rows() + 1, E);
      tokens.bottomRows(1) = x.row(int(i));
    }
    return y;
  };

  // The last row of a clip computed alone, from scratch.
  const auto alone = [&](const Clip& clip) -> Rows {
    const Rows h = self(clip.tokens, mha::residual(clip.tokens));
    return cross(h, clip.frames, mha::residual(h)).bottomRows(1);
  };

  Clip a = join(waves(30, M, 0.1f)), b = join(waves(100, M, 0.2f));
  check("30 and 100 frames take 2 and 7 of 16 pages", memories.free_pages() == 16 - 2 - 7);
  decode({&a, &b}, waves(2, E, 1));
  Rows y = decode({&a, &b}, waves(2, E, 2));
  check("each clip's row is as if the clip were alone", y.row(0) == alone(a) && y.row(1) == alone(b));

  memories.remove(b.memory);  // b has ended
  texts.remove(b.text);
  Clip c = join(waves(180, M, 0.3f));
  check("a longer clip joins in the pages of one that has left", memories.free_pages() == 16 - 2 - 12);
  y = decode({&c, &a}, waves(2, E, 3));
  check("the rows are those of the clips alone again", y.row(0) == alone(c) && y.row(1) == alone(a));

  // Beam search: two texts of one clip. The text is forked; the memory is the same one, named twice.
  Clip beam{a.frames, a.tokens, a.memory, texts.fork(a.text)};
  y = decode({&a, &c, &beam}, waves(3, E, 4));
  check("two beams attend to one memory", y.row(0) == alone(a) && y.row(2) == alone(beam));

  // Keys and values need no cache: a source says where they are. Here a slab with room for two clips of 64 frames.
  mha::Tensor<float, 4> keys(2, 64, 4, 8), values(2, 64, 4, 8);
  const std::vector<int> lengths{30, 64};
  const Rows frames[] = {a.frames, waves(64, M, 0.5f)};
  for (int i = 0; i < 2; ++i) {
    const auto made = cross.project_memory(frames[i]);
    std::copy(made.key.begin(), made.key.end(), &keys(i, 0, 0, 0));
    std::copy(made.value.begin(), made.value.end(), &values(i, 0, 0, 0));
  }
  const mha::ContiguousKv<float> slab{keys.view(), values.view(), {}, lengths};
  const Rows h = waves(2, E, 5);
  const int offsets[] = {0, 1, 2};  // a row of each
  y = cross(h, slab, mha::Ragged{offsets});
  const Rows first = cross(Rows(h.row(0)), frames[0]), second = cross(Rows(h.row(1)), frames[1]);
  check("so it is in memory of your own", y.row(0) == first && y.row(1) == second);
  return failures == 0 ? 0 : 1;
}
