// Every listed form of every opcode, on every instruction set of this processor. See forms.h.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>

#include "softgpu/ptx/code/decoder.h"
#include "softgpu/ptx/code/forms.h"
#include "tests/softgpu/ptx/forms.h"
#include "tests/softgpu/ptx/harness.h"

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
  for (const OpcodeTable* table :
       {&arithmetic_opcodes(), &memory_opcodes(), &flow_opcodes(), &matrix_opcodes(),
        &rare_opcodes(), &async_opcodes(), &image_opcodes()}) {
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

constexpr char kDocumentHead[] =
    R"(# PTX instructions that the software GPU executes

All of them, and no others: a kernel with another instruction is refused at its launch (`CUDA_ERROR_NOT_SUPPORTED`), with one
line on stderr that names the instruction; a module in which no kernel can run is refused when it is loaded. Written by
`SOFTGPU_WRITE_FORMS=1 build/dev/tests/softgpu_ptx_test --gtest_filter=Forms.*` from the list that the decoder looks into
(`softgpu/ptx/code/forms.cpp`); the tests run every form of it against a reference.

A line has an opcode and groups of modifiers: `a|b` is one of them, `?` means that the group may be left out, `~` that it is
accepted and changes no result. Further restrictions, such as widths of registers, are those of the PTX ISA.

```
)";

// docs/softgpu-instructions.md is the list.
TEST(Forms, TheDocumentListsThemAll) {
  std::string text = kDocumentHead;
  for (const FormText& form : form_texts()) {
    text += form.op;
    if (!form.groups.empty()) text += " " + std::string(form.groups);
    text += "\n";
  }
  text += "```\n";
  if (std::getenv("SOFTGPU_WRITE_FORMS") != nullptr) std::ofstream(FORMS_DOCUMENT) << text;
  std::ifstream file(FORMS_DOCUMENT);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), text);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream rest(text);
  for (std::string part; std::getline(rest, part, at);) parts.push_back(part);
  return parts;
}

/// Every combination of what one cell of compiled_forms.tsv names.
void for_each_form(const std::string& cell,
                   const std::function<void(const std::vector<std::string>&)>& body) {
  std::vector<std::vector<std::string>> forms{{}};
  for (const std::string& group : split(cell == "-" ? "" : cell, '.')) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& head : forms) {
      for (const std::string& word : split(group, '|')) {
        longer.push_back(head);
        longer.back().push_back(word);
      }
    }
    forms = std::move(longer);
  }
  for (const auto& form : forms) body(form);
}

TEST(Forms, WhatTheCompilerEmitsIsListed) {
  std::ifstream file(COMPILED_FORMS);
  std::size_t opcodes = 0, forms = 0;
  std::string specials;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> cells = split(line, '\t');
    ASSERT_GT(cells.size(), 1u) << line;
    if (cells[0] != "%") ++opcodes;
    for (std::size_t k = 1; k < cells.size(); ++k) {
      for_each_form(cells[k], [&](const std::vector<std::string>& words) {
        ++forms;
        std::string name = cells[0];
        for (const std::string& word : words) name += (name == "%" ? "" : ".") + word;
        const bool wide = name == "%clock64";
        if (cells[0] == "%") {
          specials += wide ? "mov.u64 %wide, " + name + ";\n" : "mov.u32 %r, " + name + ";\n";
        } else {
          EXPECT_TRUE(form_listed(cells[0], {words.begin(), words.end()})) << name;
        }
      });
    }
  }
  EXPECT_EQ(opcodes, 58u);
  EXPECT_GE(forms, 268u);
  // Special registers are operands, which the decoder knows or does not.
  HeapMemory memory;
  const auto loads = [&memory](const std::string& body) {
    const LoadResult loaded = module_load(
        ptx_module(".visible .entry k()\n{\n.reg .b32 %r; .reg .b64 %wide;\n" + body + "ret;\n}\n"),
        memory);
    return loaded.status == LoadStatus::kOk && loaded.log.empty();
  };
  EXPECT_TRUE(loads(specials)) << specials;
  EXPECT_FALSE(loads("mov.u32 %r, %nothing;\n"));
}

}  // namespace
}  // namespace softgpu::ptx::test
