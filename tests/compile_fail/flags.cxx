// SPDX-License-Identifier: Apache-2.0
// Never compiled: its target only collects the include directories of mha::mha.
