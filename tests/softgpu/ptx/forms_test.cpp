// Every listed form of every opcode, on every instruction set of this processor. See forms.h.
#include <gtest/gtest.h>

#include <cctype>

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/forms.h"
#include "tests/softgpu/ptx/forms.h"

namespace softgpu::ptx::test {
namespace {

class FormsTest : public ::testing::TestWithParam<std::tuple<std::string, const char*>> {};

TEST_P(FormsTest, EveryFormMatchesTheReference) {
  const auto& [op, isa] = GetParam();
  check_forms(forms_of(op), isa);
}

INSTANTIATE_TEST_SUITE_P(Ptx, FormsTest,
                         ::testing::Combine(::testing::ValuesIn(form_opcodes()),
                                            ::testing::Values("base", "avx2", "avx512")),
                         [](const auto& given) {
                           return std::get<0>(given.param) + "_" + std::get<1>(given.param);
                         });

TEST(Forms, TheDecodersKnowNoOpcodeThatIsNotListed) {
  for (const OpcodeTable* table : {&arithmetic_opcodes(), &memory_opcodes(), &flow_opcodes(),
                                   &matrix_opcodes(), &rare_opcodes(), &async_opcodes()}) {
    for (const auto& [op, decoder] : *table) EXPECT_TRUE(form_opcode_listed(op)) << op;
  }
}

TEST(Forms, WhatIsNotListedIsNotAccepted) {
  EXPECT_TRUE(form_listed("add", {"rn", "ftz", "f32"}));
  EXPECT_TRUE(form_listed("add", {"ftz", "rn", "f32"}));
  EXPECT_FALSE(form_listed("add", {"rn", "rz", "f32"}));
  EXPECT_FALSE(form_listed("add", {"f32", "f32"}));
  EXPECT_FALSE(form_listed("add", {"ftz", "f64"}));
  EXPECT_FALSE(form_listed("add", {"rn"}));
  EXPECT_FALSE(form_listed("multimem", {}));
}

}  // namespace
}  // namespace softgpu::ptx::test
