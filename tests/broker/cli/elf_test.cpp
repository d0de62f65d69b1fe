// What a program's file says about it.
#include "broker/cli/elf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

namespace sluice::cli {
namespace {

using testing::Contains;
using testing::HasSubstr;

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
  EXPECT_EQ(elf_read("#!/usr/bin/env python3\nx").script_interpreter, "/usr/bin/env");
  EXPECT_EQ(elf_read("#! /bin/sh\n").script_interpreter, "/bin/sh");
  EXPECT_EQ(elf_read("#!").script_interpreter, "");
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

TEST(Reach, SharedAndStaticPrograms) {
  const ProgramReach shell = program_reach("/bin/sh");
  EXPECT_TRUE(shell.hookable);
  EXPECT_EQ(shell.route, CudaRoute::kNone);
  EXPECT_EQ(shell.warning, "");
  const ProgramReach loader = program_reach("/sbin/ldconfig");
  EXPECT_FALSE(loader.hookable);
  EXPECT_THAT(loader.warning, HasSubstr("statically linked"));
}

TEST(Reach, ProgramsThatGainPrivileges) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a program setuid to another user";
  char path[] = "/tmp/sluice-setuid-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path, std::ios::binary) << own_bytes();
  ASSERT_EQ(chown(path, 1, 1), 0);
  ASSERT_EQ(chmod(path, 04755), 0);
  const ProgramReach reach = program_reach(path);
  unlink(path);
  EXPECT_FALSE(reach.hookable);
  EXPECT_THAT(reach.warning, HasSubstr("setuid"));
}

TEST(Reach, RoutesToCuda) {
  char path[] = "/tmp/sluice-route-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path, std::ios::binary) << bytes_of("/bin/sh")
                                        << "libcuda"
                                           ".so.1"
                                        << '\0';
  EXPECT_EQ(program_reach(path).route, CudaRoute::kDriver);
  std::ofstream(path, std::ios::binary | std::ios::app) << "cudaErrorInitialization"
                                                           "Error";
  const ProgramReach reach = program_reach(path);
  unlink(path);
  EXPECT_EQ(reach.route, CudaRoute::kStaticRuntime);
  EXPECT_THAT(reach.finding, HasSubstr("-cudart shared"));
}

}  // namespace
}  // namespace sluice::cli
