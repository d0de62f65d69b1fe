// What a program's file says about it.
#include "broker/cli/elf.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace sluice::cli {
namespace {

using testing::Contains;

std::string bytes_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

std::string own_bytes() { return bytes_of("/proc/self/exe"); }

TEST(Elf, DynamicProgram) {
  const ElfFacts facts = elf_read(own_bytes());
  EXPECT_TRUE(facts.elf);
  EXPECT_TRUE(facts.dynamic);
  EXPECT_THAT(facts.needed, Contains("libc.so.6"));
}

TEST(Elf, Scripts) {
  const ElfFacts env = elf_read("#!/usr/bin/env -S python3 -u \r\nx");
  EXPECT_TRUE(env.script);
  EXPECT_EQ(env.script_interpreter, "/usr/bin/env");
  EXPECT_EQ(env.script_argument, "-S python3 -u");
  EXPECT_TRUE(env.script_crlf);
  EXPECT_FALSE(elf_read("#!/bin/sh\necho\r\n").script_crlf);
  EXPECT_EQ(elf_read("#!/bin/sh\r\n").script_interpreter, "/bin/sh");
  EXPECT_EQ(elf_read("#! /bin/sh\n").script_interpreter, "/bin/sh");
  EXPECT_EQ(elf_read("#! /bin/sh\n").script_argument, "");
  EXPECT_EQ(elf_read("#!").script_interpreter, "");
  EXPECT_EQ(elf_read("#!  \n/bin/sh").script_interpreter, "");
  EXPECT_EQ(elf_read("#!/bin/" + std::string(300, 'x')).script_interpreter.size(), 255u);
}

TEST(Elf, Machines) {
  std::string bytes = bytes_of("/bin/true");
  EXPECT_EQ(machine_name(elf_read(bytes)), "x86-64");
  EXPECT_EQ(elf_read(bytes).interpreter, "/lib64/ld-linux-x86-64.so.2");
  bytes[18] = static_cast<char>(EM_AARCH64);
  bytes[19] = 0;
  EXPECT_EQ(machine_name(elf_read(bytes)), "aarch64");
  bytes[4] = ELFCLASS32;
  bytes[18] = EM_386;
  EXPECT_EQ(machine_name(elf_read(bytes)), "32-bit x86");
  EXPECT_FALSE(elf_read(bytes).is_64bit);
  bytes[5] = ELFDATA2MSB;
  bytes[18] = 0;
  bytes[19] = EM_PPC64;
  EXPECT_EQ(machine_name(elf_read(bytes)), "ppc64");
}

TEST(Elf, AFileThatIsCutOffIsKnown) {
  const std::string good = bytes_of("/bin/true");
  EXPECT_FALSE(elf_read(good).cut_off);
  EXPECT_FALSE(elf_read(own_bytes()).cut_off);
  for (const std::size_t size : {std::size_t{100}, std::size_t{1000}, good.size() / 2}) {
    EXPECT_TRUE(elf_read(good.substr(0, size)).elf);
    EXPECT_TRUE(elf_read(good.substr(0, size)).cut_off) << size;
  }
}

TEST(Elf, DamagedFilesAreReadSafely) {
  const std::string good = own_bytes();
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, std::size_t{10}, std::size_t{64},
                                 std::size_t{100}, std::size_t{500}}) {
    (void)elf_read(good.substr(0, size));
  }
  EXPECT_FALSE(elf_read("hello").elf);
  for (std::size_t i = 16; i < 2000;
       i += 3) {  // header and program headers, one byte spoilt at a time
    std::string bytes = good.substr(0, 4096);
    bytes[i] = static_cast<char>(bytes[i] ^ 0xff);
    (void)elf_read(bytes);
  }
}

}  // namespace
}  // namespace sluice::cli
