// SPDX-License-Identifier: Apache-2.0
// 16: the first layer on a GPU
//
// You learn   to run a layer on an NVIDIA GPU by changing one type, to choose the GPU, to move data there, to enqueue
//             calls in your own stream, to keep keys and values there, to replay a step by a CUDA graph, to train
//             there, and what explain() says of the kernels
// The maths   that of 02_first_layer.cpp
// Symbols     L = 6 tokens of E = 64 numbers, Hq = 8 query heads, Hkv = 2 key/value heads, D = E / Hq = 8:  x, y (L, E)
// Output      with a GPU, the difference between layer and loops (about 1e-6: float against double) and the part of a
//             loss that training leaves; without one, why it cannot run; then what a call runs, or would run, and a
//             larger one in bfloat16
// Next        17_your_own_threads.cpp
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

#include <cuda_runtime_api.h>

#include <mha/cuda.cuh>

constexpr int L = 6, E = 64, Hq = 8, Hkv = 2, D = E / Hq;

// The layer of 02_first_layer.cpp with mha::Cuda instead of mha::Cpu, and any scalar.
template <class T> using Layer = mha::MultiHeadAttention<T, mha::Cuda, mha::GroupedQuery<Hkv>, mha::Causal>;

mha::Tensor<float, 2> tokens() {
  mha::Tensor<float, 2> x(L, E);  // (L, E), on the host
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = float(std::sin(0.1 * (i + 1) * e));
  return x;
}

// The layer as loops, in double, with the layer's own weights, which the host can read.
double error_against_loops(const Layer<float>& layer, const mha::Tensor<float, 2>& y) {
  const auto x = tokens();
  const auto w = layer.parameters();
  const auto times = [&](int i, const auto& matrix, int column) {
    double sum = 0;
    for (int e = 0; e < E; ++e) sum += double(x(i, e)) * double(matrix(e, column));
    return sum;
  };
  std::vector<double> heads(std::size_t(L * E));  // (L, Hq·D)
  for (int h = 0; h < Hq; ++h) {
    const int g = h / (Hq / Hkv);
    for (int i = 0; i < L; ++i) {
      double sum = 0, p[L];
      for (int j = 0; j <= i; ++j) {
        double logit = 0;
        for (int d = 0; d < D; ++d)
          logit += times(i, w.query.matrix(), h * D + d) * times(j, w.key.matrix(), g * D + d) / std::sqrt(double(D));
        sum += p[j] = std::exp(logit);  // these logits are small
      }
      for (int j = 0; j <= i; ++j)
        for (int d = 0; d < D; ++d)
          heads[std::size_t(i * E + h * D + d)] += p[j] / sum * times(j, w.value.matrix(), g * D + d);
    }
  }
  double largest = 0;
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) {
      double expected = 0;
      for (int c = 0; c < Hq * D; ++c) expected += heads[std::size_t(i * E + c)] * double(w.output.matrix()(c, e));
      const double difference = std::fabs(double(y(i, e)) - expected);
      if (difference > largest || std::isnan(difference)) largest = difference;  // a NaN is the largest, and stays
    }
  return largest;
}

double run() {
  const mha::Cuda gpu{.device = 0};  // of several GPUs this one; mha::Cuda{} is the thread's current one
  Layer<float> layer({.d_model = E, .num_heads = Hq}, gpu);
  layer.initialize(mha::XavierUniform{.seed = 1});  // drawn on the host, packed on that device

  const auto x = mha::to_device(tokens(), gpu);  // (L, E), on the device; nothing is copied unasked
  const auto y = layer(x);                       // (L, E), on the device
  return error_against_loops(layer, mha::to_host(y));
}

// With your own workspace, nothing is allocated from the second call on, and nothing waits until you do.
double run_in_a_stream() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreate(&stream) != cudaSuccess) return NAN;
  double error = NAN;
  {
    Layer<float> layer({.d_model = E, .num_heads = Hq});
    layer.initialize(mha::XavierUniform{.seed = 1});
    mha::Cuda::Workspace workspace(stream);
    const auto x = mha::to_device(tokens(), stream);
    mha::DeviceTensor<float, 2> y(L, E);
    for (int step = 0; step < 3; ++step) layer(x, mha::into(y), workspace);  // enqueued one after the other
    error = error_against_loops(layer, mha::to_host(y, stream));             // waits for all three
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? error : NAN;
}

// A cache of this layer is in the device's memory. The step of the second token is recorded in a graph, which the later
// tokens replay: each sees one key more.
double run_in_steps() {
  cudaStream_t stream = nullptr;
  if (cudaStreamCreate(&stream) != cudaSuccess) return NAN;
  double error = NAN;
  {
    Layer<float> layer({.d_model = E, .num_heads = Hq});
    layer.initialize(mha::XavierUniform{.seed = 1});
    mha::Cuda::Workspace workspace(stream);
    auto cache =
        mha::make_cache(layer, mha::Contiguous{.length = L}, {.recordable = true}, mha::Cuda::Workspace(stream));
    cache.add();

    const auto x = mha::to_device(tokens(), stream);
    mha::DeviceTensor<float, 2> y(L, E), token(1, E), next(1, E);  // a graph reads and writes at the same places
    const auto copy = [&](float* to, const float* from) {
      cudaMemcpyAsync(to, from, E * sizeof(float), cudaMemcpyDeviceToDevice, stream);
    };
    cudaGraphExec_t graph = nullptr;
    mha::RecordedStep recorded;
    for (int i = 0; i < L; ++i) {
      copy(token.data(), x.data() + i * E);
      auto step = i < 2 ? cache.step(1) : cache.step(recorded, cache.ids());  // the new length goes to the device
      if (i == 0) layer(token, step[0], mha::into(next), workspace);          // a first call allocates
      if (i == 1) {
        cudaGraph_t made = nullptr;
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        layer(token, step[0], mha::into(next), workspace);
        cudaStreamEndCapture(stream, &made);
        cudaGraphInstantiate(&graph, made, 0);
        cudaGraphDestroy(made);
        recorded = step.recorded();
      }
      if (i > 0) cudaGraphLaunch(graph, stream);
      step.commit();
      copy(y.data() + i * E, next.data());
    }
    error = error_against_loops(layer, mha::to_host(y, stream));
    cudaGraphExecDestroy(graph);
  }
  return cudaStreamDestroy(stream) == cudaSuccess ? error : NAN;
}

// Descent on ½ ‖y‖², whose gradient by y is y. The tape and the gradients are on the device; the host updates the
// weights, and the next call finds them packed. Returns the part of the loss that is left.
double run_training() {
  Layer<float> layer({.d_model = E, .num_heads = Hq});
  layer.initialize(mha::XavierUniform{.seed = 1});
  mha::Cuda::Workspace workspace;
  const auto x = mha::to_device(tokens());
  mha::DeviceTensor<float, 2> y(L, E), dx(L, E);
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) {
    layer(x, tape, mha::into(y), workspace);
    layer.backward(y, tape, gradients, mha::into(dx), workspace);
    layer.update([&](auto& p) {
      p.for_each(gradients.to_host(workspace), [](auto numbers, auto of_numbers) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= 1e-3f * of_numbers[i];
      });
    });
    gradients.clear(workspace);
    losses.push_back(0);
    const auto on_host = mha::to_host(y);
    for (const float number : on_host) losses.back() += double(number) * double(number) / 2;
  }
  return losses.back() / losses.front();
}

int main() {
  bool holds = true;
  if (const mha::Support here = mha::Cuda{}.supported(); here.ok) {
    const double error = run(), in_a_stream = run_in_a_stream(), in_steps = run_in_steps();
    std::printf("largest difference to the loops: %.1e, in a stream of its own %.1e, by a graph %.1e\n", error,
                in_a_stream, in_steps);
    const double left = run_training();
    std::printf("of the loss, ten steps of descent leave %.2f\n", left);
    holds = error < 1e-5 && in_a_stream < 1e-5 && in_steps < 1e-5 && left < 1;
  } else {
    std::printf("no GPU: %s\n", here.reason.c_str());
  }
  std::printf("\nthis layer:\n%s", Layer<float>({.d_model = E, .num_heads = Hq}).explain(1, L, L).c_str());
  std::printf("\n4096 tokens of 2048 numbers in bfloat16:\n%s",
              Layer<mha::bfloat16>({.d_model = 2048, .num_heads = 16}).explain(1, 4096, 4096).c_str());
  return holds ? 0 : 1;
}
