// SPDX-License-Identifier: Apache-2.0
// What the tests of families share: borrowed weights against the tensors of the file, and what is said of a spoilt one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <mha/io/checkpoint.hpp>

#include "checkpoint_files.hpp"
#include "compare.hpp"

namespace mha_test {

/// w (in, out) is the tensor, stored (out, in); or its columns from `first` on where it is stored (in, out).
template <class W, class T>
void expect_matrix(const W& w, const FileTensor<T>& stored, bool in_out = false, mha::Index first = 0) {
  const mha::Index columns = stored.shape[1];
  ASSERT_NE(w.data, nullptr);
  ASSERT_EQ(w.extent[0], in_out ? stored.shape[0] : columns);
  ASSERT_TRUE(in_out ? first + w.extent[1] <= columns : w.extent[1] == stored.shape[0]) << w.extent[1];
  for (mha::Index i = 0; i < w.extent[0]; ++i)
    for (mha::Index j = 0; j < w.extent[1]; ++j) {
      const mha::Index at = in_out ? i * columns + first + j : j * columns + i;
      ASSERT_EQ(support::to_double(w(i, j)), support::to_double(stored.values[static_cast<std::size_t>(at)]));
    }
}
/// v is the whole tensor, or from `first` on a part of it.
template <class V, class T> void expect_vector(const V& v, const FileTensor<T>& stored, mha::Index first = -1) {
  const auto size = static_cast<mha::Index>(stored.values.size());
  ASSERT_NE(v.data, nullptr);
  ASSERT_TRUE(first < 0 ? v.extent[0] == size : first + v.extent[0] <= size) << v.extent[0];
  for (mha::Index i = 0; i < v.extent[0]; ++i) {
    const mha::Index at = first < 0 ? i : first + i;
    ASSERT_EQ(support::to_double(v(i)), support::to_double(stored.values[static_cast<std::size_t>(at)]));
  }
}
/// A linear's weight and bias, or no bias.
template <class W, class B, class Folder>
void expect_linear(const W& weight, const B& bias, const Folder& folder, const std::string& name, bool in_out = false) {
  SCOPED_TRACE(name);
  expect_matrix(weight, folder.file.tensors.at(name + ".weight"), in_out);
  const auto found = folder.file.tensors.find(name + ".bias");
  if (found == folder.file.tensors.end()) {
    EXPECT_EQ(bias.extent[0], 0);
  } else {
    ASSERT_EQ(bias.extent[0], found->second.shape[0]);
    expect_vector(bias, found->second);
  }
}
template <class N, class Folder> void expect_norm(const N& norm, const Folder& folder, const std::string& name) {
  expect_vector(norm.weight, folder.file.tensors.at(name + ".weight"));
  const auto found = folder.file.tensors.find(name + ".bias");
  if (found == folder.file.tensors.end())
    EXPECT_EQ(norm.bias.extent[0], 0) << name;
  else
    expect_vector(norm.bias, found->second);
}

/// What opening a changed folder says, the folder as DIR; empty if nothing.
template <class Model, class Folder> std::string fault_after(const std::function<void(Folder&)>& change) {
  Folder folder;
  change(folder);
  const std::filesystem::path path = folder.write();
  std::string message = message_of<mha::SafetensorsError>([&] { Model{mha::Checkpoint(path)}; });
  if (const auto at = message.find(path.string()); at != message.npos) message.replace(at, path.string().size(), "DIR");
  return message;
}

/// A family's own names for sizes give way to those that transformers has for all families: {all, own} each.
template <class Model, class Folder>
void expect_common_names(std::initializer_list<std::pair<const char*, const char*>> names) {
  for (const auto& name : names) {
    const char *const common = name.first, *const own = name.second;
    EXPECT_EQ((fault_after<Model, Folder>([&](Folder& f) { f.config[common] = f.config.at(own); })), "") << common;
    std::string size;
    const std::string said = fault_after<Model, Folder>([&](Folder& f) {
      size = f.config.at(own).dump();
      f.config[common] = 1;
    });
    EXPECT_EQ(said, "DIR/config.json: '" + std::string(common) + "' is 1, expected " + size + " as '" + own + "' is");
  }
}

}  // namespace mha_test
