// SPDX-License-Identifier: Apache-2.0
// The models of examples/models as a shared library, for checkpoints.py: each of a folder as Hugging Face writes it.
#include <cstddef>
#include <Eigen/Core>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <mha/mha.hpp>

#include "../../examples/models/bert.hpp"
#include "../../examples/models/gpt2.hpp"
#include "../../examples/models/llama.hpp"
#include "../../examples/models/t5.hpp"
#include "../../examples/models/vit.hpp"
#include "../measure.hpp"
#include "peer.hpp"

namespace {

using models::Rows;

/// What a call is given; a model reads what it needs.
struct Input {
  const int* ids;  // (offsets[texts]): the texts one after another, or an encoder's source
  const int* offsets;
  int texts;
  const int* target;  // (target_length)
  int target_length;
  const float* pixels;  // (channels, height, width)
  int channels, height, width;

  std::span<const int> tokens() const { return {ids, static_cast<std::size_t>(offsets[texts])}; }
};

struct Model {
  virtual ~Model() = default;
  virtual void run(const Input& input) = 0;

  /// Of the last call, until the next one.
  Eigen::Map<const Rows> result() const { return {result_->data(), result_->rows(), result_->cols()}; }

 protected:
  Rows own_;
  const Rows* result_ = &own_;
};

/// A vector for each text: the mean of its rows, of length 1.
class BertModel : public Model {
 public:
  explicit BertModel(const mha::Checkpoint& checkpoint) : bert_(mha::Bert<float>(checkpoint)) {}
  void run(const Input& input) override {
    types_.resize(input.tokens().size());
    const Rows& x = bert_(input.tokens(), types_, {input.offsets, static_cast<std::size_t>(input.texts) + 1}, work_);
    own_.resize(input.texts, x.cols());
    for (int t = 0; t < input.texts; ++t) {
      own_.row(t) = x.middleRows(input.offsets[t], input.offsets[t + 1] - input.offsets[t]).colwise().sum();
      own_.row(t).normalize();
    }
  }

 private:
  models::Bert<> bert_;
  models::Work work_;
  std::vector<int> types_;
};

/// The logits of every row of one text.
template <class Decoder, template <class> class Weights> class DecoderModel : public Model {
 public:
  explicit DecoderModel(const mha::Checkpoint& checkpoint) : decoder_(Weights<float>(checkpoint)) {}
  void run(const Input& input) override { result_ = &decoder_(input.tokens(), work_); }

 private:
  Decoder decoder_;
  models::Work work_;
};

/// The logits of every row of the target.
class T5Model : public Model {
 public:
  explicit T5Model(const mha::Checkpoint& checkpoint) : t5_(mha::T5<float>(checkpoint)) {}
  void run(const Input& input) override {
    const Rows& memory = t5_.encode(input.tokens(), encoder_);
    result_ = &t5_.decode({input.target, static_cast<std::size_t>(input.target_length)}, memory, decoder_);
  }

 private:
  models::T5<mha::Relu> t5_;
  models::Work encoder_, decoder_;
};

/// The logits of the classes.
class VitModel : public Model {
 public:
  explicit VitModel(const mha::Checkpoint& checkpoint) : vit_(mha::Vit<float>(checkpoint)) {}
  void run(const Input& input) override {
    result_ = &vit_(mha::view(input.pixels, input.channels, input.height, input.width), work_);
  }

 private:
  models::Vit<> vit_;
  models::VitWork work_;
};

Model* make(const std::string& family, const mha::Checkpoint& checkpoint) {
  if (family == "bert") return new BertModel(checkpoint);
  if (family == "gpt2") return new DecoderModel<models::Gpt2<>, mha::Gpt2>(checkpoint);
  if (family == "llama") return new DecoderModel<models::Llama<>, mha::Llama>(checkpoint);
  if (family == "t5") return new T5Model(checkpoint);
  if (family == "vit") return new VitModel(checkpoint);
  throw std::invalid_argument("there is no model of the family '" + family + "'");
}

}  // namespace

MHA_PEER const char* peer_model_machine() {
  static const std::string text = bench::machine();
  return text.c_str();
}
/// Multiply-adds of so many threads together, in GFLOP/s.
MHA_PEER double peer_model_peak(int threads) { return bench::peak_gflops_of(threads); }

/// Its threads are as many as MHA_NUM_THREADS says.
MHA_PEER const char* peer_model_begin(Model** model, const char* family, const char* folder) {
  return bench::attempt([&] { *model = make(family, mha::Checkpoint(folder)); });
}
MHA_PEER const char* peer_model_run(Model* model, const Input* input) {
  return bench::attempt([&] { model->run(*input); });
}
MHA_PEER const float* peer_model_result(const Model* model, int* rows, int* columns) {
  const auto result = model->result();
  *rows = static_cast<int>(result.rows());
  *columns = static_cast<int>(result.cols());
  return result.data();
}
MHA_PEER void peer_model_end(Model* model) { delete model; }
