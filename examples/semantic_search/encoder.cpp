// SPDX-License-Identifier: Apache-2.0
#include "encoder.hpp"

#include <algorithm>
#include <cstddef>

namespace semantic_search {

template <mha::Backend B>
void EncoderOn<B>::embed(std::span<const Encoding> texts, Eigen::Ref<Matrix> vectors, EncoderWork& work) const {
  auto& [rows, ids, types, offsets] = work;
  ids.clear();
  offsets.assign(1, 0);
  for (const Encoding& text : texts) {
    ids.insert(ids.end(), text.ids.begin(), text.ids.end());
    offsets.push_back(static_cast<int>(ids.size()));
  }
  types.assign(ids.size(), 0);  // one text per input, so every token is of type 0

  const Matrix& x = bert_(ids, types, offsets, rows);  // (ΣL, E): no row of it is padding
  for (std::size_t t = 0; t < texts.size(); ++t) {
    auto mean = vectors.row(static_cast<Eigen::Index>(t));
    mean = x.middleRows(offsets[t], offsets[t + 1] - offsets[t]).colwise().sum();
    mean /= std::max(mean.norm(), 1e-12f);  // the number of rows cancels out
  }
}

template <mha::Backend B> mha::Tensor<float, 4> EncoderOn<B>::attention_weights(const Encoding& text, int layer) const {
  return bert_.attention_weights(text.ids, std::vector<int>(text.ids.size(), 0), layer);
}

template class EncoderOn<mha::Cpu>;
template class EncoderOn<mha::Systolic<>>;

std::unique_ptr<const Encoder> make_encoder(const Checkpoint& file, Machine machine, const mha::ThreadPool& threads) {
  models::require_unit(machine);
  if (machine == Machine::cpu) return std::make_unique<EncoderOn<mha::Cpu>>(file, mha::Cpu(threads));
  return std::make_unique<EncoderOn<mha::Systolic<>>>(file, mha::Systolic<>(threads));
}

}  // namespace semantic_search
