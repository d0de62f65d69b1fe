// Modules for tests over the software GPU that take as much memory as they are told to.
#pragma once

#include <string>

namespace sluice::test {

// A module with a variable of so many bytes and a kernel that writes a word.
inline std::string module_text(size_t variable_bytes) {
  return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 room[" +
         std::to_string(variable_bytes) + R"(];
.visible .entry store(.param .u64 out)
{
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u32 [%rd2], 7;
  ret;
}
)";
}

}  // namespace sluice::test
