# SPDX-License-Identifier: Apache-2.0
# A program of three units on mha::compiled, in the consumers' projects.
get_target_property(mha_left_out mha_compiled EXCLUDE_FROM_ALL)
if(NOT mha_left_out)
  message(FATAL_ERROR "mha::compiled would be built by those too who do not link it")
endif()
set(here "${CMAKE_CURRENT_LIST_DIR}")
add_executable(compiled "${here}/main.cpp" "${here}/bfloat16.cpp" "${here}/matrix_unit.cpp")
target_link_libraries(compiled PRIVATE mha::compiled)
