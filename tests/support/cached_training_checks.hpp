// SPDX-License-Identifier: Apache-2.0
// Backward passes of a layer's calls over keys and values that they did not make, on a backend whose tensors are
// DeviceTensors, beside the same numbers in double on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <mha/attention_backward.hpp>
#include <mha/layer/kv_cache.hpp>

#include "backward_case.hpp"
#include "kv_copies.hpp"
#include "layer_training_checks.hpp"

namespace cached_training_checks {

using mha::Index;
using training_checks::expect_norm_wise;
using training_checks::Rows;
using training_checks::sizes;

/// How often the host has waited for a device so far, where that can be counted.
template <class B> int waits() { return 0; }

template <class T, class B>
using Layer = mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Rotary<>, mha::QkNorm, mha::Sink,
                                      mha::GatedHeads>;

/// Nothing is allocated while one lives, and nothing is waited for; checked if `warm`.
template <class B> class Quiet {
 public:
  Quiet(bool warm, const char* what) : warm_(warm), what_(what) {}
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  ~Quiet() {
    if (!warm_) return;
    EXPECT_EQ(training_checks::device_allocations<B>(), allocations_) << what_;
    EXPECT_EQ(waits<B>(), waits_) << what_;
  }

 private:
  bool warm_;
  const char* what_;
  int allocations_ = training_checks::device_allocations<B>(), waits_ = waits<B>();
};

/// A layer there and one in double here, of the same weights.
template <class B, class T> struct Twins {
  support::Random random;
  const mha::Sink sink{{0.5f, -1, 2, 0}};
  Layer<T, B> there;
  Layer<double, mha::Reference> here;

  explicit Twins(const char* name, const mha::Config& config = sizes)
      : random(name), there(config, sink), here(config, sink) {
    training_checks::share_layer<T>(there, here, random);
  }
};

/// Sequences that grow by steps; step i gives sequence b so many rows. Their texts lie one after another.
struct Text {
  std::vector<std::vector<Index>> steps;

  std::size_t sequences() const { return steps[0].size(); }
  Index length(std::size_t b) const {
    Index n = 0;
    for (const auto& step : steps) n += step[b];
    return n;
  }
  std::vector<Index> offsets() const {
    std::vector<Index> to{0};
    for (std::size_t b = 0; b < sequences(); ++b) to.push_back(to.back() + length(b));
    return to;
  }
  Index longest() const {
    Index n = 0;
    for (std::size_t b = 0; b < sequences(); ++b) n = std::max(n, length(b));
    return n;
  }
  /// f(row of the texts, row of step i).
  template <class F> void each_row(std::size_t i, const F& f) const {
    Index to = 0;
    for (std::size_t b = 0; b < sequences(); ++b) {
      Index from = offsets()[b];
      for (std::size_t j = 0; j < i; ++j) from += steps[j][b];
      for (Index r = 0; r < steps[i][b]; ++r) f(from + r, to++);
    }
  }
  template <class T> Rows<T> rows_of(std::size_t i, Rows<T>& all) const {
    Index n = 0;
    for (const Index rows : steps[i]) n += rows;
    Rows<T> to(1, n, all.width);
    each_row(i, [&](Index from, Index at) {
      for (Index e = 0; e < all.width; ++e) {
        to.here(0, at, e) = all.here(0, from, e);
        to.wide(0, at, e) = all.wide(0, from, e);
      }
    });
    to.send();
    return to;
  }
};

/// Of a tensor there, whole.
template <class T, class Exact>
void expect_near(const mha::DeviceTensor<T, 4>& there, const Exact& exact, double bound, const std::string& what) {
  expect_norm_wise(mha::to_host(there), exact, bound, what);
}
template <class T, int Rank> void expect_zero(const mha::DeviceTensor<T, Rank>& there, const char* what) {
  for (const T x : mha::to_host(there)) ASSERT_EQ(support::to_double(x), 0) << what;
}

/// The texts in steps of a cache there, differentiated from the last to the first, have the gradients of the whole
/// texts here; the keys' and values' own are those of the same steps here. A second turn has the same bits, allocates
/// nothing and waits for nothing.
template <class B, class T, class Storage, class... Extra>
void expect_text(const char* name, const Storage& storage, const Text& text, const Extra&... extra) {
  SCOPED_TRACE(name);
  const double limit = training_checks::layer_bound<T>();
  Twins<B, T> twins(name);
  const Layer<T, B>& there = twins.there;
  const auto& here = twins.here;
  const auto offsets = text.offsets();
  const Index width = sizes.d_model, sequences = static_cast<Index>(text.sequences());
  const mha::CacheSizes of_cache{.sequences = sequences};
  auto x = Rows<T>::drawn(twins.random, 1, offsets.back(), width),
       dy = Rows<T>::drawn(twins.random, 1, offsets.back(), width);
  auto whole_tape = here.tape();
  auto exact = here.gradients();
  static_cast<void>(here(x.wide, whole_tape, mha::Ragged{offsets}, extra...));
  const auto exact_dx = here.backward(dy.wide, whole_tape, exact);

  const std::size_t steps = text.steps.size();
  std::vector<Rows<T>> xs, dys;
  for (std::size_t i = 0; i < steps; ++i) xs.push_back(text.rows_of(i, x)), dys.push_back(text.rows_of(i, dy));
  auto exact_d = here.key_value_gradients(sequences, text.longest() + 2);
  auto cache_here = mha::make_cache(here, storage, of_cache);
  for (Index b = 0; b < sequences; ++b) cache_here.add();
  std::vector<decltype(here.tape())> tapes_here(steps);
  for (std::size_t i = 0; i < steps; ++i) {
    auto step = cache_here.step(cache_here.ids(), text.steps[i]);
    static_cast<void>(here(xs[i].wide, step[0], tapes_here[i], extra...));
    step.commit();
  }
  for (std::size_t i = steps; i-- > 0;) static_cast<void>(here.backward(dys[i].wide, tapes_here[i], exact_d));

  typename B::Workspace workspace;
  std::vector<decltype(there.tape())> tapes(steps);
  auto gradients = there.gradients(), constant = there.gradients();
  auto d = there.key_value_gradients(sequences, text.longest() + 2);
  expect_zero(d.key, "new keys' gradients");
  expect_zero(d.value, "new values' gradients");
  const auto turns = [&](const auto&... far) {
    mha::Tensor<T, 3> first_dx, found_dx(1, offsets.back(), width);
    std::vector<mha::Accumulator<T>> first;
    for (int turn = 0; turn < 2; ++turn) {
      const bool warm = turn > 0;
      {
        auto cache = mha::make_cache(there, storage, of_cache);
        for (Index b = 0; b < sequences; ++b) cache.add();
        for (std::size_t i = 0; i < steps; ++i) {
          auto step = cache.step(cache.ids(), text.steps[i]);
          mha::DeviceTensor<T, 3> y(1, xs[i].length, width);
          {
            const Quiet<B> quiet(warm, "a recorded step");
            there(xs[i].view(), step[0], tapes[i], far..., mha::into(y), workspace);
          }
          step.commit();
        }
      }  // the cache is gone
      for (std::size_t i = steps; i-- > 0;) {
        Rows<T> dx(1, xs[i].length, width), dx_of_constants(1, xs[i].length, width);
        dx.send(), dx_of_constants.send();
        {
          const Quiet<B> quiet(warm, "a step's backward pass");
          there.backward(dys[i].view(), tapes[i], gradients, d, mha::into(dx.view()), workspace);
        }
        const auto rows = dx.fetched();
        text.each_row(i, [&](Index to, Index from) {
          for (Index e = 0; e < width; ++e) found_dx(0, to, e) = rows(0, from, e);
        });
        if (i + 1 < steps) continue;
        // No later call has left anything for the last step's rows.
        there.backward(dys[i].view(), tapes[i], constant, mha::StopGradient{}, mha::into(dx_of_constants.view()),
                       workspace);
        EXPECT_EQ(support::differing(dx_of_constants.fetched(), rows), 0u);
        const auto &a = gradients.to_host(workspace), &b = constant.to_host(workspace);
        EXPECT_TRUE(std::equal(a.memory().data, a.memory().data + a.memory().extent[0], b.memory().data));
      }
      const auto& host = gradients.to_host(workspace);
      const std::vector<mha::Accumulator<T>> all(host.memory().data, host.memory().data + host.memory().extent[0]);
      if (!warm) {
        expect_norm_wise(found_dx, exact_dx, limit, "dx");
        training_checks::expect_parts(host, exact, limit, name);
        expect_near(d.key, exact_d.key, limit, "the keys' gradients");
        expect_near(d.value, exact_d.value, limit, "the values' gradients");
        first_dx = found_dx, first = all;
      }
      EXPECT_EQ(support::differing(found_dx, first_dx), 0u) << "turn " << turn;
      EXPECT_EQ(support::differing(all, first), 0u) << "turn " << turn;
      {
        const Quiet<B> quiet(true, "clear(workspace)");
        gradients.clear(workspace), constant.clear(workspace);
        d.clear(workspace);
      }
      expect_zero(d.key, "cleared keys' gradients");
      expect_zero(d.value, "cleared values' gradients");
    }
  };
  turns(training_checks::there_of(extra)...);
}

/// Two calls on what project_memory() returned, of sequences of different lengths at places of their own: the gradients
/// of the memory and the rest.
template <class B, class T> void expect_ragged_memory(const char* name) {
  SCOPED_TRACE(name);
  const double limit = training_checks::layer_bound<T>();
  mha::Config config = sizes;
  config.kv_model = 24;
  Twins<B, T> twins(name, config);
  const Layer<T, B>& there = twins.there;
  const auto& here = twins.here;
  const std::vector<Index> of_memory{0, 21, 21, 26, 60}, of_x{0, 3, 9, 30, 31}, of_z{0, 0, 1, 2, 12}, at{5, 0, -7, 100};
  const mha::Ragged ragged{of_memory};
  const mha::Origin origin{at};
  auto memory = Rows<T>::drawn(twins.random, 1, of_memory.back(), config.kv_model);
  auto x = Rows<T>::drawn(twins.random, 1, of_x.back(), config.d_model),
       dx_of = Rows<T>::drawn(twins.random, 1, of_x.back(), config.d_model),
       z = Rows<T>::drawn(twins.random, 1, of_z.back(), config.d_model),
       dz_of = Rows<T>::drawn(twins.random, 1, of_z.back(), config.d_model);
  auto memory_here = here.memory_tape();
  auto x_here = here.tape(), z_here = here.tape();
  auto exact = here.gradients();
  auto exact_d = here.key_value_gradients(4, 36);
  const auto projected_here = here.project_memory(memory.wide, memory_here, ragged, origin);
  const auto exact_y = here(x.wide, projected_here, x_here, mha::Ragged{of_x});
  static_cast<void>(here(z.wide, projected_here, z_here, mha::Ragged{of_z}, mha::Causal{}));
  const auto exact_dx = here.backward(dx_of.wide, x_here, exact, exact_d),
             exact_dz = here.backward(dz_of.wide, z_here, exact, exact_d),
             exact_dm = here.backward(exact_d, memory_here, exact);

  for (auto* rows : {&memory, &x, &dx_of, &z, &dz_of}) rows->send();
  typename B::Workspace workspace;
  auto memory_tape = there.memory_tape();
  auto x_tape = there.tape(), z_tape = there.tape();
  auto gradients = there.gradients(), constant = there.gradients();
  auto d = there.key_value_gradients(4, 36);
  mha::Tensor<T, 3> first_dm;
  for (int turn = 0; turn < 2; ++turn) {
    const bool warm = turn > 0;
    const auto projected = there.project_memory(memory.view(), memory_tape, ragged, origin, workspace);
    mha::DeviceTensor<T, 3> y(1, x.length, config.d_model), y_of_z(1, z.length, config.d_model);
    Rows<T> dx(1, x.length, config.d_model), dz(1, z.length, config.d_model), dm(1, memory.length, config.kv_model),
        of_constants(1, x.length, config.d_model);
    for (auto* rows : {&dx, &dz, &dm, &of_constants}) rows->send();
    {
      const Quiet<B> quiet(warm, "calls on a projected memory");
      there(x.view(), projected, x_tape, mha::Ragged{of_x}, mha::into(y), workspace);
      there(z.view(), projected, z_tape, mha::Ragged{of_z}, mha::Causal{}, mha::into(y_of_z), workspace);
      there.backward(dx_of.view(), x_tape, gradients, d, mha::into(dx.view()), workspace);
      there.backward(dz_of.view(), z_tape, gradients, d, mha::into(dz.view()), workspace);
      there.backward(d, memory_tape, gradients, mha::into(dm.view()), workspace);
      there.backward(dx_of.view(), x_tape, constant, mha::StopGradient{}, mha::into(of_constants.view()), workspace);
    }
    const auto found_dm = dm.fetched();
    if (!warm) {
      expect_norm_wise(mha::to_host(y), exact_y, limit, "y");
      expect_norm_wise(dx.fetched(), exact_dx, limit, "dx");
      expect_norm_wise(dz.fetched(), exact_dz, limit, "dz");
      expect_norm_wise(found_dm, exact_dm, limit, "d_memory");
      expect_near(d.key, exact_d.key, limit, "the keys' gradients");
      expect_near(d.value, exact_d.value, limit, "the values' gradients");
      training_checks::expect_parts(gradients.to_host(workspace), exact, limit, name);
      first_dm = found_dm;
    }
    EXPECT_EQ(support::differing(found_dm, first_dm), 0u);
    EXPECT_EQ(support::differing(of_constants.fetched(), dx.fetched()), 0u);
    there.backward(d, memory_tape, gradients, mha::add_to(dm.view()), workspace);
    training_checks::expect_doubled(dm.fetched(), found_dm);
    gradients.clear(workspace), constant.clear(workspace), d.clear(workspace);
  }
}

/// Attention over pages and rings there, which may have dropped positions, beside the same here.
template <class B, class T> void expect_sources(const char* name) {
  SCOPED_TRACE(name);
  support::Random random(name);
  const std::vector<Index> lengths{90, 5, 64};
  const support::BackwardCase<T> c(name, {3, 4, 90, 4, 2, 16, 24});
  const auto wide = c.template as<double>();
  const support::PagedCopy<T> pages(random, c.k.view(), c.v.view(), lengths, 16);
  const auto q = mha::to_device(c.q), d_out = mha::to_device(c.d_out);
  typename B::Workspace workspace;
  const auto expect = [&](const auto& source, const auto& source_here, const auto&... extra) {
    mha::AttentionTape<double, mha::Reference> tape_here;
    const auto out_here = mha::attention<mha::Reference>(wide.q, source_here, extra..., mha::record(tape_here));
    const auto exact = mha::attention_backward(wide.d_out, wide.q, source_here, out_here, tape_here, extra...);
    mha::AttentionTape<T, B> tape;
    const auto plain = mha::attention<B>(q, source, extra..., workspace);
    const auto out = mha::attention<B>(q, source, extra..., mha::record(tape), workspace);
    EXPECT_EQ(support::differing(mha::to_host(out), mha::to_host(plain)), 0u) << "a tape changes no bit";
    const auto g = mha::attention_backward(d_out, q, source, out, tape, extra..., workspace);
    const double limit = support::gradient_bound<T>;
    EXPECT_LE(support::relative_error(mha::to_host(g.query), exact.query, 1), limit);
    EXPECT_LE(support::relative_error(mha::to_host(g.key), exact.key, 1), limit);
    EXPECT_LE(support::relative_error(mha::to_host(g.value), exact.value, 1), limit);
    const auto key = mha::to_host(g.key), value = mha::to_host(g.value);
    Index row = 0;  // of what is dropped, exactly nothing
    for (std::size_t b = 0; b < lengths.size(); ++b)
      for (Index k = 0; k < lengths[b]; ++k, ++row) {
        if (mha::detail::held(source_here, static_cast<Index>(b), k) == k) continue;
        for (Index h = 0; h < 2; ++h) {
          for (Index e = 0; e < 16; ++e) ASSERT_EQ(support::to_double(key(0, row, h, e)), 0);
          for (Index e = 0; e < 24; ++e) ASSERT_EQ(support::to_double(value(0, row, h, e)), 0);
        }
      }
    mha::DeviceTensor<T, 3> dk(key.extent(1), 2, 16), dv(key.extent(1), 2, 24);
    for (const bool warm : {false, true}) {
      const Quiet<B> quiet(warm, "attention_backward_into");
      mha::attention_backward_into({{}, dk, dv}, d_out, q, source, out, tape, extra..., workspace);
    }
    const auto again = mha::to_host(dk);
    EXPECT_TRUE(std::equal(again.begin(), again.end(), key.begin(),
                           [](T a, T b) { return support::bits(a) == support::bits(b); }));
  };
  const auto key = mha::to_device(pages.key), value = mha::to_device(pages.value);
  const auto table = mha::to_device(mha::view(pages.table.data(), static_cast<Index>(pages.table.size())));
  const auto widened = [](const mha::Tensor<T, 4>& from) {
    mha::Tensor<double, 4> to(from.extent(0), from.extent(1), from.extent(2), from.extent(3));
    std::transform(from.begin(), from.end(), to.begin(), [](T e) { return support::to_double(e); });
    return to;
  };
  const auto wide_key = widened(pages.key), wide_value = widened(pages.value);
  const mha::PagedKv<double> wide_pages{wide_key.view(), wide_value.view(), pages.table, pages.lengths};
  mha::PagedKv<T> there{key.view(), value.view(), pages.table, pages.lengths};
  expect(there, wide_pages, mha::Causal{});
  there.table = {table.data(), static_cast<Index>(table.size()), mha::Memory::device};
  expect(there, wide_pages, mha::SlidingWindow{.left = 20});
  for (const Index first : {0, 4}) {
    const support::RingCopy<T> ring(c.k.view(), c.v.view(), lengths, 37, first);
    const support::RingCopy<double> wide_ring(wide.k.view(), wide.v.view(), lengths, 37, first);
    const auto ring_key = mha::to_device(ring.key), ring_value = mha::to_device(ring.value);
    expect(mha::RingKv<T>{ring_key.view(), ring_value.view(), ring.lengths, first}, wide_ring.source(), mha::Causal{});
  }
}

}  // namespace cached_training_checks
