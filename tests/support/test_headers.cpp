// SPDX-License-Identifier: Apache-2.0
// Has nothing of its own: tests/CMakeLists.txt precompiles the headers of every test for it.
