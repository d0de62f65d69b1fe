// Which programs preloading reaches, by files made for the purpose.
#include "broker/cli/reach.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "broker/cli/library_search.h"

namespace sluice::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string file_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

class Reach : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/sluice-reach-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory); }
  std::string file(const std::string& name, const std::string& bytes, mode_t mode = 0755) {
    const std::string path = directory + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  /// /bin/true with one text exchanged for another that is no longer.
  std::string patched(const std::string& name, const std::string& from, const std::string& to) {
    std::string bytes = file_bytes("/bin/true");
    const std::size_t at = bytes.find(from + '\0');
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos)
      bytes.replace(at, from.size(), to + std::string(from.size() - to.size(), '\0'));
    return file(name, bytes);
  }
  static std::string obstacle(const std::string& path) {
    const ProgramReach reach = program_reach(path);
    EXPECT_EQ(reach.obstacles.size(), 1u) << path;
    EXPECT_FALSE(reach.hookable);
    EXPECT_EQ(reach.warning.empty(), reach.obstacles.empty());
    return reach.obstacles.empty() ? "" : reach.obstacles.front().what;
  }
  std::string directory;
};

// A file of 1 TiB that takes no room on a disk begins with these bytes.
std::string sparse(const std::string& path) {
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
  return path;
}

TEST_F(Reach, TextsOfAFileCommandNoTerminal) {
  const std::string loader = "/lib64/ld-linux-x86-64.so.2", library = "libc.so.6";
  const std::string program = patched("evil", loader,
                                      "/\x1b[2J\r\xc2\x9b"
                                      "2J/ld.so");
  EXPECT_EQ(obstacle(program), program + " cannot start: its loader /?[2J???2J/ld.so is missing");
  ProgramReach reach = program_reach(patched("needs", library, "l\x1b]0;\a"));
  libraries_reach(&reach, {});
  ASSERT_EQ(reach.obstacles.size(), 1u);
  EXPECT_THAT(reach.obstacles.front().what, HasSubstr(" needs l?]0;?, which is not found"));
  EXPECT_THAT(reach.warning, HasSubstr(" needs l?]0;?, which is not found"));
}

TEST_F(Reach, TheHolesOfAHugeFileAreNotLookedAt) {
  const ProgramReach behind = program_reach(sparse(file("behind", file_bytes("/bin/true"))));
  EXPECT_TRUE(behind.hookable) << behind.warning;
  EXPECT_THAT(behind.notes, IsEmpty());

  std::string bytes = file_bytes("/bin/true");
  Elf64_Ehdr header;
  std::memcpy(&header, bytes.data(), sizeof header);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    char* const at = bytes.data() + header.e_phoff + i * sizeof segment;
    std::memcpy(&segment, at, sizeof segment);
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) != 0) continue;
    segment.p_filesz = (std::uint64_t{1} << 40) - segment.p_offset;
    std::memcpy(at, &segment, sizeof segment);
  }
  const ProgramReach loaded = program_reach(sparse(file("loaded", bytes)));
  EXPECT_TRUE(loaded.hookable) << loaded.warning;
  EXPECT_THAT(loaded.notes, IsEmpty());

  EXPECT_THAT(program_reach(sparse(file("text", "a text"))).finding, HasSubstr("neither an ELF"));
  EXPECT_THAT(program_reach(sparse(file("script", "#!/bin/sh"))).notes, testing::SizeIs(1));
}

TEST_F(Reach, SoMuchOfAFileIsLookedAt) {
  const FileBytes file_of_text(file("text", "looked at"));
  bool all = false;
  EXPECT_THAT(file_of_text.data(9, &all), ElementsAre("looked at"));
  EXPECT_TRUE(all);
  EXPECT_THAT(file_of_text.data(6, &all), ElementsAre("looked"));
  EXPECT_FALSE(all);
  const std::string path = sparse(file("both ends", "begins"));
  std::ofstream(path, std::ios::binary | std::ios::app) << "ends";
  const FileBytes both(path);
  std::size_t bytes = 0;
  const auto parts = both.data(1 << 20, &all);
  for (const std::string_view part : parts) bytes += part.size();
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(all);
  EXPECT_TRUE(parts[0].starts_with("begins") && parts[1].ends_with("ends"));
  EXPECT_LT(bytes, 1u << 20);
}

TEST_F(Reach, SharedAndStaticPrograms) {
  const ProgramReach shell = program_reach("/bin/sh");
  EXPECT_TRUE(shell.hookable);
  EXPECT_EQ(shell.route, CudaRoute::kNone);
  EXPECT_EQ(shell.warning, "");
  EXPECT_EQ(shell.file, "/bin/sh");
  EXPECT_THAT(obstacle("/sbin/ldconfig"), HasSubstr("statically linked"));
}

TEST_F(Reach, OtherMachines) {
  std::string bytes = file_bytes("/bin/true");
  bytes[18] = static_cast<char>(EM_AARCH64);
  EXPECT_THAT(obstacle(file("arm", bytes)), HasSubstr("is built for aarch64"));
  bytes[4] = ELFCLASS32;
  bytes[18] = EM_386;
  EXPECT_THAT(obstacle(file("old", bytes)), HasSubstr("is built for 32-bit x86"));
}

TEST_F(Reach, OtherLoaders) {
  const std::string own = "/lib64/ld-linux-x86-64.so.2";
  EXPECT_THAT(obstacle(patched("musl", own, "/lib/ld-musl-x86_64.so.1")),
              HasSubstr("is built for musl (/lib/ld-musl-x86_64.so.1)"));
  EXPECT_THAT(obstacle(patched("lost", own, "/nonexistent/ld.so")),
              HasSubstr("its loader /nonexistent/ld.so is missing"));
}

TEST_F(Reach, ProgramsThatGainPrivileges) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files to others and set capabilities";
  const std::string path = file("gains", file_bytes("/bin/true"));
  ASSERT_EQ(chown(path.c_str(), 1, 1), 0);
  ASSERT_EQ(chmod(path.c_str(), 04755), 0);
  EXPECT_THAT(obstacle(path), HasSubstr("(setuid)"));
  ASSERT_EQ(chmod(path.c_str(), 02755), 0);
  EXPECT_THAT(obstacle(path), HasSubstr("(setgid)"));
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  EXPECT_TRUE(program_reach(path).hookable);
  // struct vfs_cap_data of <linux/capability.h>: revision 2, effective, CAP_NET_RAW permitted.
  const std::uint32_t capabilities[5] = {0x02000001, 1u << 13, 0, 0, 0};
  if (setxattr(path.c_str(), "security.capability", capabilities, sizeof capabilities, 0) != 0)
    GTEST_SKIP() << "this file system keeps no capabilities";
  EXPECT_THAT(obstacle(path), HasSubstr("(file capabilities)"));
}

TEST_F(Reach, PrivilegesOfTheUserAreNoGain) {
  const ProgramReach reach = program_reach(file("own", file_bytes("/bin/true"), 06755));
  EXPECT_TRUE(reach.hookable);
  ASSERT_EQ(reach.notes.size(), 1U);
  EXPECT_THAT(reach.notes[0], HasSubstr("for any user but its owner the loader ignores the shim"));
}

TEST_F(Reach, RoutesToCuda) {
  std::string bytes = file_bytes("/bin/sh") + "libcuda" + ".so.1" + '\0';
  EXPECT_EQ(program_reach(file("driver", bytes)).route, CudaRoute::kDriver);
  bytes += std::string("cudaErrorInitialization") + "Error";
  const ProgramReach reach = program_reach(file("runtime", bytes));
  EXPECT_EQ(reach.route, CudaRoute::kStaticRuntime);
  EXPECT_FALSE(reach.nvidia_runtime) << "it may be the software GPU's own";
  bytes += std::string("/cudart") + ".shm.%x";
  EXPECT_THAT(program_reach(file("nvidia", bytes)).finding, HasSubstr("-cudart shared"));
}

TEST_F(Reach, ASoftwareGpuDoesNotRunNvidiasRuntime) {
  const std::string ours = file_bytes("/bin/sh") + "libcuda" + ".so.1" + '\0' +
                           "cudaErrorInitialization" + "Error" + '\0';
  ProgramReach relinked = program_reach(file("relinked", ours));
  soft_reach(&relinked, "/soft");
  EXPECT_TRUE(relinked.hookable);
  ProgramReach reach = program_reach(file("nvidia", ours + "/cudart" + ".shm.%x"));
  EXPECT_TRUE(reach.hookable);
  soft_reach(&reach, "/soft");
  EXPECT_FALSE(reach.hookable);
  EXPECT_THAT(reach.warning, HasSubstr("only on NVIDIA's driver"));
  EXPECT_THAT(reach.warning, HasSubstr("nvcc -cudart shared"));
  EXPECT_THAT(reach.warning, HasSubstr("NVCC_APPEND_FLAGS=\"-L/soft\""));
}

TEST_F(Reach, ScriptsAreFollowedToWhatRunsThem) {
  const std::string inner = file("inner", "#!/bin/sh\n");
  const std::string outer = file("outer", "#!" + inner + " -x\n");
  const ProgramReach reach = program_reach(outer);
  EXPECT_TRUE(reach.hookable);
  EXPECT_EQ(reach.file, "/bin/sh");
  EXPECT_THAT(reach.notes, ElementsAre(outer + " is a script, run by " + inner,
                                       inner + " is a script, run by /bin/sh"));
  EXPECT_THAT(obstacle(file("static", "#!/sbin/ldconfig\n")),
              HasSubstr("/sbin/ldconfig is static"));
  EXPECT_THAT(program_reach(file("none", "#!\n")).notes,
              ElementsAre(HasSubstr("names no interpreter in its first line, so /bin/sh runs it")));
  EXPECT_THAT(obstacle(file("lost", "#!/nonexistent/python\n")),
              HasSubstr("its interpreter /nonexistent/python is not found"));
  EXPECT_THAT(obstacle(file("plain", "#!" + file("text", "x", 0644) + "\n")),
              HasSubstr("is not executable"));
}

TEST_F(Reach, ScriptsThatRunThemselvesEnd) {
  EXPECT_THAT(obstacle(file("loop", "#!" + directory + "/loop\n")),
              HasSubstr("deeper than the kernel follows"));
}

/// The exit codes are the shell's.
TEST_F(Reach, WhatCannotStartIsKnownBeforeItWaits) {
  EXPECT_EQ(program_reach("/bin/true").exit_code, 0);
  EXPECT_EQ(program_reach(file("setuid", "x", 04755)).exit_code, 0) << "only its limits are";
  EXPECT_EQ(program_reach(file("lost", "#!/nonexistent/python\n")).exit_code, 127);
  EXPECT_EQ(program_reach(file("closed", "#!" + file("text", "x", 0644) + "\n")).exit_code, 126);
  EXPECT_EQ(program_reach(file("loop", "#!" + directory + "/loop\n")).exit_code, 126);
  EXPECT_EQ(program_reach(patched("loader", "/lib64/ld-linux-x86-64.so.2", "/lib/none")).exit_code,
            127);
  const std::string half = file("half", file_bytes("/bin/true").substr(0, 5000));
  EXPECT_THAT(obstacle(half), HasSubstr(half + " cannot start: it is cut off"));
  EXPECT_EQ(program_reach(half).exit_code, 126);
  EXPECT_EQ(program_reach(file("path", "#!/usr/bin/env -S PATH=/opt x\n")).exit_code, 0)
      << "env may know better";
}

TEST_F(Reach, ScriptsOfWindows) {
  for (const char* line : {"#!/bin/sh\r\n", "#!/usr/bin/env sh\r\n"}) {
    const std::string path = file("crlf", line);
    EXPECT_THAT(obstacle(path), HasSubstr("its lines end in CR LF, as on Windows"));
    EXPECT_THAT(program_reach(path).warning, HasSubstr("sed -i 's/\\r$//' " + path));
    EXPECT_EQ(program_reach(path).exit_code, 127);
  }
  EXPECT_EQ(program_reach(file("split", "#!/usr/bin/env -S sh\r\n")).exit_code, 0);
}

TEST_F(Reach, AnEmptyFileIsNamed) {
  const std::string empty = file("empty", "");
  EXPECT_THAT(obstacle(empty), HasSubstr("is empty"));
  EXPECT_EQ(program_reach(empty).exit_code, 0) << "the shell runs it";
}

TEST_F(Reach, NamesThatMeanNoProgram) {
  const auto why = [](const std::string& name, int code) {
    const ProgramFile found = program_locate(name);
    EXPECT_EQ(found.obstacle.exit_code, code) << name;
    return found.obstacle.what + "; " + found.obstacle.fix;
  };
  EXPECT_EQ(why("/bin/true", 0), "; ");
  EXPECT_THAT(program_locate("true").path, testing::EndsWith("/true"));
  EXPECT_THAT(why("", 127), HasSubstr("the program's name is empty"));
  EXPECT_THAT(why("no-such-program", 127), HasSubstr("there is no program 'no-such-program'"));
  EXPECT_THAT(why("/nonexistent/x", 127), HasSubstr("there is no program '/nonexistent/x'"));
  EXPECT_THAT(why("/bin/true/x", 126), HasSubstr("Not a directory"));
  EXPECT_THAT(why(directory, 126), HasSubstr("is a directory"));
  EXPECT_THAT(why("..", 126), HasSubstr("is a directory"));
  EXPECT_THAT(why("/dev/null", 126), HasSubstr("is no regular file"));
  EXPECT_THAT(why(file("closed", "x", 0644), 126), HasSubstr("is not executable; chmod +x it"));
  file("only-here", "x");
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(directory);
  EXPECT_THAT(why("only-here", 127), HasSubstr("the one in this directory is ./only-here"));
  std::filesystem::current_path(before);
}

TEST_F(Reach, EnvIsLookedThrough) {
  EXPECT_THAT(program_reach(file("a", "#!/usr/bin/env sh\n")).file, HasSubstr("/sh"));
  EXPECT_THAT(program_reach(file("b", "#!/usr/bin/env -S A=1 sh -e\n")).file, HasSubstr("/sh"));
  EXPECT_THAT(program_reach(file("c", "#!/usr/bin/env -Ssh -e\n")).file, HasSubstr("/sh"));
  EXPECT_THAT(obstacle(file("d", "#!/usr/bin/env -S -i sh\n")), HasSubstr("clears LD_PRELOAD"));
  EXPECT_THAT(obstacle(file("e", "#!/usr/bin/env -S -u LD_PRELOAD sh\n")),
              HasSubstr("env -u LD_PRELOAD"));
  EXPECT_THAT(obstacle(file("f", "#!/usr/bin/env no-such-program-anywhere\n")),
              HasSubstr("its interpreter no-such-program-anywhere is not found"));
}

TEST_F(Reach, ProgramsWithADriverOfTheirOwn) {
  EXPECT_THAT(obstacle(SLUICE_OWN_DRIVER), HasSubstr("exports functions of the CUDA driver"));
}

TEST_F(Reach, ProgramsThatMayClearThePreloadAreNoted) {
  const ProgramReach reach = program_reach(file("m", file_bytes("/bin/true") + "LD_PRELOAD"));
  EXPECT_TRUE(reach.hookable);
  ASSERT_EQ(reach.notes.size(), 1u);
  EXPECT_THAT(reach.notes[0], HasSubstr("mentions LD_PRELOAD"));
}

TEST_F(Reach, OtherFilesAreLeftToTheShell) {
  const ProgramReach reach = program_reach(file("text", "hello"));
  EXPECT_TRUE(reach.hookable);
  EXPECT_THAT(reach.finding, HasSubstr("neither an ELF file nor a script"));
}

TEST_F(Reach, LibrariesAreFoundAndMissed) {
  ProgramReach good = program_reach("/bin/true");
  libraries_reach(&good, {});
  EXPECT_THAT(good.obstacles, IsEmpty());
  ProgramReach bad = program_reach(patched("lost", "libc.so.6", "libx.so.6"));
  libraries_reach(&bad, {});
  ASSERT_EQ(bad.obstacles.size(), 1u);
  EXPECT_FALSE(bad.hookable);
  EXPECT_THAT(bad.obstacles[0].what, HasSubstr("needs libx.so.6, which is not found"));
  // In a folder that is named; one for another machine is passed over, as ld.so does.
  std::filesystem::create_directories(directory + "/wrong");
  std::filesystem::create_directories(directory + "/right");
  std::string foreign = file_bytes("/bin/true");
  foreign[18] = static_cast<char>(EM_AARCH64);
  file("wrong/libx.so.6", foreign);
  ProgramReach still = program_reach(directory + "/lost");
  libraries_reach(&still, {directory + "/wrong"});
  EXPECT_EQ(still.obstacles.size(), 1u);
  file("right/libx.so.6", file_bytes("/bin/true") + std::string("\0libcuda.so.1", 13));
  ProgramReach found = program_reach(directory + "/lost");
  libraries_reach(&found, {directory + "/wrong", directory + "/right"});
  EXPECT_THAT(found.obstacles, IsEmpty());
}

TEST_F(Reach, CudaIsFoundThroughLibraries) {
  // A library that needs the driver, needed by a program that knows nothing of it. The driver's
  // name is the library's last text: there is room for it.
  std::string library = file_bytes("/bin/true");
  const std::string name = std::string("libcuda") + ".so.1";
  const std::size_t at = library.find(std::string("libc.so.6") + '\0');
  ASSERT_NE(at, std::string::npos);
  library.replace(at, name.size() + 1, name + '\0');
  file("libx.so.6", library);
  file(name, file_bytes("/bin/true"));
  ProgramReach reach = program_reach(patched("program", "libc.so.6", "libx.so.6"));
  EXPECT_EQ(reach.route, CudaRoute::kNone);
  libraries_reach(&reach, {directory});
  EXPECT_EQ(reach.route, CudaRoute::kDriver);
  EXPECT_THAT(reach.finding, HasSubstr("directly, through " + directory + "/libx.so.6"));
}

TEST(LibraryCache, Entries) {
  std::string cache = "glibc-ld.so.cache1.1";
  const auto word = [&cache](std::uint32_t value) {
    cache.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  word(2);
  cache.resize(48, '\0');
  for (const std::uint32_t flags : {0x0003u, 0x0303u}) {  // i386, x86-64
    word(flags);
    word(96);
    word(flags == 3 ? 104 : 113);
    word(0);
    word(0);
    word(0);
  }
  cache += std::string("liba.so\0/32/liba\0/64/liba\0", 26);
  EXPECT_EQ(cache_find(cache, "liba.so"), "/64/liba");
  EXPECT_EQ(cache_find(cache, "libb.so"), "");
  for (std::size_t size = 0; size < cache.size(); ++size) {
    (void)cache_find(std::string_view(cache).substr(0, size), "liba.so");
  }
  EXPECT_EQ(cache_find(cache.substr(0, 60), "liba.so"), "");
}

}  // namespace
}  // namespace sluice::cli
