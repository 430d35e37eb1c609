// SPDX-License-Identifier: Apache-2.0
// Functions of a user's own that are called as the library's are: argument-dependent lookup finds both for a policy of
// the library, and ours, which refuse what is no tensor, stand back.
#include <type_traits>
#include <vector>

#include <mha/mha.hpp>

namespace user {

struct Base {};
struct Rows : Base {};
struct Result {};

template <class Q, class K, class V, class... Policies>
Result attention(const Q&, const K&, const V&, const Policies&...);
template <class... Policies> Result attention_into(Base&, const Base&, const Base&, const Base&, const Policies&...);
template <class T> Result attention_weights(const std::vector<T>&, const std::vector<T>&, mha::Causal, double = 1);
template <class R, class Tape, class... Policies>
Result attention_backward(const R&, const R&, const R&, const R&, const R&, const Tape&, const Policies&...);

template <class R> constexpr bool is_ours = std::is_same_v<R, Result>;

static_assert(is_ours<decltype(attention(Rows{}, Rows{}, Rows{}, mha::Causal{}))>);
static_assert(is_ours<decltype(attention(Rows{}, Rows{}, Rows{}, mha::Causal{}, mha::SoftCap{.cap = 2}))>);
static_assert(is_ours<decltype(attention(std::vector<float>(), Rows{}, 1, mha::Full{}))>);
static_assert(is_ours<decltype(attention_weights(std::vector<float>(), std::vector<float>(), mha::Causal{}))>);

extern Rows rows;
extern const mha::Causal causal;
extern mha::AttentionTape<float> tape;
static_assert(is_ours<decltype(attention(rows, rows, rows, causal))>);
static_assert(is_ours<decltype(attention_into(rows, rows, rows, rows, causal))>);
static_assert(is_ours<decltype(attention_into(rows, rows, rows, rows, mha::Causal{}))>);
static_assert(is_ours<decltype(attention_backward(rows, rows, rows, rows, rows, tape, causal))>);

}  // namespace user
