// SPDX-License-Identifier: Apache-2.0
// What the host model's machines do in most of a test's time, for programs whose tests are compiled without
// optimization: of functions that are compiled in several sources the linker takes those of the first, which is this
// one.
#include "warpgroup_machine.hpp"

namespace support::gpu {

using mha::bfloat16;
using mha::half;
using Word = std::uint32_t;

template void HostMachine::mma_m16n8k16<bfloat16>(float (&)[4], const Word (&)[4], Word, Word);
template void HostMachine::mma_m16n8k16<half>(float (&)[4], const Word (&)[4], Word, Word);
template float HostMachine::shuffle_xor(float, int);
template double HostMachine::shuffle_xor(double, int);
template void WarpgroupHostMachine::wgmma<bfloat16, 64>(float (&)[8][4], Shared, Shared, bool);
template void WarpgroupHostMachine::wgmma<bfloat16, 64>(float (&)[8][4], const Word (&)[4], Shared, Shared);
template void WarpgroupHostMachine::wgmma<bfloat16, 128>(float (&)[16][4], Shared, Shared, bool);
template void WarpgroupHostMachine::wgmma_wait<0>();

/// Uses the functions that are no templates, which are compiled where they are used.
void use(WarpgroupHostMachine& m, Block& block, Word (&r)[4], const void* from) {
  m.ldmatrix_x4(r, 0);
  m.ldmatrix_x4_trans(r, 0);
  m.cp_async16(0, from, true);
  m.commit();
  m.wait<0>();
  m.sync();
  m.sync_warp();
  m.any(m.all(true));
  m.store(0, m.load<float>(0));
  m.store(0, m.load<Chunk>(0));
  m.store_global(r, m.load_global(r));
  block.run({}, 0, {});
}

}  // namespace support::gpu
