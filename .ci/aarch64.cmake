# SPDX-License-Identifier: Apache-2.0
# Debian's g++ for aarch64; programs run in QEMU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(FETCHCONTENT_SOURCE_DIR_GOOGLETEST /usr/src/googletest)
